//! Refusals that are repeated without asking the store.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    SECOND, admitted,
    gate::{by, whole},
    minute, named, refused,
};
use crate::{
    Clock, Policy, Quota,
    rate_limit::RateLimiter,
    store::{Fault, Store, faulty},
};

#[tokio::test(start_paused = true)]
async fn a_refusal_is_asked_for_once_and_ends_in_time() {
    for quota in [minute(2), minute(2).sliding(), minute(2).gcra()] {
        let (store, faults) = faulty();
        let limit = store.rate_limiter(quota);
        admitted(&limit.check("x", 2).await.unwrap(), 0);
        let wait = refused(&limit.check("x", 1).await.unwrap(), &["default"]);
        let asked = faults.seen("charge");
        for _ in 0..10 {
            refused(&limit.check("x", 1).await.unwrap(), &["default"]);
            tokio::time::sleep(wait / 10 - Duration::from_millis(1)).await;
        }
        assert_eq!(faults.seen("charge"), asked, "{quota:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(limit.check("x", 1).await.unwrap().is_admitted(), "{quota:?}");
    }
}

/// The moment is counted from before the call: a slow answer makes it end sooner here, never later.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_puts_nothing_off() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(1));
    admitted(&store.as_another_process().rate_limiter(minute(1)).check("x", 1).await.unwrap(), 0);
    faults.set("charge", Fault::Slow(20 * SECOND), 1);
    refused(&limit.check("x", 1).await.unwrap(), &["default"]);
    tokio::time::sleep(40 * SECOND).await;
    assert!(limit.check("x", 1).await.unwrap().is_admitted(), "the window is over");
}

/// The store has run later than the call was sent.
#[tokio::test(start_paused = true)]
async fn who_waits_as_long_as_is_told_from_memory_is_let_in() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(1));
    admitted(&store.as_another_process().rate_limiter(minute(1)).check("x", 1).await.unwrap(), 0);
    tokio::time::sleep(10 * SECOND).await;
    faults.set("charge", Fault::Late(SECOND), 1);
    refused(&limit.check("x", 1).await.unwrap(), &["default"]);
    let asked = faults.seen("charge");
    let wait = refused(&limit.check("x", 1).await.unwrap(), &["default"]);
    assert_eq!(faults.seen("charge"), asked, "it is remembered");
    tokio::time::sleep(wait).await;
    assert!(limit.check("x", 1).await.unwrap().is_admitted(), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dear_request_that_is_refused_says_nothing_of_cheap_ones() {
    let limit = Store::memory().rate_limiter(minute(5));
    admitted(&limit.check("x", 3).await.unwrap(), 2);
    refused(&limit.check("x", 3).await.unwrap(), &["default"]);
    admitted(&limit.check("x", 2).await.unwrap(), 0);
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(5));
    admitted(&limit.check("x", 5).await.unwrap(), 0);
    refused(&limit.check("x", 2).await.unwrap(), &["default"]);
    refused(&limit.check("x", 3).await.unwrap(), &["default"]);
    assert_eq!(faults.seen("charge"), 2, "what costs more is refused as well");
    refused(&limit.check("x", 1).await.unwrap(), &["default"]);
    assert_eq!(faults.seen("charge"), 3);
}

/// Under one name, what is counted otherwise, or not at all, is of another counter: it makes nothing dearer.
#[tokio::test(start_paused = true)]
async fn what_is_not_of_the_counter_is_not_added_to_the_cost() {
    for other in [Quota::unlimited(), minute(100).sliding()] {
        let store = Store::memory();
        let one = store.rate_limiter(named("p", minute(5)));
        let both = one.clone().and(named("p", other));
        admitted(&one.check("x", 3).await.unwrap(), 2);
        refused(&one.check("x", 3).await.unwrap(), &["p"]);
        admitted(&both.check("x", 2).await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn other_keys_and_policies_are_asked() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(1));
    let _ = limit.check("x", 1).await;
    refused(&limit.check("x", 1).await.unwrap(), &["default"]);
    assert_eq!(faults.seen("charge"), 1, "who was let in last knows that the next one is not");
    admitted(&limit.check("y", 1).await.unwrap(), 0);
    admitted(&store.rate_limiter(named("p", minute(1))).check("x", 1).await.unwrap(), 0);
    admitted(&store.rate_limiter(minute(1)).group_by("g").check("x", 1).await.unwrap(), 0);
    assert_eq!(faults.seen("charge"), 4);
}

#[tokio::test(start_paused = true)]
async fn what_another_process_resets_is_known_after_the_time_that_was_set() {
    let store = Store::memory();
    let policy = named("p", minute(1)).cache_refusals_for(SECOND);
    let (one, other) = (store.rate_limiter(policy.clone()), store.as_another_process());
    admitted(&one.check("x", 1).await.unwrap(), 0);
    refused(&one.check("x", 1).await.unwrap(), &["p"]);
    other.rate_limiter(policy).reset("x").await.unwrap();
    refused(&one.check("x", 1).await.unwrap(), &["p"]);
    tokio::time::sleep(SECOND).await;
    admitted(&one.check("x", 1).await.unwrap(), 0);
}

/// A counter is found by its policy's name: who resets it need not know by which quota it refuses.
#[tokio::test(start_paused = true)]
async fn a_reset_by_another_quota_is_known_at_once() {
    let store = Store::memory();
    let limit = store.rate_limiter(named("p", minute(1)));
    admitted(&limit.check("x", 1).await.unwrap(), 0);
    refused(&limit.check("x", 1).await.unwrap(), &["p"]);
    store.rate_limiter(named("p", Quota::requests(7).per(SECOND))).reset("x").await.unwrap();
    admitted(&limit.check("x", 1).await.unwrap(), 0);
}

/// It was asked for before the reset, and arrives after it. The reset may be by another quota, of which alone something was
/// known here.
#[tokio::test(start_paused = true)]
async fn a_refusal_from_before_a_reset_is_not_remembered() {
    for reset in [minute(1), Quota::requests(7).per(SECOND)] {
        let (store, faults) = faulty();
        let policy = named("p", minute(1));
        let limit = store.rate_limiter(policy.clone());
        admitted(&store.as_another_process().rate_limiter(policy).check("x", 1).await.unwrap(), 0);
        faults.set("charge", Fault::Slow(SECOND), 1);
        let late = crate::store::spawn({
            let limit = limit.clone();
            async move { limit.check("x", 1).await }
        });
        tokio::time::sleep(SECOND / 2).await;
        store.rate_limiter(named("p", reset)).reset("x").await.unwrap();
        refused(&late.await.unwrap().unwrap(), &["p"]);
        admitted(&limit.check("x", 1).await.unwrap(), 0);
    }
}

/// Who leaves while a shadow is asked is given back what he was charged, and others may be let in for it.
#[tokio::test(start_paused = true)]
async fn a_refusal_beside_a_shadow_may_end_sooner() {
    let (store, faults) = faulty();
    let other = store.as_another_process();
    let hour = named("real", Quota::requests(1).per(3600 * SECOND));
    let [leaves, stays] = [&store, &other]
        .map(|store| store.rate_limiter(hour.clone()).and(named("watched", minute(9)).shadow()));
    faults.set("charge", Fault::Slow(SECOND), 2);
    let (left, ()) =
        tokio::join!(tokio::time::timeout(SECOND * 9 / 5, leaves.check("x", 1)), async {
            tokio::time::sleep(SECOND * 3 / 2).await;
            refused(&stays.check("x", 1).await.unwrap(), &["real"]);
        });
    assert!(left.is_err(), "it is in the shadow still");
    tokio::time::sleep(SECOND).await;
    assert!(stays.check("x", 1).await.unwrap().is_admitted());
}

/// A window may end after the block: from then on the store has to count again.
#[tokio::test(start_paused = true)]
async fn a_block_is_remembered_until_it_ends_and_no_longer() {
    let quota = Quota::requests(3).per(3 * SECOND).sliding();
    let limit = Store::memory().rate_limiter(named("p", quota).penalty(2, 5 * SECOND));
    admitted(&limit.check("x", 3).await.unwrap(), 0);
    for _ in 0..2 {
        refused(&limit.check("x", 3).await.unwrap(), &["p"]);
    }
    tokio::time::sleep(5 * SECOND).await;
    assert!(refused(&limit.check("x", 3).await.unwrap(), &["p"]) <= SECOND);
    assert!(refused(&limit.check("x", 3).await.unwrap(), &["p"]) > SECOND, "it counted twice");
}

/// Two limiters, one that remembers and one that asks each time, on stores that are told the same.
#[derive(Debug, Clone, Copy)]
enum Op {
    Check { key: u8, cost: u64 },
    Sleep { millis: u64 },
    Reset { key: u8 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let check = (0..3u8, 1..4u64).prop_map(|(key, cost)| Op::Check { key, cost });
    let sleep = (1..1500u64).prop_map(|millis| Op::Sleep { millis });
    let reset = (0..3u8).prop_map(|key| Op::Reset { key });
    proptest::collection::vec(prop_oneof![12 => check, 4 => sleep, 1 => reset], 1..120)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let quota = |limit| Quota::requests(limit).per(3 * SECOND);
    (3..8u64, 0..4u8).prop_map(move |(limit, kind)| match kind {
        0 => quota(limit),
        1 => quota(limit).sliding(),
        2 => quota(limit).gcra(),
        _ => quota(limit).burst(3),
    })
}

async fn run(policy: Policy, ops: &[Op]) -> Result<(), TestCaseError> {
    let (stores, asking) = ([Store::memory(), Store::memory()], Duration::ZERO);
    let limits: [RateLimiter; 2] = [
        stores[0].rate_limiter(policy.clone()),
        stores[1].rate_limiter(policy.cache_refusals_for(asking)),
    ];
    for op in ops {
        match *op {
            Op::Check { key, cost } => {
                let key = key.to_string();
                let one = limits[0].check(&*key, cost).await.unwrap();
                let other = limits[1].check(&*key, cost).await.unwrap();
                prop_assert_eq!(one.is_admitted(), other.is_admitted(), "{:?}", op);
                // Told by the millisecond, and remembered to the same.
                let apart = one.retry_after().abs_diff(other.retry_after());
                prop_assert!(apart <= Duration::from_millis(2), "{:?} {:?}", one, other);
            }
            Op::Sleep { millis } => tokio::time::sleep(Duration::from_millis(millis)).await,
            Op::Reset { key } => {
                for limit in &limits {
                    limit.reset(&*key.to_string()).await.unwrap();
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn remembering_never_changes_a_decision(quota in quotas(), ops in ops(), penal in any::<bool>()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        let policy = Policy::new(quota);
        let policy = if penal { policy.penalty(2, 5 * SECOND) } else { policy };
        runtime.block_on(run(policy, &ops))?;
    }
}

/// What is kept here goes by tokio's clock, and that one does not pass with the store's.
#[tokio::test]
async fn beside_a_clock_that_is_moved_by_hand_nothing_is_kept() {
    for policy in
        [named("p", minute(2)), named("p", minute(2).gcra()), named("p", minute(2)).quota_lease(2)]
    {
        let clock = Clock::manual();
        let store = Store::memory_with_clock(clock.clone());
        let (limit, layer) = (store.rate_limiter(policy.clone()), by("a", policy).store(&store));
        for _ in 0..3 {
            for left in [1, 0] {
                admitted(&limit.check("x", 1).await.unwrap(), left);
                assert_eq!(whole(&layer, 200).await, 200);
            }
            for _ in 0..2 {
                refused(&limit.check("x", 1).await.unwrap(), &["p"]);
                assert_eq!(whole(&layer, 200).await, 429);
            }
            clock.advance(60 * SECOND);
        }
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        clock.advance(60 * SECOND);
        // Of a lease, the other one would still be there.
        admitted(&limit.check("x", 1).await.unwrap(), 1);
    }
}
