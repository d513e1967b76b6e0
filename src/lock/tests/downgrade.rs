//! Held locks after the downgrade of their guard to shared mode.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::{sync::oneshot, time::Instant};

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    lock::{AcquireError, LockGuard, LockRequest},
    store::{BackendFault, LockLoss, LockMode, Store, faulty_store},
};

fn reader(store: &Store) -> LockRequest {
    store.lock("x").shared().wait(5 * SECOND)
}

/// A guard is downgraded while a task runs in its scope and a writer of another process is queued.
#[tokio::test(start_paused = true)]
async fn scope_of_a_downgraded_guard_shares_its_lock() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    let (copy, fence) = (guard.held_lock(), guard.fence());
    let (go, go_received) = oneshot::channel::<()>();
    let task_store = store.clone();
    let scoped_task = crate::store::spawn(guard.scope(async move {
        go_received.await.unwrap();
        let exclusive = task_store.lock("x").acquire().await;
        (exclusive, reader(&task_store).acquire().await)
    }));
    let guard = guard.downgrade().await.unwrap();
    let writing =
        crate::store::spawn(store.as_another_process().lock("x").wait(60 * SECOND).acquire());
    tokio::time::sleep(MS).await;
    assert!(!copy.remaining().is_zero() && copy.loss().is_none());
    go.send(()).unwrap();
    let started = Instant::now();
    let (exclusive, inner) = scoped_task.await.unwrap();
    assert!(matches!(exclusive, Err(AcquireError::WouldDeadlock)), "{exclusive:?}");
    let inner = inner.expect("it is a share");
    assert_eq!((inner.fence(), started.elapsed()), (fence, Duration::ZERO));
    // The last guard releases the lock.
    drop(guard);
    tokio::time::sleep(20 * SECOND).await;
    assert!(!writing.is_finished() && !copy.remaining().is_zero());
    drop(inner);
    let next = tokio::time::timeout(SECOND, writing).await.expect("the lock is released");
    assert!(copy.remaining().is_zero() && copy.loss().is_none());
    drop(next.unwrap().unwrap());
    drop(acquire_after_shutdown(&store).await);
}

async fn revoke_lease_in_mode(store: &Store, guard: &LockGuard, mode: LockMode) {
    let lease = guard.lease().unwrap();
    store.backend().release(lease.key.clone(), lease.token.clone(), mode).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn held_copies_report_a_loss_after_the_downgrade() {
    let store = Store::memory();
    let guard = store.lock("x").lease(3 * SECOND).acquire().await.unwrap();
    let (copy, observer) = (guard.held_lock(), guard.held_lock());
    // Waits for the loss before, during and after the downgrade.
    let lost = crate::store::spawn(async move { observer.lost().await });
    tokio::time::sleep(MS).await;
    let guard = guard.downgrade().await.unwrap();
    assert!(copy.lost().now_or_never().is_none());
    revoke_lease_in_mode(&store, &guard, LockMode::Shared).await;
    let reported = tokio::time::timeout(3 * SECOND, lost).await.expect("within a renewal");
    assert_eq!(reported.unwrap(), LockLoss::Taken);
    assert_eq!((copy.loss(), guard.loss()), (Some(LockLoss::Taken), Some(LockLoss::Taken)));
    assert!(copy.remaining().is_zero());
}

#[tokio::test(start_paused = true)]
async fn held_copies_report_the_end_of_max_hold() {
    let store = Store::memory();
    let guard = store.lock("x").lease(SECOND).max_hold(4 * SECOND).acquire().await.unwrap();
    let (copy, started) = (guard.held_lock(), Instant::now());
    tokio::time::sleep(SECOND).await;
    let guard = guard.downgrade().await.unwrap();
    let loss = tokio::time::timeout(10 * SECOND, copy.lost()).await.expect("it ends");
    assert_eq!((loss, guard.loss()), (LockLoss::HeldTooLong, Some(LockLoss::HeldTooLong)));
    assert!(started.elapsed() <= 4 * SECOND, "{:?}", started.elapsed());
}

/// The store keeps the extended lease, and the downgraded guard relies on it.
#[tokio::test(start_paused = true)]
async fn downgrade_keeps_an_extension() {
    let terms: [fn(LockRequest) -> LockRequest; 2] =
        [|request| request.lease(SECOND), |request| request.fixed_lease(SECOND)];
    for terms in terms {
        let (store, faults) = faulty_store();
        let guard = terms(store.lock("x")).acquire().await.unwrap();
        assert!(guard.extend(30 * SECOND).await.unwrap());
        let left = guard.remaining();
        let guard = guard.downgrade().await.unwrap();
        assert!(guard.remaining() >= left, "{left:?}: {:?}", guard.remaining());
        faults.set("renew", BackendFault::Unavailable, usize::MAX);
        tokio::time::sleep(29 * SECOND).await;
        expect_busy(store.as_another_process().lock("x").acquire().await);
        assert_eq!(guard.loss(), None);
        drop(guard);
        drop(acquire_after_shutdown(&store).await);
    }
}

/// The downgrade finds that the lock was lost, and all copies report the loss.
#[tokio::test(start_paused = true)]
async fn held_copies_report_a_loss_found_by_the_downgrade() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    let copy = guard.held_lock();
    revoke_lease_in_mode(&store, &guard, LockMode::Exclusive).await;
    assert!(matches!(guard.downgrade().await, Err(AcquireError::Busy(_))));
    assert_eq!(
        (copy.loss(), copy.lost().now_or_never()),
        (Some(LockLoss::Taken), Some(LockLoss::Taken))
    );
}

/// The lock was released, not lost.
#[tokio::test(start_paused = true)]
async fn held_copies_end_when_the_downgrade_fails() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").acquire().await.unwrap();
    let copy = guard.held_lock();
    faults.set("downgrade", BackendFault::Unavailable, 1);
    assert!(matches!(guard.downgrade().await, Err(AcquireError::Fault(_))));
    assert!(copy.remaining().is_zero() && copy.loss().is_none());
    drop(acquire_after_shutdown(&store).await);
}

/// The renewals ran and their replies were lost: the lease continues in the store, but its holder
/// has seen the loss.
#[tokio::test(start_paused = true)]
async fn lost_lock_is_not_regained_by_a_downgrade() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(3 * SECOND).acquire().await.unwrap();
    let copy = guard.held_lock();
    faults.set("renew", BackendFault::ReplyTimeout, usize::MAX);
    let loss = guard.lost().await;
    faults.set("renew", BackendFault::ReplyTimeout, 0);
    let downgraded = guard.downgrade().await;
    assert!(matches!(downgraded, Err(AcquireError::Busy(_))), "{downgraded:?}");
    assert_eq!(copy.loss(), Some(loss));
    assert!(copy.remaining().is_zero());
    // The lock is released at once.
    let next = store.as_another_process().lock("x").wait(SECOND).acquire().await;
    drop(next.expect("before its lease ends"));
    drop(acquire_after_shutdown(&store).await);
}
