//! Grants to waiters whose futures are not polled.

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    lock::ReleaseStatus,
    store::{BackendFault, Store, faulty_store},
};

/// Polls a future once and asserts that it waits.
fn poll_into_queue<F: Future + Unpin>(mut future: F) -> F {
    assert!((&mut future).now_or_never().is_none(), "it waits");
    future
}

/// An unreceived grant is not renewed. Otherwise a `select!` loop that is busy in another branch
/// would block all other processes.
#[tokio::test(start_paused = true)]
async fn unreceived_grant_ends_with_its_lease() {
    let store = Store::memory();
    let held = acquire_after_shutdown(&store).await;
    let short_wait = poll_into_queue(Box::pin(store.lock("x").wait(SECOND).acquire()));
    let long_wait = poll_into_queue(Box::pin(store.lock("x").wait(60 * SECOND).acquire()));
    held.release().await;
    let started = Instant::now();
    let other = store.as_another_process();
    let next = other.lock("x").wait(60 * SECOND).acquire().await.expect("it is free in the end");
    // The leases of both waiters.
    assert!(started.elapsed() <= 21 * SECOND, "{:?}", started.elapsed());
    expect_busy(short_wait.await);
    let released = crate::store::spawn(async move {
        tokio::time::sleep(SECOND).await;
        next.release().await
    });
    let guard = long_wait.await.expect("it waits for longer, and has it again");
    assert_eq!(guard.loss(), None);
    assert_eq!(released.await.unwrap(), ReleaseStatus::Released);
    assert_eq!(guard.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn grant_received_late_is_renewed_from_then_on() {
    let store = Store::memory();
    for late in [0, 4, 9] {
        let held = acquire_after_shutdown(&store).await;
        let waiter = poll_into_queue(Box::pin(store.lock("x").wait(60 * SECOND).acquire()));
        held.release().await;
        tokio::time::sleep(late * SECOND).await;
        let guard = waiter.await.expect("it is there");
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(guard.loss(), None, "after {late} s");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
}

/// The waiter that did not receive its grant is dropped. The lease of the next waiter is renewed.
#[tokio::test(start_paused = true)]
async fn unreceived_lease_is_renewed_for_the_next_waiter() {
    let (store, faults) = faulty_store();
    let request = || store.lock("x").handover_limits(16, 60 * SECOND).wait(60 * SECOND);
    let held = request().acquire().await.unwrap();
    let first = poll_into_queue(Box::pin(request().acquire()));
    let next = crate::store::spawn(request().acquire());
    tokio::time::sleep(MS).await;
    held.release().await;
    tokio::time::sleep(4 * SECOND).await;
    drop(first);
    let guard = next.await.unwrap().expect("it is the next");
    assert_eq!(faults.call_count("release"), 0, "the lease passed on");
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(guard.loss(), None);
    assert_eq!(guard.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_ended_before_receipt_is_acquired_anew() {
    let store = Store::memory();
    let held = acquire_after_shutdown(&store).await;
    let fixed = store.lock("x").fixed_lease(SECOND).wait(60 * SECOND);
    let waiter = poll_into_queue(Box::pin(fixed.acquire()));
    held.release().await;
    tokio::time::sleep(5 * SECOND).await;
    let guard = waiter.await.expect("it may wait for longer, and is asked for again");
    assert_eq!(guard.loss(), None);
    assert_eq!(guard.release().await, ReleaseStatus::Released);
}

/// The leader makes the call for all waiters in its own future. A task continues the call if that
/// future is not polled.
#[tokio::test(start_paused = true)]
async fn unpolled_leader_does_not_block_other_waiters() {
    for fault in [BackendFault::SlowCall(MS * 10), BackendFault::SlowReply(MS * 10)] {
        let (store, faults) = faulty_store();
        faults.set("acquire", fault, 1);
        let request = || store.lock("x").wait(60 * SECOND).acquire();
        let first = poll_into_queue(Box::pin(request()));
        let started = Instant::now();
        let next = request().await.expect("it is there when the lease of the first has ended");
        assert!(started.elapsed() < 12 * SECOND, "{fault:?}: {:?}", started.elapsed());
        let third = crate::store::spawn(request().into_future());
        tokio::time::sleep(MS).await;
        next.release().await;
        third.await.unwrap().expect("the third waiter follows the second").release().await;
        first
            .await
            .unwrap_or_else(|e| panic!("{fault:?}: it may wait still: {e:?}"))
            .release()
            .await;
        drop(acquire_after_shutdown(&store).await);
    }
}

/// The reply to the leader arrives when a task already calls for all: the lock is busy, and the
/// leader waits like the others.
#[tokio::test(start_paused = true)]
async fn leader_polled_late_waits_like_the_others() {
    let (store, faults) = faulty_store();
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    faults.set("acquire", BackendFault::SlowReply(SECOND), 1);
    let request = || crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire().into_future());
    let all = [request(), request(), request()];
    tokio::time::sleep(3 * SECOND).await;
    held.release().await;
    for one in all {
        one.await.unwrap().expect("each has it").release().await;
    }
    drop(acquire_after_shutdown(&store).await);
}
