//! Charges that were made in advance.

use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;

use super::{
    SECOND, admitted,
    gate::{by, view},
    left, minute, named, refused,
};
use crate::{
    Policy, Quota, RateStatus,
    gate::{Gate as _, GateRequest as _, InitialVerdict, Verdict},
    rate_limit::RateLimiter,
    store::{Fault, Store, elsewhere, faulty},
};

pub(super) fn leased(requests: u64, n: u32) -> Policy {
    named("leased", minute(requests)).quota_lease(n)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_a_leased_charge_passes_before_anything_is_awaited() {
    let (store, faults) = faulty();
    let limit = by("a", leased(5, 2)).store(&store);
    let InitialVerdict::Enter(facts) = limit.inspect(&mut view()) else {
        panic!("nothing was leased yet")
    };
    assert!(matches!(limit.enter(facts).await, Verdict::Pass(_)));
    let mut second = view();
    let InitialVerdict::PassLight(status) = limit.inspect(&mut second) else {
        panic!("a unit is there")
    };
    assert_eq!(second.extension::<RateStatus>().unwrap().decision().remaining(), 3);
    let mut fields = Vec::new();
    limit.settle_with_headers(status, |name, value| fields.push((name, value))).unwrap();
    assert!(fields.contains(&("ratelimit", "\"leased\";r=3;t=60".into())), "{fields:?}");
    assert!(matches!(limit.inspect(&mut view()), InitialVerdict::Enter(_)), "all are spent");
    assert_eq!(faults.seen("charge"), 1);
}

/// It might have to be given back: the ticket has to know of it.
#[tokio::test(start_paused = true)]
async fn a_leased_charge_that_may_be_refunded_is_not_spent_in_passing() {
    let store = Store::memory();
    let limit = by("a", leased(5, 2)).refund_on(|status| status >= 500).store(&store);
    for _ in 0..2 {
        let InitialVerdict::Enter(facts) = limit.inspect(&mut view()) else { panic!("passed") };
        let Verdict::Pass(ticket) = limit.enter(facts).await else { panic!("refused") };
        assert!(limit.try_light_ticket(ticket).is_err(), "it has something to settle");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_lapses_with_its_window() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(leased(100, 50));
    admitted(&limit.check("x", 1).await.unwrap(), 99);
    // In use all the time, so that it is not given back.
    for _ in 0..119 {
        tokio::time::sleep(SECOND / 2).await;
        let _ = limit.check("y", 1).await.unwrap();
    }
    tokio::time::sleep(SECOND).await;
    let before = faults.seen("charge");
    admitted(&limit.check("x", 1).await.unwrap(), 99);
    assert_eq!(faults.seen("charge"), before + 1, "a new one was taken");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_used_is_given_back() {
    let (store, faults) = faulty();
    let policy = leased(100, 10);
    let limit = store.rate_limiter(policy.clone());
    admitted(&limit.check("x", 1).await.unwrap(), 99);
    assert_eq!(left(&store, &policy, "x").await, 90);
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(left(&store, &policy, "x").await, 99);
    admitted(&limit.check("x", 1).await.unwrap(), 98);
    assert_eq!(left(&store, &policy, "x").await, 89);
    assert!(store.shutdown(SECOND).await);
    assert_eq!(left(&store, &policy, "x").await, 98, "by the shutdown");
    assert_eq!(faults.seen("settle_charge"), 2);
}

/// Who looks is told what a check of this process would be told, and what is left for others is no matter.
#[tokio::test(start_paused = true)]
async fn a_look_counts_what_is_leased_here() {
    let store = Store::memory();
    let policy = leased(10, 10);
    let limit = store.rate_limiter(policy.clone());
    for n in (5..10).rev() {
        admitted(&limit.check("x", 1).await.unwrap(), n);
        admitted(&limit.peek("x", 1).await.unwrap(), n);
    }
    assert_eq!(left(&store, &policy, "x").await, 0, "for another process");
    refused(&limit.peek("x", 2).await.unwrap(), &["leased"]);
}

/// Whoever asks for the lease may leave: it was charged, and is there for the next.
#[tokio::test(start_paused = true)]
async fn who_leaves_loses_no_lease() {
    let (store, faults) = faulty();
    let policy = leased(100, 10);
    let limit = store.rate_limiter(policy.clone());
    faults.set("charge", Fault::Slow(SECOND / 10), 1);
    let asking = tokio::time::timeout(SECOND / 20, limit.check("x", 1));
    assert!(asking.await.is_err());
    tokio::time::sleep(SECOND / 10).await;
    for n in 0..10 {
        admitted(&limit.check("x", 1).await.unwrap(), 99 - n);
    }
    assert_eq!(faults.seen("charge"), 1);
}

/// Those who come while a lease is under way ask for themselves.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_lease_of_another() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(leased(100, 10));
    faults.set("charge", Fault::Slow(SECOND), 1);
    let first = crate::store::spawn({
        let limit = limit.clone();
        async move { limit.check("x", 1).await }
    });
    tokio::time::sleep(SECOND / 10).await;
    let second = tokio::time::timeout(SECOND / 10, limit.check("x", 1)).await;
    assert!(second.expect("at once").unwrap().is_admitted());
    assert!(first.await.unwrap().unwrap().is_admitted());
    assert_eq!(left(&store, &leased(100, 10), "x").await, 100 - 11);
}

#[tokio::test(start_paused = true)]
async fn a_unit_goes_back_if_another_policy_refuses() {
    let store = Store::memory();
    let limit = store.rate_limiter(leased(100, 10)).and(named("tight", minute(1)));
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    for _ in 0..5 {
        store.rate_limiter(named("tight", minute(1))).reset("z").await.unwrap();
        refused(&limit.check("x", 1).await.unwrap(), &["tight"]);
    }
    assert!(store.shutdown(SECOND).await);
    assert_eq!(left(&store, &leased(100, 10), "x").await, 99);
}

/// How many of `checks` at each of the processes get in.
async fn shared(store: &Store, policy: &Policy, processes: usize, checks: usize) -> usize {
    let others: Vec<_> = (0..processes).map(|_| store.as_another_process()).collect();
    let limits: Vec<RateLimiter> = others.iter().map(|s| s.rate_limiter(policy.clone())).collect();
    let process = |limit: RateLimiter| {
        crate::store::spawn(async move {
            let mut passed = 0;
            for _ in 0..checks {
                passed += usize::from(limit.check("x", 1).await.unwrap().is_admitted());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            passed
        })
    };
    let passed: usize =
        join_all(limits.into_iter().map(process)).await.into_iter().map(|p| p.unwrap()).sum();
    for other in others {
        assert!(other.shutdown(SECOND).await);
    }
    passed
}

#[tokio::test(start_paused = true)]
async fn eight_processes_let_in_no_more_than_the_quota_and_little_less() {
    for (quota, n) in [(100, 10), (1000, 64), (400, 3), (50, 1000)] {
        let store = Store::memory();
        let policy = leased(quota, n);
        let passed = shared(&store, &policy, 8, 300).await;
        let quota = usize::try_from(quota).unwrap();
        println!("figure: let in beyond a quota {}", passed.saturating_sub(quota));
        assert!(passed <= quota, "{passed} of {quota} by {n}");
        let early = 7 * (usize::try_from(n).unwrap() - 1);
        assert!(passed + early >= quota, "{passed} of {quota} by {n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In each window, at most the quota; and with what is given back, no unit is lost.
    #[test]
    fn leases_let_in_what_the_quota_has(
        quota in 1..60u64,
        n in 2..40u32,
        rounds in proptest::collection::vec((0..3usize, 1..20u8, 0..2500u64), 1..40),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = Store::memory();
            let policy = Policy::new(Quota::requests(quota).per(5 * SECOND)).with_name("p").quota_lease(n);
            let processes: Vec<_> = (0..3).map(|_| store.as_another_process()).collect();
            let limits: Vec<_> = processes.iter().map(|s| s.rate_limiter(policy.clone())).collect();
            let (mut passed, mut since) = (0, None);
            for (process, checks, pause) in rounds {
                for _ in 0..checks {
                    let now = tokio::time::Instant::now();
                    let decision = limits[process].check("x", 1).await.unwrap();
                    // The window as the store has it: it begins with the first charge that is let in.
                    if since.is_none_or(|since| now >= since + 5 * SECOND) {
                        (since, passed) = (Some(now), 0);
                    }
                    passed += u64::from(decision.is_admitted());
                    prop_assert!(passed <= quota, "{} of {}", passed, quota);
                }
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            for process in &processes {
                assert!(process.shutdown(SECOND).await);
            }
            let over = since.is_none_or(|since| since + 5 * SECOND <= tokio::time::Instant::now());
            let expected = if over { quota } else { quota - passed };
            prop_assert_eq!(left(&store, &policy, "x").await, expected);
            Ok(())
        })?;
    }
}

/// What a lease asks for and does not get was asked for by nobody.
#[tokio::test(start_paused = true)]
async fn nobody_is_punished_for_what_a_lease_did_not_get() {
    let store = Store::memory();
    let limit = store.rate_limiter(leased(10, 100).penalty(3, 300 * SECOND));
    for n in (0..10).rev() {
        admitted(&limit.check("x", 1).await.unwrap(), n);
    }
    let wait = refused(&limit.check("x", 1).await.unwrap(), &["leased"]);
    assert!(wait <= 60 * SECOND, "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_lease_is_told_what_the_other_policies_say() {
    let store = Store::memory();
    let day = named("day", Quota::requests(2).per(1000 * SECOND));
    let both = |store: &Store| store.rate_limiter(leased(2, 2)).and(day.clone());
    for _ in 0..2 {
        assert!(both(&store).check("x", 1).await.unwrap().is_admitted());
    }
    let other = both(&store.as_another_process());
    let wait = refused(&other.check("x", 1).await.unwrap(), &["leased", "day"]);
    tokio::time::sleep(wait).await;
    assert!(other.check("x", 1).await.unwrap().is_admitted(), "after {wait:?}");
}

/// Leases of others may be given back, so a refusal may end before the window does, also for a request that costs more than
/// what is leased.
#[tokio::test(start_paused = true)]
async fn what_others_give_back_is_soon_there() {
    for cost in [1, 2] {
        let (store, faults) = faulty();
        let policy = leased(10, 8);
        let holder = store.as_another_process();
        admitted(&holder.rate_limiter(policy.clone()).check("x", 1).await.unwrap(), 9);
        let limit = store.rate_limiter(policy);
        for _ in 1..2 / cost {
            assert!(limit.check("x", cost).await.unwrap().is_admitted());
        }
        let last = limit.check("x", cost).await.unwrap();
        assert!(last.is_admitted() && (cost == 1 || last.remaining() == 0), "{last:?}");
        let asked = faults.seen("charge");
        refused(&limit.check("x", cost).await.unwrap(), &["leased"]);
        if cost == 2 {
            assert_eq!(faults.seen("charge"), asked, "it is known for a moment");
        }
        tokio::time::sleep(5 * SECOND).await;
        assert!(limit.check("x", cost).await.unwrap().is_admitted());
    }
}

/// Also to those of the same name here that lease nothing, whose refusals are remembered for as long as the store said.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_is_there_for_who_was_refused_beside_it() {
    let store = Store::memory();
    admitted(&store.rate_limiter(leased(10, 10)).check("x", 1).await.unwrap(), 9);
    let plain = store.rate_limiter(named("leased", minute(10)));
    refused(&plain.check("x", 1).await.unwrap(), &["leased"]);
    tokio::time::sleep(3 * SECOND).await;
    admitted(&plain.check("x", 1).await.unwrap(), 8);
}

/// How many of thirty more get in.
async fn passed(limit: &RateLimiter) -> usize {
    let mut passed = 0;
    for _ in 0..30 {
        passed += usize::from(limit.check("x", 1).await.unwrap().is_admitted());
    }
    passed
}

/// What was charged before a reset is of what it has forgotten, also if the answer comes later, or has come while
/// the reset was under way.
#[tokio::test(start_paused = true)]
async fn units_from_before_a_reset_are_forgotten() {
    for (call, fault) in
        [("charge", Fault::Slow(SECOND)), ("reset_charges", Fault::Late(2 * SECOND))]
    {
        let (store, faults) = faulty();
        let limit = store.rate_limiter(leased(10, 5));
        faults.set(call, fault, 1);
        let check = async |after| {
            tokio::time::sleep(after).await;
            limit.check("x", 1).await.unwrap().is_admitted()
        };
        let reset = async {
            tokio::time::sleep(SECOND / 2).await;
            limit.reset("x").await.unwrap();
        };
        let after = if call == "charge" { Duration::ZERO } else { SECOND };
        let (admitted, ()) = tokio::join!(check(after), reset);
        assert!(admitted);
        assert_eq!(passed(&limit).await, 10, "{call}");
    }
}

/// Whoever resets a key need not know by which quota it is leased.
#[tokio::test(start_paused = true)]
async fn a_reset_by_another_quota_forgets_units_too() {
    let store = Store::memory();
    let limit = store.rate_limiter(leased(10, 5));
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    store.rate_limiter(named("leased", minute(3))).reset("x").await.unwrap();
    assert_eq!(passed(&limit).await, 10);
}

/// The store's windows are of whole milliseconds, and begin in the middle of one.
#[tokio::test(start_paused = true)]
async fn no_unit_is_spent_in_the_next_window() {
    let step = Duration::from_micros(100);
    for _ in 0..10 {
        tokio::time::advance(step).await;
        let (store, faults) = faulty();
        let other = store.as_another_process();
        let policy =
            Policy::new(Quota::requests(10).per(SECOND / 2)).with_name("p").quota_lease(10);
        let (limit, others) = (store.rate_limiter(policy.clone()), other.rate_limiter(policy));
        admitted(&limit.check("x", 1).await.unwrap(), 9);
        tokio::time::advance(SECOND / 2 - 15 * step).await;
        while others.peek("x", 1).await.unwrap().remaining() < 10 {
            tokio::time::advance(step).await;
        }
        let before = faults.seen("charge");
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        assert_eq!(faults.seen("charge"), before + 1, "it was spent from the last window's");
    }
}

#[test]
fn a_charge_is_made_alone_where_nobody_would_fetch_more() {
    elsewhere(|[store, ..]| async move {
        let decision = store.rate_limiter(leased(100, 10)).check("x", 1).await.unwrap();
        admitted(&decision, 99);
    });
}
