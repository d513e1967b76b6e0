//! Duration and options of leases.

use std::time::Duration;

use tokio::time::Instant;

use super::{SECOND, expect_busy};
use crate::{
    lock::{LockGuard, LockRequest},
    store::{BackendFault, LockLoss, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn unbounded_leases_do_not_affect_other_locks() {
    let store = Store::memory();
    let mut held = Vec::new();
    for (i, lease) in [Duration::MAX, SECOND, SECOND, SECOND].iter().enumerate() {
        let request = store.lock(format!("{i}").as_str()).lease(*lease);
        let request = request.max_hold(Duration::MAX).wait(Duration::MAX);
        held.push(request.acquire().await.expect("it is free"));
    }
    let fixed = store.lock("fixed").fixed_lease(Duration::MAX);
    let fixed = fixed.max_hold(Duration::MAX);
    held.push(fixed.acquire().await.expect("it is free"));
    tokio::time::sleep(100 * SECOND).await;
    for guard in &held {
        assert!(guard.remaining() > SECOND / 2, "{guard:?}");
    }
}

/// A lease of ten seconds, renewed for a minute.
#[tokio::test(start_paused = true)]
async fn default_lease_terms_match_the_documentation() {
    let (margin, store) = (Duration::from_millis(200), Store::memory());
    let guard = store.lock("x").acquire().await.expect("it is free");
    let started = Instant::now();
    let left = expect_busy(store.as_another_process().lock("x").acquire().await).lease_remaining;
    assert!(left <= 10 * SECOND && left + margin >= 10 * SECOND, "{left:?}");
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    let held = started.elapsed();
    assert!(held <= 60 * SECOND && held + margin >= 60 * SECOND, "{held:?}");
}

async fn assert_ends_at(request: LockRequest, store: &Store, end: Duration) {
    let guard = request.acquire().await.expect("it is free");
    let started = Instant::now();
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    let lost_after = started.elapsed();
    let margin = Duration::from_millis(50);
    assert!(lost_after <= end && lost_after + margin >= end, "{lost_after:?}");
    let other = store.as_another_process();
    let wait = end.saturating_sub(lost_after) + margin;
    let next = other.lock("x").wait(wait).acquire().await;
    drop(next.expect("it has ended in the store too"));
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_lock_for_any_lease() {
    for lease in [SECOND, 2 * SECOND, 10 * SECOND] {
        let store = Store::memory();
        let request = store.lock("x").lease(lease).max_hold(2 * SECOND);
        assert_ends_at(request, &store, 2 * SECOND).await;
    }
    let store = Store::memory();
    let request = store.lock("x").lease(SECOND);
    assert_ends_at(request.max_hold(5 * SECOND / 2), &store, 5 * SECOND / 2).await;
    assert_ends_at(store.lock("x").fixed_lease(SECOND), &store, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_renewal_does_not_hide_the_loss() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(3 * SECOND).acquire().await.unwrap();
    faults.set("renew", BackendFault::SlowReply(60 * SECOND), usize::MAX);
    let started = Instant::now();
    assert_eq!(guard.lost().await, LockLoss::Lapsed);
    let lost_after = started.elapsed();
    assert!(lost_after < 3 * SECOND, "{lost_after:?}");
}

/// Acquires with the first waiter's options and grants to the second one, since the first waiter
/// left while the call was in flight.
async fn grant_to_second_waiter(
    first: fn(LockRequest) -> LockRequest,
    second: RequestSetter,
) -> (Store, LockGuard) {
    let (store, faults) = faulty_store();
    let held = store.as_another_process().lock("x").acquire().await;
    let ask = |terms: RequestSetter| terms(store.lock("x").wait(60 * SECOND)).acquire();
    let first = crate::store::spawn(ask(first));
    // The clock is paused, so a sleep ends when all tasks are idle.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = crate::store::spawn(ask(second));
    tokio::time::sleep(Duration::from_millis(5)).await;
    faults.set("acquire", BackendFault::SlowReply(SECOND / 10), 1);
    held.expect("it is free").release().await;
    while faults.remaining("acquire") > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.abort();
    (store, second.await.expect("no panic").expect("it is free"))
}

type RequestSetter = fn(LockRequest) -> LockRequest;

#[tokio::test(start_paused = true)]
async fn fixed_grant_is_renewed_for_a_renewing_waiter() {
    let (_store, guard) = grant_to_second_waiter(
        |first| first.fixed_lease(2 * SECOND),
        |second| second.lease(2 * SECOND),
    )
    .await;
    tokio::time::sleep(10 * SECOND).await;
    assert!(guard.remaining() > SECOND);
}

#[tokio::test(start_paused = true)]
async fn renewed_grant_ends_for_a_fixed_lease_waiter() {
    let (_store, guard) = grant_to_second_waiter(
        |first| first.lease(2 * SECOND),
        |second| second.fixed_lease(SECOND),
    )
    .await;
    let started = Instant::now();
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    assert!(started.elapsed() <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn short_grant_is_not_given_to_a_long_lease_waiter() {
    let (_store, guard) =
        grant_to_second_waiter(|first| first.lease(SECOND), |second| second.lease(10 * SECOND))
            .await;
    assert!(guard.remaining() > 9 * SECOND, "the lock was acquired again");
}

/// The store never shortens a lease, and neither does the guard.
#[tokio::test(start_paused = true)]
async fn extension_never_shortens_a_lease() {
    let store = Store::memory();
    let request = store.lock("x").lease(SECOND);
    for request in [request.clone(), request.fixed_lease(SECOND)] {
        let guard = request.acquire().await.unwrap();
        assert!(guard.extend(30 * SECOND).await.unwrap());
        let left = guard.remaining();
        for _ in 0..10 {
            assert!(guard.extend(SECOND / 10).await.unwrap());
        }
        assert!(guard.remaining() >= left, "{left:?}: {:?}", guard.remaining());
        guard.release().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lock_is_held_for_at_least_100_ms() {
    let store = Store::memory();
    let guard = store.lock("x").max_hold(Duration::ZERO).acquire().await.unwrap();
    assert!(guard.held_lock().loss().is_none());
    let started = Instant::now();
    guard.lost().await;
    assert!(started.elapsed() > Duration::from_millis(90), "{:?}", started.elapsed());
}
