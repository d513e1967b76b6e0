//! Futures that are dropped at each of their await points leave nothing behind.

mod ways;

use std::time::Duration;

use futures_util::FutureExt as _;

pub(crate) use self::ways::{MORE, WAYS, Way, drop_after};
#[cfg(feature = "redis")]
pub(crate) use self::ways::{Moment, drop_told};
use super::SECOND;
use crate::store::{Fault, Store, faulty};

/// Before the end of any lease.
const SOON: Duration = Duration::from_secs(5);

/// On a real clock and a slow machine the undo of a call that may be on its way still is in doubt for a lease.
#[cfg(feature = "redis")]
pub(crate) const LATE: Duration = Duration::from_secs(25);

/// Free for a stranger, with nobody in line, and in this time.
pub(crate) async fn nothing_is_left(store: &Store, within: Duration, context: &str) {
    assert!(store.shutdown(within).await, "{context}: not given back");
    let stranger = store.as_another_process();
    let wait = Duration::from_millis(700);
    let guard = stranger.lock("x").wait(wait).acquire().await;
    let guard = guard.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let probe = store.as_another_process();
    let told = super::busy(probe.lock("x").acquire().await);
    assert_eq!(told.queue_length, 0, "{context}: a place is left");
    guard.release().await;
    let beside = stranger.lock("y").wait(wait).acquire().await;
    beside.unwrap_or_else(|error| panic!("{context}: y: {error:?}")).release().await;
    let lines = store.extension::<crate::lock::wait_queue::LocalQueues>();
    while !lines.is_empty() {
        // A keeper whose waiter has left ends when it has been told.
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_await_nothing_is_left() {
    let between = Duration::from_millis(2);
    for way in WAYS.into_iter().chain(MORE) {
        let mut drops = 0;
        for n in 0.. {
            let (store, faults) = faulty();
            for step in ["acquire", "release", "pass", "downgrade", "replicated"] {
                faults.set(step, Fault::Late(Duration::from_millis(5)), usize::MAX);
            }
            let done = drop_after(n, way, &store, between).await;
            nothing_is_left(&store, SOON, &format!("{way:?} after {n} polls")).await;
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
async fn dropped_while_the_store_is_silent_it_is_given_back_later() {
    let (store, faults) = faulty();
    faults.set("acquire", Fault::Silence, 1);
    assert!(store.lock("x").acquire().now_or_never().is_none());
    nothing_is_left(&store, SOON, "silence").await;
}

/// What lies in a connection that was left may arrive after its undo, which goes by another one: "nothing there" is
/// not the last word then.
#[tokio::test(start_paused = true)]
async fn what_was_sent_before_a_way_was_left_is_undone_for_as_long_as_it_could_hold() {
    for left in [false, true] {
        let (store, faults) = faulty();
        faults.set("acquire", Fault::Late(SECOND), 1);
        let mut asked = Box::pin(store.lock("x").lease(2 * SECOND).acquire());
        assert!((&mut asked).now_or_never().is_none());
        drop(asked);
        if left {
            faults.leave_a_way();
        }
        assert!(store.shutdown(10 * SECOND).await);
        assert_eq!(faults.seen("release") > 1, left, "{} times", faults.seen("release"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_places_that_were_just_left() {
    let (store, faults) = faulty();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The keeper's next look is under way when its waiter leaves.
    faults.set("acquire", Fault::Slow(Duration::from_millis(100)), 1);
    tokio::time::sleep(Duration::from_millis(350)).await;
    waiter.abort();
    let _ = waiter.await;
    assert!(store.shutdown(5 * SECOND).await);
    let told = super::busy(other.as_another_process().lock("x").acquire().await);
    assert_eq!(told.queue_length, 0, "a place is left");
    drop(held);
}

/// The waiter leaves between the end of the guard, which makes a call for both of them, and that call.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_guard_that_was_to_be_passed_on() {
    let (store, faults) = faulty();
    faults.set("release", Fault::Late(Duration::from_millis(100)), 1);
    let strict = || store.lock("x").strict_order();
    let held = strict().acquire().await.expect("it is free");
    let mut waiting = Box::pin(strict().wait(SECOND).acquire());
    assert!((&mut waiting).now_or_never().is_none());
    drop(held);
    drop(waiting);
    assert!(store.shutdown(5 * SECOND).await);
    drop(store.as_another_process().lock("x").acquire().await.expect("it was given back"));
}
