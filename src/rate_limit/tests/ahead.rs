//! Leases that are fetched before they are needed, or while who asked has gone.

use std::time::Duration;

use super::{SECOND, admitted, leases::leased, left};
use crate::{
    RateLimitOutage,
    store::{Fault, faulty},
};

/// Of a key that spends half of its lease within moments.
#[tokio::test(start_paused = true)]
async fn more_is_fetched_before_a_lease_is_spent() {
    let (store, faults) = faulty();
    let policy = leased(1000, 100);
    let limit = store.rate_limiter(policy.clone());
    for n in 0..49 {
        admitted(&limit.check("x", 1).await.unwrap(), 999 - n);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(faults.seen("charge"), 1);
    admitted(&limit.check("x", 1).await.unwrap(), 950);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(faults.seen("charge"), 2);
    assert_eq!(left(&store, &policy, "x").await, 850, "what was spent, and no more");
    for n in 50..99 {
        admitted(&limit.check("x", 1).await.unwrap(), 999 - n);
    }
    assert_eq!(faults.seen("charge"), 3, "that look, and nothing else");
    assert!(store.shutdown(SECOND).await);
    assert_eq!(left(&store, &policy, "x").await, 901, "what is left of all of it is given back");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_fetched_ahead_without_haste() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(leased(1000, 100));
    for n in 0..100 {
        admitted(&limit.check("x", 1).await.unwrap(), 999 - n);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(faults.seen("charge"), 1);
}

/// A shutdown finds what is still on its way.
#[tokio::test(start_paused = true)]
async fn what_is_being_fetched_ahead_is_given_back_too() {
    let (store, faults) = faulty();
    let policy = leased(1000, 100);
    let limit = store.rate_limiter(policy.clone());
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    faults.set("charge", Fault::Slow(SECOND / 10), 1);
    for _ in 0..50 {
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
    }
    assert!(store.shutdown(SECOND).await);
    assert_eq!(left(&store, &policy, "x").await, 949);
}

/// Whoever asked for it has gone.
#[tokio::test(start_paused = true)]
async fn what_is_being_fetched_for_nobody_is_given_back_too() {
    let (store, faults) = faulty();
    let policy = leased(1000, 100);
    let limit = store.rate_limiter(policy.clone());
    faults.set("charge", Fault::Slow(SECOND / 10), 1);
    let check = limit.check("x", 1);
    assert!(tokio::time::timeout(SECOND / 100, check).await.is_err());
    assert!(store.shutdown(SECOND).await);
    assert_eq!(left(&store, &policy, "x").await, 1000);
}

/// It is tried once: who finds no unit asks as ever.
#[tokio::test(start_paused = true)]
async fn what_does_not_come_ahead_harms_nobody() {
    let (store, faults) = faulty();
    let policy = leased(1000, 100).on_outage(RateLimitOutage::Refuse);
    let limit = store.rate_limiter(policy.clone());
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    faults.set("charge", Fault::Away, 1);
    for _ in 0..99 {
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        tokio::task::yield_now().await;
    }
    assert_eq!(faults.seen("charge"), 2);
    assert!(limit.check("x", 1).await.unwrap().is_admitted());
    assert_eq!(faults.seen("charge"), 3);
    assert_eq!(left(&store, &policy, "x").await, 800);
}
