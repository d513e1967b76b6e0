//! Futures dropped at any of their await points leave nothing behind.

mod drop_scenario;

use std::time::Duration;

use futures_util::FutureExt as _;

#[cfg(feature = "redis")]
pub(crate) use self::drop_scenario::{DropPhase, drop_after_with_observer};
pub(crate) use self::drop_scenario::{DropScenario, FAST_SCENARIOS, SLOW_SCENARIOS, drop_after};
use super::SECOND;
use crate::store::{BackendFault, Store, faulty_store};

/// Shorter than any lease.
const UNDO_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than a lease: on a real clock and a slow machine, a call in flight can be in doubt for
/// that long.
#[cfg(feature = "redis")]
pub(crate) const REAL_CLOCK_UNDO_TIMEOUT: Duration = Duration::from_secs(25);

/// Asserts that the undos end within `timeout`, the lock is free for another process, and its queue
/// is empty.
pub(crate) async fn assert_nothing_left(store: &Store, timeout: Duration, context: &str) {
    assert!(store.shutdown(timeout).await, "{context}: the lock is not released");
    let other = store.as_another_process();
    let wait = Duration::from_millis(700);
    let guard = other.lock("x").wait(wait).acquire().await;
    let guard = guard.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let probe = store.as_another_process();
    let busy = super::expect_busy(probe.lock("x").acquire().await);
    assert_eq!(busy.queue_length, 0, "{context}: a queue entry is left");
    guard.release().await;
    let second = other.lock("y").wait(wait).acquire().await;
    second.unwrap_or_else(|error| panic!("{context}: y: {error:?}")).release().await;
    let local_queues = store.extension::<crate::lock::local_wait_queue::LocalQueues>();
    while !local_queues.is_empty() {
        // A queue task ends after it has noticed that its waiter left.
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn drop_at_any_await_leaves_nothing() {
    let between = Duration::from_millis(2);
    for scenario in FAST_SCENARIOS.into_iter().chain(SLOW_SCENARIOS) {
        let mut drops = 0;
        for n in 0.. {
            let (store, faults) = faulty_store();
            for step in ["acquire", "release", "pass", "downgrade", "replicated"] {
                faults.set(step, BackendFault::SlowCall(Duration::from_millis(5)), usize::MAX);
            }
            let done = drop_after(n, scenario, &store, between).await;
            assert_nothing_left(&store, UNDO_TIMEOUT, &format!("{scenario:?} after {n} polls"))
                .await;
            if done {
                break;
            }
            drops = n;
        }
        assert!(drops >= 1, "{scenario:?} never waited");
    }
}

/// The call of the dropped future is never answered.
#[tokio::test(start_paused = true)]
async fn acquire_dropped_on_a_silent_store_is_undone_later() {
    let (store, faults) = faulty_store();
    faults.set("acquire", BackendFault::NeverReplies, 1);
    assert!(store.lock("x").acquire().now_or_never().is_none());
    assert_nothing_left(&store, UNDO_TIMEOUT, "silence").await;
}

/// A call in an abandoned connection may arrive after its undo, which uses another connection. So
/// an undo that finds nothing must be repeated.
#[tokio::test(start_paused = true)]
async fn acquire_on_an_abandoned_connection_is_undone_repeatedly() {
    for is_abandoned in [false, true] {
        let (store, faults) = faulty_store();
        faults.set("acquire", BackendFault::SlowCall(SECOND), 1);
        let mut acquire = Box::pin(store.lock("x").lease(2 * SECOND).acquire());
        assert!((&mut acquire).now_or_never().is_none());
        drop(acquire);
        if is_abandoned {
            faults.abandon_connection();
        }
        assert!(store.shutdown(10 * SECOND).await);
        assert_eq!(
            faults.call_count("release") > 1,
            is_abandoned,
            "{} times",
            faults.call_count("release")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_queue_entries_just_left() {
    let (store, faults) = faulty_store();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The next poll of the queue task is in flight when its waiter leaves.
    faults.set("acquire", BackendFault::SlowReply(Duration::from_millis(100)), 1);
    tokio::time::sleep(Duration::from_millis(350)).await;
    waiter.abort();
    let _ = waiter.await;
    assert!(store.shutdown(5 * SECOND).await);
    let busy = super::expect_busy(other.as_another_process().lock("x").acquire().await);
    assert_eq!(busy.queue_length, 0, "a queue entry is left");
    drop(held);
}

/// The guard was dropped and is about to make one call for itself and the waiter. The waiter leaves
/// before that call.
#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_a_guard_of_a_cancelled_handover() {
    let (store, faults) = faulty_store();
    faults.set("release", BackendFault::SlowCall(Duration::from_millis(100)), 1);
    let strict = || store.lock("x").strict_order();
    let held = strict().acquire().await.expect("it is free");
    let mut waiting = Box::pin(strict().wait(SECOND).acquire());
    assert!((&mut waiting).now_or_never().is_none());
    drop(held);
    drop(waiting);
    assert!(store.shutdown(5 * SECOND).await);
    drop(store.as_another_process().lock("x").acquire().await.expect("the lock is released"));
}
