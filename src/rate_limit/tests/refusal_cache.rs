//! Refusals repeated from the cache without a store call.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    SECOND, assert_admitted, assert_refused,
    gate_requests::{gate_by_header, run_request},
    named_policy, per_minute,
};
use crate::{
    Clock, Policy, Quota,
    rate_limit::RateLimiter,
    store::{BackendFault, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn refusal_is_cached_until_units_are_available() {
    for quota in [per_minute(2), per_minute(2).sliding(), per_minute(2).gcra()] {
        let (store, faults) = faulty_store();
        let limit = store.rate_limiter(quota);
        assert_admitted(&limit.check("x", 2).await.unwrap(), 0);
        let wait = assert_refused(&limit.check("x", 1).await.unwrap(), &["2-per-60s"]);
        let calls = faults.call_count("charge");
        for _ in 0..10 {
            assert_refused(&limit.check("x", 1).await.unwrap(), &["2-per-60s"]);
            tokio::time::sleep(wait / 10 - Duration::from_millis(1)).await;
        }
        assert_eq!(faults.call_count("charge"), calls, "{quota:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(limit.check("x", 1).await.unwrap().is_admitted(), "{quota:?}");
    }
}

/// The end of a cached refusal counts from before the call: a slow reply makes it earlier, never
/// later.
#[tokio::test(start_paused = true)]
async fn slow_reply_does_not_extend_a_cached_refusal() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(1));
    assert_admitted(
        &store.as_another_process().rate_limiter(per_minute(1)).check("x", 1).await.unwrap(),
        0,
    );
    faults.set("charge", BackendFault::SlowReply(20 * SECOND), 1);
    assert_refused(&limit.check("x", 1).await.unwrap(), &["1-per-60s"]);
    tokio::time::sleep(40 * SECOND).await;
    assert!(limit.check("x", 1).await.unwrap().is_admitted(), "the window is over");
}

/// The store ran the operation later than the call was sent.
#[tokio::test(start_paused = true)]
async fn request_after_the_cached_retry_delay_is_admitted() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(1));
    assert_admitted(
        &store.as_another_process().rate_limiter(per_minute(1)).check("x", 1).await.unwrap(),
        0,
    );
    tokio::time::sleep(10 * SECOND).await;
    faults.set("charge", BackendFault::SlowCall(SECOND), 1);
    assert_refused(&limit.check("x", 1).await.unwrap(), &["1-per-60s"]);
    let calls = faults.call_count("charge");
    let wait = assert_refused(&limit.check("x", 1).await.unwrap(), &["1-per-60s"]);
    assert_eq!(faults.call_count("charge"), calls, "it is remembered");
    tokio::time::sleep(wait).await;
    assert!(limit.check("x", 1).await.unwrap().is_admitted(), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn expensive_refusal_does_not_refuse_cheaper_requests() {
    let limit = Store::memory().rate_limiter(per_minute(5));
    assert_admitted(&limit.check("x", 3).await.unwrap(), 2);
    assert_refused(&limit.check("x", 3).await.unwrap(), &["5-per-60s"]);
    assert_admitted(&limit.check("x", 2).await.unwrap(), 0);
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(5));
    assert_admitted(&limit.check("x", 5).await.unwrap(), 0);
    assert_refused(&limit.check("x", 2).await.unwrap(), &["5-per-60s"]);
    assert_refused(&limit.check("x", 3).await.unwrap(), &["5-per-60s"]);
    assert_eq!(faults.call_count("charge"), 2, "a larger cost is refused without a call");
    assert_refused(&limit.check("x", 1).await.unwrap(), &["5-per-60s"]);
    assert_eq!(faults.call_count("charge"), 3);
}

/// A policy with another algorithm, or without a limit, has another counter and adds no cost.
#[tokio::test(start_paused = true)]
async fn policy_of_another_counter_adds_no_cost() {
    for other in [Quota::unlimited(), per_minute(100).sliding()] {
        let store = Store::memory();
        let one = store.rate_limiter(named_policy("p", per_minute(5)));
        let both = one.clone().and(named_policy("q", other));
        assert_admitted(&one.check("x", 3).await.unwrap(), 2);
        assert_refused(&one.check("x", 3).await.unwrap(), &["p"]);
        assert_admitted(&both.check("x", 2).await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_does_not_apply_to_other_keys_or_policies() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(1));
    let _ = limit.check("x", 1).await;
    assert_refused(&limit.check("x", 1).await.unwrap(), &["1-per-60s"]);
    assert_eq!(faults.call_count("charge"), 1, "the last admission predicts the refusal");
    assert_admitted(&limit.check("y", 1).await.unwrap(), 0);
    assert_admitted(
        &store.rate_limiter(named_policy("p", per_minute(1))).check("x", 1).await.unwrap(),
        0,
    );
    assert_admitted(
        &store.rate_limiter(per_minute(1)).group_by("g").check("x", 1).await.unwrap(),
        0,
    );
    assert_eq!(faults.call_count("charge"), 4);
}

#[tokio::test(start_paused = true)]
async fn remote_reset_applies_after_the_refusal_cache_time() {
    let store = Store::memory();
    let policy = named_policy("p", per_minute(1)).cache_refusals_for(SECOND);
    let (one, other) = (store.rate_limiter(policy.clone()), store.as_another_process());
    assert_admitted(&one.check("x", 1).await.unwrap(), 0);
    assert_refused(&one.check("x", 1).await.unwrap(), &["p"]);
    other.rate_limiter(policy).reset("x").await.unwrap();
    assert_refused(&one.check("x", 1).await.unwrap(), &["p"]);
    tokio::time::sleep(SECOND).await;
    assert_admitted(&one.check("x", 1).await.unwrap(), 0);
}

/// Counters are found by the policy's name, so a reset works with any quota.
#[tokio::test(start_paused = true)]
async fn local_reset_by_another_quota_applies_at_once() {
    let store = Store::memory();
    let limit = store.rate_limiter(named_policy("p", per_minute(1)));
    assert_admitted(&limit.check("x", 1).await.unwrap(), 0);
    assert_refused(&limit.check("x", 1).await.unwrap(), &["p"]);
    store.rate_limiter(named_policy("p", Quota::requests(7).per(SECOND))).reset("x").await.unwrap();
    assert_admitted(&limit.check("x", 1).await.unwrap(), 0);
}

/// The refusal was requested before the reset and arrives after it. The reset may use another quota
/// of the same name.
#[tokio::test(start_paused = true)]
async fn refusal_requested_before_a_reset_is_not_cached() {
    for reset in [per_minute(1), Quota::requests(7).per(SECOND)] {
        let (store, faults) = faulty_store();
        let policy = named_policy("p", per_minute(1));
        let limit = store.rate_limiter(policy.clone());
        assert_admitted(
            &store.as_another_process().rate_limiter(policy).check("x", 1).await.unwrap(),
            0,
        );
        faults.set("charge", BackendFault::SlowReply(SECOND), 1);
        let late = crate::store::spawn({
            let limit = limit.clone();
            async move { limit.check("x", 1).await }
        });
        tokio::time::sleep(SECOND / 2).await;
        store.rate_limiter(named_policy("p", reset)).reset("x").await.unwrap();
        assert_refused(&late.await.unwrap().unwrap(), &["p"]);
        assert_admitted(&limit.check("x", 1).await.unwrap(), 0);
    }
}

/// A check that is dropped during the call for its shadow policy is refunded, so another request
/// may be admitted.
#[tokio::test(start_paused = true)]
async fn refusal_beside_a_shadow_policy_ends_after_a_refund() {
    let (store, faults) = faulty_store();
    let other = store.as_another_process();
    let hour = named_policy("real", Quota::requests(1).per(3600 * SECOND));
    let [leaving, remaining] = [&store, &other].map(|store| {
        store.rate_limiter(hour.clone()).and(named_policy("watched", per_minute(9)).shadow())
    });
    faults.set("charge", BackendFault::SlowReply(SECOND), 2);
    let (dropped, ()) =
        tokio::join!(tokio::time::timeout(SECOND * 9 / 5, leaving.check("x", 1)), async {
            tokio::time::sleep(SECOND * 3 / 2).await;
            assert_refused(&remaining.check("x", 1).await.unwrap(), &["real"]);
        });
    assert!(dropped.is_err(), "it is in the shadow still");
    tokio::time::sleep(SECOND).await;
    assert!(remaining.check("x", 1).await.unwrap().is_admitted());
}

/// The window may end after the block; from then on the store has to count again.
#[tokio::test(start_paused = true)]
async fn penalty_block_is_cached_until_it_ends() {
    let quota = Quota::requests(3).per(3 * SECOND).sliding();
    let limit = Store::memory().rate_limiter(named_policy("p", quota).penalty(2, 5 * SECOND));
    assert_admitted(&limit.check("x", 3).await.unwrap(), 0);
    for _ in 0..2 {
        assert_refused(&limit.check("x", 3).await.unwrap(), &["p"]);
    }
    tokio::time::sleep(5 * SECOND).await;
    assert!(assert_refused(&limit.check("x", 3).await.unwrap(), &["p"]) <= SECOND);
    assert!(
        assert_refused(&limit.check("x", 3).await.unwrap(), &["p"]) > SECOND,
        "it counted twice"
    );
}

/// Operation on two limiters with equal stores, one with a refusal cache and one without.
#[derive(Debug, Clone, Copy)]
enum LimiterOperation {
    Check { key: u8, cost: u64 },
    Sleep { millis: u64 },
    Reset { key: u8 },
}

fn limiter_operations() -> impl Strategy<Value = Vec<LimiterOperation>> {
    let check = (0..3u8, 1..4u64).prop_map(|(key, cost)| LimiterOperation::Check { key, cost });
    let sleep = (1..1500u64).prop_map(|millis| LimiterOperation::Sleep { millis });
    let reset = (0..3u8).prop_map(|key| LimiterOperation::Reset { key });
    proptest::collection::vec(prop_oneof![12 => check, 4 => sleep, 1 => reset], 1..120)
}

fn arbitrary_quota() -> impl Strategy<Value = Quota> {
    let quota = |limit| Quota::requests(limit).per(3 * SECOND);
    (3..8u64, 0..4u8).prop_map(move |(limit, kind)| match kind {
        0 => quota(limit),
        1 => quota(limit).sliding(),
        2 => quota(limit).gcra(),
        _ => quota(limit).burst(3),
    })
}

async fn compare_limiters(policy: Policy, ops: &[LimiterOperation]) -> Result<(), TestCaseError> {
    let (stores, cache_time) = ([Store::memory(), Store::memory()], Duration::ZERO);
    let limits: [RateLimiter; 2] = [
        stores[0].rate_limiter(policy.clone()),
        stores[1].rate_limiter(policy.cache_refusals_for(cache_time)),
    ];
    for op in ops {
        match *op {
            LimiterOperation::Check { key, cost } => {
                let key = key.to_string();
                let one = limits[0].check(&*key, cost).await.unwrap();
                let other = limits[1].check(&*key, cost).await.unwrap();
                prop_assert_eq!(one.is_admitted(), other.is_admitted(), "{:?}", op);
                // Both times are rounded to milliseconds.
                let difference = one.retry_after().abs_diff(other.retry_after());
                prop_assert!(difference <= Duration::from_millis(2), "{:?} {:?}", one, other);
            }
            LimiterOperation::Sleep { millis } => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            LimiterOperation::Reset { key } => {
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
    fn refusal_cache_never_changes_a_decision(quota in arbitrary_quota(), ops in limiter_operations(), penal in any::<bool>()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        let policy = Policy::new(quota);
        let policy = if penal { policy.penalty(2, 5 * SECOND) } else { policy };
        runtime.block_on(compare_limiters(policy, &ops))?;
    }
}

/// Caches and leases use tokio's clock, which does not advance with the store's manual clock.
#[tokio::test]
async fn manual_clock_disables_refusal_cache_and_leases() {
    for policy in [
        named_policy("p", per_minute(2)),
        named_policy("p", per_minute(2).gcra()),
        named_policy("p", per_minute(2)).quota_lease(2),
    ] {
        let clock = Clock::manual();
        let store = Store::memory_with_clock(clock.clone());
        let (limit, layer) =
            (store.rate_limiter(policy.clone()), gate_by_header("a", policy).store(&store));
        for _ in 0..3 {
            for left in [1, 0] {
                assert_admitted(&limit.check("x", 1).await.unwrap(), left);
                assert_eq!(run_request(&layer, 200).await, 200);
            }
            for _ in 0..2 {
                assert_refused(&limit.check("x", 1).await.unwrap(), &["p"]);
                assert_eq!(run_request(&layer, 200).await, 429);
            }
            clock.advance(60 * SECOND);
        }
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        clock.advance(60 * SECOND);
        // A lease would still have its second unit.
        assert_admitted(&limit.check("x", 1).await.unwrap(), 1);
    }
}
