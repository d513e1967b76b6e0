//! Calls that arrive long after their callers stopped waiting for them, or a second time.

use std::time::Duration;

use tokio::time::Instant;

use super::{SECOND, busy, handover::MS};
use crate::{
    LockGuard,
    clock::Clock,
    lock::ReleaseStatus,
    store::{Fault, Faults, Store, faulty, faulty_with_clock},
};

/// Beyond the longest pause of an undo that is said again, far within a lease.
const SOON: Duration = Duration::from_secs(4);

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_late_shortens_no_extension() {
    let (store, faults) = faulty();
    let guard = store.lock("x").max_hold(300 * SECOND).acquire().await.unwrap();
    faults.set("renew", Fault::Stray(SECOND), 1);
    while faults.seen("renew") == 0 {
        tokio::time::sleep(10 * MS).await;
    }
    tokio::time::sleep(300 * MS).await;
    assert!(guard.extend(60 * SECOND).await.unwrap());
    // The late one runs meanwhile, and no other is due.
    tokio::time::sleep(SECOND).await;
    assert_eq!(faults.seen("renew"), 2);
    assert!(guard.remaining() > 50 * SECOND);
    let told = busy(store.as_another_process().lock("x").acquire().await);
    assert!(
        told.lease_remaining >= guard.remaining(),
        "{:?} of {:?}",
        told.lease_remaining,
        guard.remaining()
    );
}

/// A guard whose keeper asked twice: the first call arrives after a second.
async fn granted_at_the_second_call(store: &Store, faults: &Faults) -> LockGuard {
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let waiting = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(5 * MS).await;
    faults.set("acquire", Fault::Stray(SECOND), 1);
    // It is told of the offer, and its call goes by a way that is left.
    held.release().await;
    tokio::time::sleep(5 * MS).await;
    assert_eq!(faults.left("acquire"), 0);
    faults.leave_a_way();
    waiting.await.unwrap().unwrap()
}

async fn is_free_soon(store: &Store, since: Instant, how: &str) {
    tokio::time::sleep_until(since + SOON).await;
    let guard = store.as_another_process().lock("x").acquire().await;
    let guard = guard.unwrap_or_else(|error| panic!("{how}: {error:?}"));
    assert_eq!(guard.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_when_its_lock_was_given_back_is_undone() {
    for how in ["released", "dropped", "downgraded", "passed", "handed on"] {
        let (store, faults) = faulty();
        let started = Instant::now();
        let guard = granted_at_the_second_call(&store, &faults).await;
        match how {
            "released" => assert_eq!(guard.release().await, ReleaseStatus::Released),
            "dropped" => drop(guard),
            "downgraded" => drop(guard.downgrade().await.unwrap()),
            how => {
                // In strict order the terms differ: it is given back and asked for again in one call.
                let next = store.lock("x").wait(SECOND);
                let next = if how == "passed" { next.strict_order() } else { next };
                let next = crate::store::spawn(next.acquire());
                tokio::time::sleep(MS).await;
                drop(guard);
                drop(next.await.unwrap().unwrap());
            }
        }
        assert!(started.elapsed() < SECOND, "the first call has not arrived yet");
        is_free_soon(&store, started, how).await;
    }
}

/// The call was sent again because its connection broke, and only the second copy was answered.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_call_that_was_answered_is_undone() {
    for busy_at_first in [false, true] {
        let (store, faults) = faulty();
        let other = store.as_another_process();
        let started = Instant::now();
        let held =
            if busy_at_first { Some(other.lock("x").acquire().await.unwrap()) } else { None };
        faults.set("acquire", Fault::Copy(SECOND), 1);
        let asked = store.lock("x").acquire().await;
        assert_eq!(asked.is_err(), busy_at_first);
        drop((asked, held));
        is_free_soon(&store, started, "a copy").await;
    }
}

/// The undo of a place found it; the call that was late makes another.
#[tokio::test(start_paused = true)]
async fn an_undo_is_not_over_with_the_first_thing_that_it_finds() {
    let (store, faults) = faulty();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    let started = Instant::now();
    let waiting = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    tokio::time::sleep(5 * MS).await;
    faults.set("acquire", Fault::Stray(SECOND), 1);
    while faults.left("acquire") > 0 {
        tokio::time::sleep(10 * MS).await;
    }
    tokio::time::sleep(260 * MS).await;
    faults.leave_a_way();
    waiting.abort();
    tokio::time::sleep(5 * MS).await;
    drop(held);
    is_free_soon(&store, started, "a place").await;
}

#[tokio::test(start_paused = true)]
async fn without_a_doubt_nothing_is_undone_twice() {
    let (store, faults) = faulty();
    for _ in 0..5 {
        let guard = store.lock("x").wait(SECOND).acquire().await.unwrap();
        busy(store.lock("x").acquire().await);
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        drop(store.lock("x").acquire().await.unwrap());
    }
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.seen("release"), 10);
}

/// It has ended by itself, as the wait did: nothing of it is under way, and a shutdown waits for nothing.
#[tokio::test(start_paused = true)]
async fn a_place_that_has_ended_with_its_wait_is_undone_once() {
    let clock = Clock::manual();
    let (store, faults) = faulty_with_clock(clock.clone());
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let waits = crate::store::spawn(store.lock("x").wait(850 * MS).acquire());
    tokio::time::sleep(800 * MS).await;
    clock.advance(SECOND);
    busy(waits.await.unwrap());
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.seen("release"), 1);
    drop(held);
}
