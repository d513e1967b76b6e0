//! Futures that are dropped at each of their await points leave nothing behind.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use futures_util::FutureExt as _;

use super::SECOND;
use crate::{
    lock::LockRequest,
    store::{Fault, Store, faulty},
};

/// Polls `n` times, with all that is to be done in between, then drops; true if it was done before.
pub(crate) async fn poll_then_drop(n: usize, future: impl Future, between: Duration) -> bool {
    let mut future = pin!(future);
    for _ in 0..n {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready()));
        if polled.await {
            return true;
        }
        tokio::time::sleep(between).await;
    }
    false
}

/// What is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// Asking for a free lock, once or with a wait.
    Try,
    Wait,
    /// Waiting for one that another process has, and gives back meanwhile.
    WaitForOther,
    /// Waiting for one that this process has.
    WaitHere,
    Reader,
    Permit,
    /// Giving it back, to the store or past others who wait here.
    Release,
    Pass,
    Downgrade,
}

pub(crate) const WAYS: [Way; 9] = [
    Way::Try,
    Way::Wait,
    Way::WaitForOther,
    Way::WaitHere,
    Way::Reader,
    Way::Permit,
    Way::Release,
    Way::Pass,
    Way::Downgrade,
];

/// Drops it after `n` polls; true if that was too late.
pub(crate) async fn drop_after(n: usize, way: Way, store: &Store, between: Duration) -> bool {
    let other = store.as_another_process();
    let plain = |store: &Store| store.lock("x");
    let waiting = |request: LockRequest| request.wait(20 * SECOND).acquire();
    match way {
        Way::Try => poll_then_drop(n, plain(store).acquire(), between).await,
        Way::Wait => poll_then_drop(n, waiting(plain(store)), between).await,
        Way::WaitForOther => {
            let held = plain(&other).acquire().await.expect("it is free");
            let releasing = tokio::spawn(async move {
                tokio::time::sleep(3 * between).await;
                held.release().await;
            });
            let done = poll_then_drop(n, waiting(plain(store)), between).await;
            releasing.await.expect("no panic");
            done
        }
        Way::WaitHere => {
            let held = plain(store).acquire().await.expect("it is free");
            let releasing = tokio::spawn(async move {
                tokio::time::sleep(3 * between).await;
                held.release().await;
            });
            let done = poll_then_drop(n, waiting(plain(store)), between).await;
            releasing.await.expect("no panic");
            done
        }
        Way::Reader => {
            let held = plain(&other).shared().acquire().await.expect("it is free");
            let done = poll_then_drop(n, waiting(plain(store).shared()), between).await;
            drop(held);
            done
        }
        Way::Permit => {
            let held = plain(&other).permits(2).acquire().await.expect("it is free");
            let done = poll_then_drop(n, waiting(plain(store).permits(2)), between).await;
            drop(held);
            done
        }
        Way::Release => {
            let held = plain(store).acquire().await.expect("it is free");
            poll_then_drop(n, held.release(), between).await
        }
        Way::Pass => {
            // In strict order each release is a call that asks for the next.
            let strict = || plain(store).strict_order();
            let held = strict().acquire().await.expect("it is free");
            let next = tokio::spawn(waiting(strict()));
            tokio::time::sleep(between).await;
            let done = poll_then_drop(n, held.release(), between).await;
            drop(next.await.expect("no panic").expect("served all the same"));
            done
        }
        Way::Downgrade => {
            let held = plain(store).acquire().await.expect("it is free");
            poll_then_drop(n, held.downgrade(), between).await
        }
    }
    .also_drained(&other)
    .await
}

trait Drained: Sized {
    async fn also_drained(self, other: &Store) -> Self;
}

impl Drained for bool {
    async fn also_drained(self, other: &Store) -> Self {
        assert!(other.shutdown(5 * SECOND).await, "another process gives back too");
        self
    }
}

/// Free for a stranger, with nobody in line, and soon: not by the end of a lease.
pub(crate) async fn nothing_is_left(store: &Store, context: &str) {
    assert!(store.shutdown(5 * SECOND).await, "{context}: not given back");
    let stranger = store.as_another_process();
    let wait = Duration::from_millis(700);
    let guard = stranger.lock("x").wait(wait).acquire().await;
    let guard = guard.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let probe = store.as_another_process();
    let told = super::busy(probe.lock("x").acquire().await);
    assert_eq!(told.line, 0, "{context}: a place is left");
    guard.release().await;
    let lines = store.room::<crate::lock::line::Lines>();
    while !lines.is_empty() {
        // A keeper whose waiter has left ends when it has been told.
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_await_nothing_is_left() {
    let between = Duration::from_millis(2);
    for way in WAYS {
        let mut drops = 0;
        for n in 0.. {
            let (store, faults) = faulty();
            for step in ["acquire", "release", "pass", "downgrade"] {
                faults.set(step, Fault::Late(Duration::from_millis(5)), usize::MAX);
            }
            let done = drop_after(n, way, &store, between).await;
            nothing_is_left(&store, &format!("{way:?} after {n} polls")).await;
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
    nothing_is_left(&store, "silence").await;
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
    let waiter = tokio::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The keeper's next look is under way when its waiter leaves.
    faults.set("acquire", Fault::Slow(Duration::from_millis(100)), 1);
    tokio::time::sleep(Duration::from_millis(350)).await;
    waiter.abort();
    let _ = waiter.await;
    assert!(store.shutdown(5 * SECOND).await);
    let told = super::busy(other.as_another_process().lock("x").acquire().await);
    assert_eq!(told.line, 0, "a place is left");
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
