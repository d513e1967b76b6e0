//! Quota leases that are prefetched, or granted after their check was dropped.

use std::time::Duration;

use super::{SECOND, assert_admitted, quota_lease::leased_policy, remaining_in_store};
use crate::{
    RateLimitOutage,
    store::{BackendFault, faulty_store},
};

/// The key spends half of its lease within moments.
#[tokio::test(start_paused = true)]
async fn fast_spending_prefetches_the_next_lease() {
    let (store, faults) = faulty_store();
    let policy = leased_policy(1000, 100);
    let limit = store.rate_limiter(policy.clone());
    for n in 0..49 {
        assert_admitted(&limit.check("x", 1).await.unwrap(), 999 - n);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(faults.call_count("charge"), 1);
    assert_admitted(&limit.check("x", 1).await.unwrap(), 950);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(faults.call_count("charge"), 2);
    assert_eq!(
        remaining_in_store(&store, &policy, "x").await,
        850,
        "the unused units of the first lease are returned"
    );
    for n in 50..99 {
        assert_admitted(&limit.check("x", 1).await.unwrap(), 999 - n);
    }
    assert_eq!(faults.call_count("charge"), 3, "one prefetch and no other call");
    assert!(store.shutdown(SECOND).await);
    assert_eq!(
        remaining_in_store(&store, &policy, "x").await,
        901,
        "all unused units are returned"
    );
}

#[tokio::test(start_paused = true)]
async fn slow_spending_prefetches_no_lease() {
    let (store, faults) = faulty_store();
    let limit = store.rate_limiter(leased_policy(1000, 100));
    for n in 0..100 {
        assert_admitted(&limit.check("x", 1).await.unwrap(), 999 - n);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(faults.call_count("charge"), 1);
}

/// A shutdown also returns a lease whose charge is still in flight.
#[tokio::test(start_paused = true)]
async fn shutdown_returns_a_prefetched_lease_in_flight() {
    let (store, faults) = faulty_store();
    let policy = leased_policy(1000, 100);
    let limit = store.rate_limiter(policy.clone());
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    faults.set("charge", BackendFault::SlowReply(SECOND / 10), 1);
    for _ in 0..50 {
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
    }
    assert!(store.shutdown(SECOND).await);
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 949);
}

/// The check that requested the lease was dropped.
#[tokio::test(start_paused = true)]
async fn shutdown_returns_the_lease_of_a_dropped_check() {
    let (store, faults) = faulty_store();
    let policy = leased_policy(1000, 100);
    let limit = store.rate_limiter(policy.clone());
    faults.set("charge", BackendFault::SlowReply(SECOND / 10), 1);
    let check = limit.check("x", 1);
    assert!(tokio::time::timeout(SECOND / 100, check).await.is_err());
    assert!(store.shutdown(SECOND).await);
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 1000);
}

/// A prefetch is tried once. A check without a leased unit charges as usual.
#[tokio::test(start_paused = true)]
async fn failed_prefetch_is_replaced_by_a_regular_charge() {
    let (store, faults) = faulty_store();
    let policy = leased_policy(1000, 100).on_outage(RateLimitOutage::Refuse);
    let limit = store.rate_limiter(policy.clone());
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    faults.set("charge", BackendFault::Unavailable, 1);
    for _ in 0..99 {
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        tokio::task::yield_now().await;
    }
    assert_eq!(faults.call_count("charge"), 2);
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    assert_eq!(faults.call_count("charge"), 3);
    assert_eq!(remaining_in_store(&store, &policy, "x").await, 800);
}
