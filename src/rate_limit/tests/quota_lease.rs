//! Quota leases: units charged in advance.

use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;

use super::{
    SECOND, assert_admitted, assert_refused,
    gate_requests::{gate_by_header, new_request},
    named_policy, per_minute, remaining_in_store,
};
use crate::{
    Policy, Quota, RateStatus,
    gate::{Gate as _, GateRequest as _, InitialVerdict, Verdict},
    rate_limit::RateLimiter,
    store::{BackendFault, Store, faulty_store, with_stalled_stores},
};

pub(super) fn leased_policy(requests: u64, n: u32) -> Policy {
    named_policy("leased", per_minute(requests)).quota_lease(n)
}

#[tokio::test(start_paused = true)]
async fn request_with_a_leased_unit_passes_without_a_store_call() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", leased_policy(5, 2)).store(&store);
    let InitialVerdict::Enter(context) = limit.inspect(&mut new_request()) else {
        panic!("nothing was leased yet")
    };
    assert!(matches!(limit.enter(context).await, Verdict::Pass(_)));
    let mut second = new_request();
    let InitialVerdict::PassLight(status) = limit.inspect(&mut second) else {
        panic!("a unit is there")
    };
    assert_eq!(second.extension::<RateStatus>().unwrap().decision().remaining(), 3);
    let mut headers = Vec::new();
    limit.settle_with_headers(status, |name, value| headers.push((name, value))).unwrap();
    assert!(headers.contains(&("ratelimit", "\"leased\";r=3;t=60".into())), "{headers:?}");
    assert!(matches!(limit.inspect(&mut new_request()), InitialVerdict::Enter(_)), "all are spent");
    assert_eq!(faults.call_count("charge"), 1);
}

/// The charge may be refunded, so the ticket must own it.
#[tokio::test(start_paused = true)]
async fn refundable_leased_charge_needs_a_full_ticket() {
    let store = Store::memory();
    let limit =
        gate_by_header("a", leased_policy(5, 2)).refund_on(|status| status >= 500).store(&store);
    for _ in 0..2 {
        let InitialVerdict::Enter(context) = limit.inspect(&mut new_request()) else {
            panic!("passed")
        };
        let Verdict::Pass(ticket) = limit.enter(context).await else { panic!("refused") };
        assert!(limit.try_light_ticket(ticket).is_err(), "it has something to settle");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_expires_with_its_window() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(leased_policy(100, 50));
    assert_admitted(&limit.check("x", 1).await.unwrap(), 99);
    // The limiter stays in use, so that the lease is not returned.
    for _ in 0..119 {
        tokio::time::sleep(SECOND / 2).await;
        let _ = limit.check("y", 1).await.unwrap();
    }
    tokio::time::sleep(SECOND).await;
    let before = faults.call_count("charge");
    assert_admitted(&limit.check("x", 1).await.unwrap(), 99);
    assert_eq!(faults.call_count("charge"), before + 1, "a new lease is charged");
}

#[tokio::test(start_paused = true)]
async fn unused_leased_units_are_returned() {
    let (store, faults) = faulty_store();
    let policy = leased_policy(100, 10);
    let limit = store.rate_limiter(policy.clone());
    assert_admitted(&limit.check("x", 1).await.unwrap(), 99);
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 90);
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 99);
    assert_admitted(&limit.check("x", 1).await.unwrap(), 98);
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 89);
    assert!(store.shutdown(SECOND).await);
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 98, "by the shutdown");
    assert_eq!(faults.call_count("settle_charge"), 2);
}

/// A peek shows what a check of this process would get, not the units left for other processes.
#[tokio::test(start_paused = true)]
async fn peek_counts_units_leased_by_the_process() {
    let store = Store::memory();
    let policy = leased_policy(10, 10);
    let limit = store.rate_limiter(policy.clone());
    for n in (5..10).rev() {
        assert_admitted(&limit.check("x", 1).await.unwrap(), n);
        assert_admitted(&limit.peek("x", 1).await.unwrap(), n);
    }
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 0, "for another process");
    assert_refused(&limit.peek("x", 2).await.unwrap(), &["leased"]);
}

/// The check that requested the lease is dropped. The lease was charged and serves the next check.
#[tokio::test(start_paused = true)]
async fn dropped_check_keeps_its_lease_for_the_next() {
    let (store, faults) = faulty_store();
    let policy = leased_policy(100, 10);
    let limit = store.rate_limiter(policy.clone());
    faults.set("charge", BackendFault::SlowReply(SECOND / 10), 1);
    let check = tokio::time::timeout(SECOND / 20, limit.check("x", 1));
    assert!(check.await.is_err());
    tokio::time::sleep(SECOND / 10).await;
    for n in 0..10 {
        assert_admitted(&limit.check("x", 1).await.unwrap(), 99 - n);
    }
    assert_eq!(faults.call_count("charge"), 1);
}

/// A check during a lease request in flight charges for itself.
#[tokio::test(start_paused = true)]
async fn check_does_not_wait_for_a_lease_refill_in_flight() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(leased_policy(100, 10));
    faults.set("charge", BackendFault::SlowReply(SECOND), 1);
    let first = crate::store::spawn({
        let limit = limit.clone();
        async move { limit.check("x", 1).await }
    });
    tokio::time::sleep(SECOND / 10).await;
    let second = tokio::time::timeout(SECOND / 10, limit.check("x", 1)).await;
    assert!(second.expect("at once").unwrap().is_admitted());
    assert!(first.await.unwrap().unwrap().is_admitted());
    assert_eq!(remaining_in_store(&store, &leased_policy(100, 10), "x").await, 100 - 11);
}

#[tokio::test(start_paused = true)]
async fn refusal_by_another_policy_returns_the_leased_unit() {
    let store = Store::memory();
    let limit =
        store.rate_limiter(leased_policy(100, 10)).and(named_policy("tight", per_minute(1)));
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    for _ in 0..5 {
        store.rate_limiter(named_policy("tight", per_minute(1))).reset("z").await.unwrap();
        assert_refused(&limit.check("x", 1).await.unwrap(), &["tight"]);
    }
    assert!(store.shutdown(SECOND).await);
    assert_eq!(remaining_in_store(&store, &leased_policy(100, 10), "x").await, 99);
}

/// Number of admissions of `checks` checks in each of the processes.
async fn count_shared_admissions(
    store: &Store,
    policy: &Policy,
    processes: usize,
    checks: usize,
) -> usize {
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
async fn eight_processes_admit_at_most_and_almost_the_quota() {
    for (quota, n) in [(100, 10), (1000, 64), (400, 3), (50, 1000)] {
        let store = Store::memory();
        let policy = leased_policy(quota, n);
        let passed = count_shared_admissions(&store, &policy, 8, 300).await;
        let quota = usize::try_from(quota).unwrap();
        println!("figure: let in beyond a quota {}", passed.saturating_sub(quota));
        assert!(passed <= quota, "{passed} of {quota} by {n}");
        let early = 7 * (usize::try_from(n).unwrap() - 1);
        assert!(passed + early >= quota, "{passed} of {quota} by {n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each window admits at most the quota, and no unit is lost after leases were returned.
    #[test]
    fn leases_admit_at_most_the_quota_and_lose_no_unit(
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
                    // The store's window starts with the first admitted charge.
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
            prop_assert_eq!(remaining_in_store(&store, &policy, "x").await, expected);
            Ok(())
        })?;
    }
}

/// Units that a lease requests in vain were requested by no client, so they count for no penalty.
#[tokio::test(start_paused = true)]
async fn partial_lease_grant_counts_no_penalty() {
    let store = Store::memory();
    let limit = store.rate_limiter(leased_policy(10, 100).penalty(3, 300 * SECOND));
    for n in (0..10).rev() {
        assert_admitted(&limit.check("x", 1).await.unwrap(), n);
    }
    let wait = assert_refused(&limit.check("x", 1).await.unwrap(), &["leased"]);
    assert!(wait <= 60 * SECOND, "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
}

#[tokio::test(start_paused = true)]
async fn refusal_without_a_lease_names_all_violated_policies() {
    let store = Store::memory();
    let day = named_policy("day", Quota::requests(2).per(1000 * SECOND));
    let both = |store: &Store| store.rate_limiter(leased_policy(2, 2)).and(day.clone());
    for _ in 0..2 {
        assert!(both(&store).check("x", 1).await.unwrap().is_admitted());
    }
    let other = both(&store.as_another_process());
    let wait = assert_refused(&other.check("x", 1).await.unwrap(), &["leased", "day"]);
    tokio::time::sleep(wait).await;
    assert!(other.check("x", 1).await.unwrap().is_admitted(), "after {wait:?}");
}

/// Other processes may return leases, so a refusal may end before its window, also for a cost above
/// the leased units.
#[tokio::test(start_paused = true)]
async fn units_returned_by_another_process_become_available() {
    for cost in [1, 2] {
        let (store, faults) = faulty_store();
        let policy = leased_policy(10, 8);
        let holder = store.as_another_process();
        assert_admitted(&holder.rate_limiter(policy.clone()).check("x", 1).await.unwrap(), 9);
        let limit = store.rate_limiter(policy);
        for _ in 1..2 / cost {
            assert!(limit.check("x", cost).await.unwrap().is_admitted());
        }
        let last = limit.check("x", cost).await.unwrap();
        assert!(last.is_admitted() && (cost == 1 || last.remaining() == 0), "{last:?}");
        let calls = faults.call_count("charge");
        assert_refused(&limit.check("x", cost).await.unwrap(), &["leased"]);
        if cost == 2 {
            assert_eq!(faults.call_count("charge"), calls, "the refusal is cached for a moment");
        }
        tokio::time::sleep(5 * SECOND).await;
        assert!(limit.check("x", cost).await.unwrap().is_admitted());
    }
}

/// Returned units also end the cached refusals of local limiters of the same name that have no
/// lease.
#[tokio::test(start_paused = true)]
async fn returned_units_end_refusals_of_unleased_limiters() {
    let store = Store::memory();
    assert_admitted(&store.rate_limiter(leased_policy(10, 10)).check("x", 1).await.unwrap(), 9);
    let plain = store.rate_limiter(named_policy("leased", per_minute(10)));
    assert_refused(&plain.check("x", 1).await.unwrap(), &["leased"]);
    tokio::time::sleep(3 * SECOND).await;
    assert_admitted(&plain.check("x", 1).await.unwrap(), 8);
}

/// Number of admissions of thirty checks.
async fn count_admissions(limit: &RateLimiter) -> usize {
    let mut passed = 0;
    for _ in 0..30 {
        passed += usize::from(limit.check("x", 1).await.unwrap().is_admitted());
    }
    passed
}

/// A reset discards units leased before it, also if the reply of the charge arrives after or during
/// the reset.
#[tokio::test(start_paused = true)]
async fn reset_discards_units_leased_before_it() {
    for (call, fault) in [
        ("charge", BackendFault::SlowReply(SECOND)),
        ("reset_charges", BackendFault::SlowCall(2 * SECOND)),
    ] {
        let (store, faults) = faulty_store();
        let limit = store.rate_limiter(leased_policy(10, 5));
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
        assert_eq!(count_admissions(&limit).await, 10, "{call}");
    }
}

/// A reset discards the leases of every quota of the policy's name.
#[tokio::test(start_paused = true)]
async fn reset_by_another_quota_discards_leased_units() {
    let store = Store::memory();
    let limit = store.rate_limiter(leased_policy(10, 5));
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    store.rate_limiter(named_policy("leased", per_minute(3))).reset("x").await.unwrap();
    assert_eq!(count_admissions(&limit).await, 10);
}

/// The store's windows last whole milliseconds and may start within one.
#[tokio::test(start_paused = true)]
async fn leased_unit_is_never_spent_in_the_next_window() {
    let step = Duration::from_micros(100);
    for _ in 0..10 {
        tokio::time::advance(step).await;
        let (store, faults) = faulty_store();
        let other = store.as_another_process();
        let policy =
            Policy::new(Quota::requests(10).per(SECOND / 2)).with_name("p").quota_lease(10);
        let (limit, others) = (store.rate_limiter(policy.clone()), other.rate_limiter(policy));
        assert_admitted(&limit.check("x", 1).await.unwrap(), 9);
        tokio::time::advance(SECOND / 2 - 15 * step).await;
        while others.peek("x", 1).await.unwrap().remaining() < 10 {
            tokio::time::advance(step).await;
        }
        let before = faults.call_count("charge");
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        assert_eq!(faults.call_count("charge"), before + 1, "it was spent from the last window's");
    }
}

#[test]
fn check_with_a_stalled_store_runtime_charges_directly() {
    with_stalled_stores(|[store, ..]| async move {
        let decision = store.rate_limiter(leased_policy(100, 10)).check("x", 1).await.unwrap();
        assert_admitted(&decision, 99);
    });
}
