//! Futures that are dropped at each of their await points leave nothing behind.

mod drop_scenario;

use std::time::Duration;

use futures_util::FutureExt as _;

#[cfg(feature = "redis")]
pub(crate) use self::drop_scenario::{DropPhase, drop_after_with_observer};
pub(crate) use self::drop_scenario::{DropScenario, FAST_SCENARIOS, SLOW_SCENARIOS, drop_after};
use super::SECOND;
use crate::store::{BackendFault, Store, faulty_store};

/// Before the end of any lease.
const UNDO_TIMEOUT: Duration = Duration::from_secs(5);

/// On a real clock and a slow machine the undo of a call that may be on its way still is in doubt for a lease.
#[cfg(feature = "redis")]
pub(crate) const REAL_CLOCK_UNDO_TIMEOUT: Duration = Duration::from_secs(25);

/// Free for a stranger, with nobody in line, and in this time.
pub(crate) async fn assert_nothing_left(store: &Store, within: Duration, context: &str) {
    assert!(store.shutdown(within).await, "{context}: not given back");
    let stranger = store.as_another_process();
    let wait = Duration::from_millis(700);
    let guard = stranger.lock("x").wait(wait).acquire().await;
    let guard = guard.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let probe = store.as_another_process();
    let told = super::expect_busy(probe.lock("x").acquire().await);
    assert_eq!(told.queue_length, 0, "{context}: a place is left");
    guard.release().await;
    let beside = stranger.lock("y").wait(wait).acquire().await;
    beside.unwrap_or_else(|error| panic!("{context}: y: {error:?}")).release().await;
    let lines = store.extension::<crate::lock::local_wait_queue::LocalQueues>();
    while !lines.is_empty() {
        // A keeper whose waiter has left ends when it has been told.
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn drop_at_any_await_leaves_nothing() {
    let between = Duration::from_millis(2);
    for way in FAST_SCENARIOS.into_iter().chain(SLOW_SCENARIOS) {
        let mut drops = 0;
        for n in 0.. {
            let (store, faults) = faulty_store();
            for step in ["acquire", "release", "pass", "downgrade", "replicated"] {
                faults.set(step, BackendFault::SlowCall(Duration::from_millis(5)), usize::MAX);
            }
            let done = drop_after(n, way, &store, between).await;
            assert_nothing_left(&store, UNDO_TIMEOUT, &format!("{way:?} after {n} polls")).await;
            if done {
                break;
            }
            drops = n;
        }
        assert!(drops >= 1, "{way:?} never waited");
    }
}

/// Also a future that was never polled, or whose first poll is under way on a store that is silent.
#[tokio::test(start_paused = true)]
async fn acquire_dropped_on_a_silent_store_is_undone_later() {
    let (store, faults) = faulty_store();
    faults.set("acquire", BackendFault::NeverReplies, 1);
    assert!(store.lock("x").acquire().now_or_never().is_none());
    assert_nothing_left(&store, UNDO_TIMEOUT, "silence").await;
}

/// What lies in a connection that was left may arrive after its undo, which goes by another one: "nothing there" is
/// not the last word then.
#[tokio::test(start_paused = true)]
async fn acquire_on_an_abandoned_connection_is_undone_repeatedly() {
    for left in [false, true] {
        let (store, faults) = faulty_store();
        faults.set("acquire", BackendFault::SlowCall(SECOND), 1);
        let mut asked = Box::pin(store.lock("x").lease(2 * SECOND).acquire());
        assert!((&mut asked).now_or_never().is_none());
        drop(asked);
        if left {
            faults.abandon_connection();
        }
        assert!(store.shutdown(10 * SECOND).await);
        assert_eq!(
            faults.call_count("release") > 1,
            left,
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
    // The keeper's next look is under way when its waiter leaves.
    faults.set("acquire", BackendFault::SlowReply(Duration::from_millis(100)), 1);
    tokio::time::sleep(Duration::from_millis(350)).await;
    waiter.abort();
    let _ = waiter.await;
    assert!(store.shutdown(5 * SECOND).await);
    let told = super::expect_busy(other.as_another_process().lock("x").acquire().await);
    assert_eq!(told.queue_length, 0, "a place is left");
    drop(held);
}

/// The waiter leaves between the end of the guard, which makes a call for both of them, and that call.
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
    drop(store.as_another_process().lock("x").acquire().await.expect("it was given back"));
}
