//! Calls that arrive long after their callers stopped waiting, or twice.

use std::time::Duration;

use tokio::time::Instant;

use super::{SECOND, expect_busy, handover::MS};
use crate::{
    LockGuard,
    clock::Clock,
    lock::ReleaseStatus,
    store::{BackendFault, FaultSchedule, Store, faulty_store, faulty_store_with_clock},
};

/// Longer than the longest pause of a repeated undo, far shorter than a lease.
const UNDO_TIMEOUT: Duration = Duration::from_secs(4);

#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_shorten_an_extension() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").max_hold(300 * SECOND).acquire().await.unwrap();
    faults.set("renew", BackendFault::TimeoutThenRun(SECOND), 1);
    while faults.call_count("renew") == 0 {
        tokio::time::sleep(10 * MS).await;
    }
    tokio::time::sleep(300 * MS).await;
    assert!(guard.extend(60 * SECOND).await.unwrap());
    // The late renewal runs meanwhile, and no other one is due.
    tokio::time::sleep(SECOND).await;
    assert_eq!(faults.call_count("renew"), 2);
    assert!(guard.remaining() > 50 * SECOND);
    let busy = expect_busy(store.as_another_process().lock("x").acquire().await);
    assert!(
        busy.lease_remaining >= guard.remaining(),
        "{:?} of {:?}",
        busy.lease_remaining,
        guard.remaining()
    );
}

/// Returns a guard whose queue task called twice; the first call arrives after one second.
async fn grant_by_second_acquire(store: &Store, faults: &FaultSchedule) -> LockGuard {
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let waiting = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(5 * MS).await;
    faults.set("acquire", BackendFault::TimeoutThenRun(SECOND), 1);
    // The offer wakes the queue task, which calls on a connection that is then abandoned.
    held.release().await;
    tokio::time::sleep(5 * MS).await;
    assert_eq!(faults.remaining("acquire"), 0);
    faults.abandon_connection();
    waiting.await.unwrap().unwrap()
}

async fn assert_free_after_undo(store: &Store, since: Instant, context: &str) {
    tokio::time::sleep_until(since + UNDO_TIMEOUT).await;
    let guard = store.as_another_process().lock("x").acquire().await;
    let guard = guard.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    assert_eq!(guard.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn acquire_arriving_after_the_release_is_undone() {
    for ending in ["released", "dropped", "downgraded", "passed", "handed on"] {
        let (store, faults) = faulty_store();
        let started = Instant::now();
        let guard = grant_by_second_acquire(&store, &faults).await;
        match ending {
            "released" => assert_eq!(guard.release().await, ReleaseStatus::Released),
            "dropped" => drop(guard),
            "downgraded" => drop(guard.downgrade().await.unwrap()),
            ending => {
                // In strict order the options differ, so one call releases the lock and acquires it
                // again.
                let next = store.lock("x").wait(SECOND);
                let next = if ending == "passed" { next.strict_order() } else { next };
                let next = crate::store::spawn(next.acquire());
                tokio::time::sleep(MS).await;
                drop(guard);
                drop(next.await.unwrap().unwrap());
            }
        }
        assert!(started.elapsed() < SECOND, "the first call has not arrived yet");
        assert_free_after_undo(&store, started, ending).await;
    }
}

/// The call was sent again because its connection broke, and only the second copy was answered.
#[tokio::test(start_paused = true)]
async fn copy_of_an_answered_acquire_is_undone() {
    for busy_at_first in [false, true] {
        let (store, faults) = faulty_store();
        let other = store.as_another_process();
        let started = Instant::now();
        let held =
            if busy_at_first { Some(other.lock("x").acquire().await.unwrap()) } else { None };
        faults.set("acquire", BackendFault::DuplicateRun(SECOND), 1);
        let outcome = store.lock("x").acquire().await;
        assert_eq!(outcome.is_err(), busy_at_first);
        drop((outcome, held));
        assert_free_after_undo(&store, started, "a copy").await;
    }
}

/// The undo removed a queue entry, and the late call creates another one.
#[tokio::test(start_paused = true)]
async fn undo_continues_after_its_first_finding() {
    let (store, faults) = faulty_store();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    let started = Instant::now();
    let waiting = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(5 * MS).await;
    faults.set("acquire", BackendFault::TimeoutThenRun(SECOND), 1);
    while faults.remaining("acquire") > 0 {
        tokio::time::sleep(10 * MS).await;
    }
    tokio::time::sleep(260 * MS).await;
    faults.abandon_connection();
    waiting.abort();
    tokio::time::sleep(5 * MS).await;
    drop(held);
    assert_free_after_undo(&store, started, "queue entry").await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_undone_twice_without_a_doubt() {
    let (store, faults) = faulty_store();
    for _ in 0..5 {
        let guard = store.lock("x").wait(SECOND).acquire().await.unwrap();
        expect_busy(store.lock("x").acquire().await);
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        drop(store.lock("x").acquire().await.unwrap());
    }
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.call_count("release"), 10);
}

/// The entry expired with the wait: no call is in flight, and a shutdown waits for nothing.
#[tokio::test(start_paused = true)]
async fn expired_queue_entry_is_undone_once() {
    let clock = Clock::manual();
    let (store, faults) = faulty_store_with_clock(clock.clone());
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let waiter = crate::store::spawn(store.lock("x").wait(850 * MS).acquire());
    tokio::time::sleep(800 * MS).await;
    clock.advance(SECOND);
    expect_busy(waiter.await.unwrap());
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.call_count("release"), 1);
    drop(held);
}
