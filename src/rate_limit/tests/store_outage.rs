//! Decisions while the store is unavailable.

use std::time::Duration;

use super::{SECOND, assert_admitted, assert_refused, named_policy, per_minute};
use crate::{
    ErrorKind, Quota, RateLimitOutage,
    rate_limit::RateLimiter,
    store::{BackendFault, FaultSchedule, Store, faulty_store},
};

const ALL_CALLS: usize = 1_000_000;

/// Number of local admissions of `checks` checks.
async fn count_local_admissions(limit: &RateLimiter, key: &str, checks: usize) -> usize {
    let mut passed = 0;
    for _ in 0..checks {
        let decision = limit.check(key, 1).await.unwrap();
        assert!(decision.is_local(), "{decision:?}");
        passed += usize::from(decision.is_admitted());
    }
    passed
}

fn set_charge_fault(faults: &FaultSchedule, fault: BackendFault, calls: usize) {
    faults.set("charge", fault, calls);
    faults.set("limiters", fault, calls);
}

#[tokio::test(start_paused = true)]
async fn unknown_key_has_the_whole_quota_during_an_outage() {
    let (store, faults) = faulty_store();
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    for quota in [per_minute(10), per_minute(10).sliding(), per_minute(20).burst(10)] {
        let limit = store.rate_limiter(quota);
        assert_eq!(count_local_admissions(&limit, "x", 30).await, 10, "{quota:?}");
        // The local limiter refills evenly: ten per minute give at least one unit in six seconds.
        tokio::time::sleep(6 * SECOND).await;
        assert!((1..=2).contains(&count_local_admissions(&limit, "x", 30).await), "{quota:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unstable_store_is_not_called_until_it_recovers() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(10));
    assert_admitted(&limit.check("x", 1).await.unwrap(), 9);
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    assert_eq!(count_local_admissions(&limit, "x", 4).await, 4);
    // The store recovers and fails again.
    for _ in 0..5 {
        set_charge_fault(&faults, BackendFault::Unavailable, 0);
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(count_local_admissions(&limit, "gone", 1).await, 1);
        set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
        tokio::time::sleep(SECOND / 2).await;
    }
    let calls = faults.call_count("charge");
    assert_eq!(count_local_admissions(&limit, "flaps", 2).await, 2);
    assert_eq!(faults.call_count("charge"), calls, "no call is made until the store recovers");
    set_charge_fault(&faults, BackendFault::Unavailable, 0);
    tokio::time::sleep(2 * SECOND).await;
    // Local admissions are not charged to the store.
    assert_admitted(&limit.check("x", 1).await.unwrap(), 8);
}

#[tokio::test(start_paused = true)]
async fn three_consecutive_timeouts_start_an_outage() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(100));
    assert_admitted(&limit.check("x", 1).await.unwrap(), 99);
    faults.set("charge", BackendFault::ReplyTimeout, 1);
    assert_eq!(count_local_admissions(&limit, "x", 1).await, 1);
    assert!(!limit.check("x", 1).await.unwrap().is_local(), "it is asked again");
    faults.set("charge", BackendFault::ReplyTimeout, 3);
    assert_eq!(count_local_admissions(&limit, "x", 3).await, 3);
    assert_eq!(count_local_admissions(&limit, "x", 3).await, 3);
    assert_eq!(faults.remaining("charge"), 0);
    tokio::time::sleep(3 * SECOND).await;
    assert!(!limit.check("x", 1).await.unwrap().is_local());
}

/// A call that the store rejects is no outage.
#[tokio::test(start_paused = true)]
async fn rejected_call_starts_no_outage() {
    let store = Store::memory();
    let policy = |n: usize| named_policy(&n.to_string(), per_minute(9));
    // More counters than one call may have.
    let wrong = (1..101).fold(store.rate_limiter(policy(0)), |limit, n| limit.and(policy(n)));
    assert_eq!(count_local_admissions(&wrong, "x", 5).await, 5);
    assert!(!store.rate_limiter(per_minute(9)).check("x", 1).await.unwrap().is_local());
}

#[tokio::test(start_paused = true)]
async fn strictest_outage_policy_decides() {
    let (store, faults) = faulty_store();
    let local = named_policy("local", per_minute(2));
    let with = |outage| {
        store.rate_limiter(local.clone()).and(named_policy("o", per_minute(9)).on_outage(outage))
    };
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    assert_eq!(count_local_admissions(&with(RateLimitOutage::Admit), "x", 5).await, 2);
    assert_eq!(
        with(RateLimitOutage::Refuse).check("x", 1).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

/// Four processes that know of each other.
async fn start_four_processes() -> (Vec<Store>, FaultSchedule) {
    let (store, faults) = faulty_store();
    let mut all: Vec<_> = (0..3).map(|_| store.as_another_process()).collect();
    all.push(store);
    for each in &all {
        let _ = each.rate_limiter(per_minute(100)).check("warm", 1).await.unwrap();
    }
    tokio::time::sleep(6 * SECOND).await;
    (all, faults)
}

/// The registrations expire during the outage, so the first process with a reply counts only
/// itself.
#[tokio::test(start_paused = true)]
async fn process_shares_last_until_the_outage_ends() {
    let (all, faults) = start_four_processes().await;
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    for each in &all {
        assert_eq!(count_local_admissions(&each.rate_limiter(per_minute(100)), "warm", 1).await, 1);
        let expensive = each.rate_limiter(per_minute(100)).check("x", 50).await.unwrap();
        assert!(expensive.is_local() && expensive.is_admitted(), "no share is too small for it");
    }
    tokio::time::sleep(16 * SECOND).await;
    // One reply, then the outage continues.
    faults.set("limiters", BackendFault::Unavailable, 0);
    let calls = faults.call_count("limiters");
    while faults.call_count("limiters") == calls {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    faults.set("limiters", BackendFault::Unavailable, ALL_CALLS);
    tokio::time::sleep(SECOND).await;
    for (n, each) in all.iter().enumerate() {
        let limit = each.rate_limiter(per_minute(100));
        for _ in 0..3 {
            let expensive = limit.check("x", 50).await.unwrap();
            assert!(
                expensive.is_local() && !expensive.is_admitted(),
                "{n}: a quarter of it is there"
            );
        }
        assert_eq!(count_local_admissions(&limit, "new", 100).await, 25, "{n}");
        let two = each.rate_limiter(named_policy("two", per_minute(2)));
        assert_eq!(count_local_admissions(&two, "x", 20).await, 1, "{n}: one for each");
    }
}

/// The limiter was made for a smaller share and admits no more when processes leave.
#[tokio::test(start_paused = true)]
async fn cost_above_a_past_share_is_refused_after_processes_leave() {
    let (all, faults) = start_four_processes().await;
    let (one, others) = all.split_first().unwrap();
    let limit = one.rate_limiter(per_minute(100));
    faults.set("charge", BackendFault::ReplyTimeout, 1);
    assert!(limit.check("x", 50).await.unwrap().is_admitted());
    for other in others {
        assert!(other.shutdown(SECOND).await);
    }
    tokio::time::sleep(6 * SECOND).await;
    for _ in 0..5 {
        faults.set("charge", BackendFault::ReplyTimeout, 1);
        let decision = limit.check("x", 50).await.unwrap();
        assert!(decision.is_local() && !decision.is_admitted(), "{decision:?}");
        let _ = limit.check("y", 1).await.unwrap();
    }
}

/// The next outage uses the new number of processes.
#[tokio::test(start_paused = true)]
async fn stopped_processes_have_no_share_of_the_next_outage() {
    let (mut all, faults) = start_four_processes().await;
    all.truncate(1);
    let limit = all[0].rate_limiter(per_minute(100));
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    assert_eq!(count_local_admissions(&limit, "x", 100).await, 25);
    tokio::time::sleep(16 * SECOND).await;
    set_charge_fault(&faults, BackendFault::Unavailable, 0);
    tokio::time::sleep(3 * SECOND).await;
    assert!(!limit.check("y", 1).await.unwrap().is_local());
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    assert_eq!(count_local_admissions(&limit, "z", 200).await, 100);
}

/// Earlier local decisions do not count after a reply of the store.
#[tokio::test(start_paused = true)]
async fn outage_starts_with_the_last_known_balance() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(10));
    faults.set("charge", BackendFault::ReplyTimeout, 1);
    assert_eq!(count_local_admissions(&limit, "x", 1).await, 1);
    tokio::time::sleep(60 * SECOND).await;
    assert_admitted(&limit.check("x", 9).await.unwrap(), 1);
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    assert_eq!(count_local_admissions(&limit, "x", 30).await, 1);
    // The local limiter has only that balance.
    assert_eq!(count_local_admissions(&limit, "x", 30).await, 0);
}

/// A cheaper request may still be admitted.
#[tokio::test(start_paused = true)]
async fn expensive_local_refusal_shows_the_local_balance() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(10));
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    for _ in 0..2 {
        assert!(limit.check("x", 4).await.unwrap().is_admitted());
    }
    let decision = limit.check("x", 4).await.unwrap();
    let wait = assert_refused(&decision, &["10-per-60s"]);
    assert!(decision.is_local() && decision.remaining() == 2, "{decision:?}");
    assert!(decision.reset_after() <= 6 * SECOND && wait > 6 * SECOND, "{decision:?}");
    assert_eq!(count_local_admissions(&limit, "x", 5).await, 2);
    let decision = limit.check("x", 1).await.unwrap();
    assert_eq!((decision.remaining(), decision.reset_after()), (0, decision.retry_after()));
}

/// The balance consists of the units left in the store and the unspent ones of the lease, returned
/// or not.
#[tokio::test(start_paused = true)]
async fn outage_starts_with_the_units_left_in_the_lease() {
    for (checks, pause, left) in [(50, 0u32, 50), (45, 0, 55), (45, 3, 55)] {
        let (store, faults) = faulty_store();
        let limit = store.rate_limiter(named_policy("leased", per_minute(100)).quota_lease(10));
        for _ in 0..checks {
            assert!(!limit.check("x", 1).await.unwrap().is_local());
        }
        set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
        assert_eq!(count_local_admissions(&limit, "gone", 1).await, 1);
        tokio::time::sleep(pause * SECOND).await;
        assert_eq!(
            count_local_admissions(&limit, "x", 200).await,
            left,
            "{checks} checks, {pause} s"
        );
    }
}

/// At most one burst and its refill are admitted, however often the store fails. Its replies only
/// reduce the local balance.
#[tokio::test(start_paused = true)]
async fn unstable_store_admits_one_burst_and_its_refill() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(20));
    let start = tokio::time::Instant::now();
    let mut local_count = 0;
    for _ in 0..19 {
        // A reply with remaining units.
        assert!(!limit.check("x", 1).await.unwrap().is_local());
        // Two lost calls; a third one would start an outage.
        for _ in 0..2 {
            faults.set("charge", BackendFault::TimeoutThenRun(3600 * SECOND), 1);
            let decision = limit.check("x", 1).await.unwrap();
            assert!(decision.is_local());
            local_count += u64::from(decision.is_admitted());
        }
    }
    let refilled = start.elapsed().as_secs() / 3 + 1;
    assert!(
        (20..=20 + refilled).contains(&local_count),
        "{local_count}, and {refilled} are refilled"
    );
}

/// The same, with recoveries that are long enough for further calls.
#[tokio::test(start_paused = true)]
async fn repeated_outages_share_one_burst() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(per_minute(20));
    let start = tokio::time::Instant::now();
    let mut local_count = 0;
    for _ in 0..4 {
        set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
        local_count += count_local_admissions(&limit, "x", 30).await;
        set_charge_fault(&faults, BackendFault::Unavailable, 0);
        tokio::time::sleep(3 * SECOND).await;
        assert!(!limit.check("x", 1).await.unwrap().is_local());
    }
    let refilled = usize::try_from(start.elapsed().as_secs() / 3 + 1).unwrap();
    assert!(
        (20..=20 + refilled).contains(&local_count),
        "{local_count}, and {refilled} are refilled"
    );
}

/// Times that exceed the range of the clock.
#[tokio::test(start_paused = true)]
async fn extreme_quotas_do_not_overflow_in_an_outage() {
    let (store, faults) = faulty_store();
    set_charge_fault(&faults, BackendFault::Unavailable, ALL_CALLS);
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    for quota in [
        Quota::requests(1).per(year).burst(u64::MAX),
        Quota::requests(u64::MAX).per(Duration::from_millis(1)),
        Quota::requests(1).per(year),
        Quota::requests(u64::MAX).per(year).gcra(),
    ] {
        assert_eq!(
            count_local_admissions(&store.rate_limiter(quota), "x", 1).await,
            1,
            "{quota:?}"
        );
    }
}

/// Only consecutive failures count; admissions from a lease come between them.
#[tokio::test(start_paused = true)]
async fn leased_admissions_reset_the_failure_count() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(named_policy("leased", per_minute(1000)).quota_lease(2));
    for _ in 0..5 {
        for _ in 0..4 {
            assert!(!limit.check("x", 1).await.unwrap().is_local());
        }
        faults.set("charge", BackendFault::ReplyTimeout, 1);
        assert!(limit.check("x", 1).await.unwrap().is_local());
    }
    assert!(!limit.check("x", 1).await.unwrap().is_local());
}
