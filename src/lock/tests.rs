//! The lock engine on the embedded store, with tokio's clock stopped: time passes when nothing runs.

mod ahead;
pub(crate) mod cancel;
pub(crate) mod crowds;
mod ends;
mod fields;
mod handover;
mod modes;
mod overdue;
mod policy;
mod races;
mod readers;
mod renewals;
mod review;
mod room;
mod runs;
mod seam;
mod settings;
mod several;
mod steps_down;
mod strays;
mod terms;
mod unfetched;
mod within;

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{Busy, LockGuard, NotAcquired, Released};
use crate::store::{Loss, Store};

const SECOND: Duration = Duration::from_secs(1);

async fn free(store: &Store) -> LockGuard {
    assert!(store.shutdown(SECOND).await, "something was not given back");
    // Another process, so that no local line or nonce of this one helps.
    store.as_another_process().lock("x").acquire().await.expect("the lock is free")
}

fn busy(outcome: Result<LockGuard, NotAcquired>) -> Busy {
    match outcome {
        Err(NotAcquired::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn fences_grow_and_a_holder_excludes() {
    let store = Store::memory();
    let first = store.lock("x").acquire().await.unwrap();
    let told = busy(store.lock("x").acquire().await);
    assert!(told.left <= 10 * SECOND && told.waited.is_none());
    let (fence, copy) = (first.fence(), first.held());
    assert!(!copy.remaining().is_zero());
    assert_eq!(first.release().await, Released::Released);
    assert!(copy.remaining().is_zero(), "a copy outlives the lock, and says so");
    assert!(store.lock("x").acquire().await.unwrap().fence() > fence);
}

/// Its time is over at the very moment at which somebody looks for it, finds that it waits no more, and ends its line.
#[tokio::test(start_paused = true)]
async fn who_has_waited_for_too_long_is_told_what_is_known_of_the_holder() {
    let store = Store::memory();
    let other = store.as_another_process();
    let _held = other.lock("x").lease_fixed(50 * SECOND).acquire().await.expect("it is free");
    for wait in (1..20).map(|n| n * SECOND / 10) {
        let told = busy(store.lock("x").wait(wait).acquire().await);
        // What it would itself have asked for is 10 s.
        assert!(told.left > 20 * SECOND, "not what is known, after {wait:?}: {told:?}");
        assert!(told.waited.is_some_and(|waited| waited >= wait), "{told:?}");
    }
    // Of those who wait with it, too, for whom the store has one place: also while others of them go on.
    let waits = (1..=8).map(|n| n * SECOND / 2);
    let all = waits.map(|wait| store.lock("x").wait(wait).acquire().into_future());
    for (gone, outcome) in (0..).zip(futures_util::future::join_all(all).await) {
        let told = busy(outcome);
        assert!(told.line >= 8 - gone && told.left > 10 * SECOND, "{gone} have gone: {told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_given_back() {
    let store = Store::memory();
    drop(store.lock("x").acquire().await.unwrap());
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_guard_dropped_on_a_plain_thread_is_given_back() {
    let store = Store::memory();
    let guard = store.lock("x").acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    drop(free(&store).await);
}

#[test]
fn a_guard_outlives_its_runtime_without_harm() {
    let store = Store::memory();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let lease = Duration::from_millis(100);
    let guard = first.block_on(store.lock("x").lease_fixed(lease).acquire()).unwrap();
    drop(first);
    drop(guard);
    // Whether the message was still delivered or not, the lease ends it; the wait is for that.
    let wait = store.lock("x").wait(5 * SECOND).acquire();
    drop(runtime().block_on(wait).expect("the lease ended"));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_two_processes_are_served_in_order_where_it_is_strict() {
    let store = Store::memory();
    let other = store.as_another_process();
    let held = store.lock("x").acquire().await.unwrap();
    let served = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for (name, store) in [(1, &other), (2, &store), (3, &other)] {
        let (store, served) = (store.clone(), Arc::clone(&served));
        waiters.push(crate::store::spawn(async move {
            let request = store.lock("x").strict_order().wait(60 * SECOND);
            let guard = request.acquire().await.unwrap();
            served.lock().push(name);
            guard.release().await;
        }));
        // Each is in line before the next one comes: with time stopped, this sleep ends when all
        // tasks have nothing left to do.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    held.release().await;
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*served.lock(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_and_leaves_the_line() {
    let store = Store::memory();
    let held = store.lock("x").acquire().await.unwrap();
    let started = Instant::now();
    let told = busy(store.lock("x").wait(3 * SECOND).acquire().await);
    assert_eq!(started.elapsed().as_secs(), 3);
    assert!(told.waited.is_some_and(|waited| waited >= 3 * SECOND));
    held.release().await;
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_leaves_the_line() {
    let store = Store::memory();
    let held = store.lock("x").acquire().await.unwrap();
    let waiter = crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire());
    tokio::time::sleep(Duration::from_millis(5)).await;
    waiter.abort();
    let _ = waiter.await;
    // The keeper hears of it and gives the place back; the next one is not behind a ghost.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let told = busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(told.line, 0);
    held.release().await;
    drop(free(&store).await);
}

/// Polls an acquisition n times and drops it, for every n until it completes.
#[tokio::test(start_paused = true)]
async fn an_acquisition_dropped_at_any_await_leaves_nothing() {
    for wait in [None, Some(SECOND)] {
        for polls in 0..8 {
            let store = Store::memory();
            let request = store.lock("x");
            let request = wait.map_or(request.clone(), |wait| request.wait(wait));
            let mut future = Box::pin(request.acquire());
            for _ in 0..polls {
                if (&mut future).now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(future);
            drop(free(&store).await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_a_lock_over_many_leases() {
    let store = Store::memory();
    let guard = store.lock("x").lease(SECOND).acquire().await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(SECOND).await;
        assert!(guard.remaining() > SECOND / 2);
        busy(store.lock("x").acquire().await);
    }
    assert_eq!(guard.release().await, Released::Released);
}

#[tokio::test(start_paused = true)]
async fn max_hold_bounds_a_living_holder() {
    let store = Store::memory();
    let request = store.lock("x").lease(SECOND).max_hold(5 * SECOND);
    let guard = request.acquire().await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.lost().await, Loss::TooLong);
    let lost_after = started.elapsed();
    // At its end, less the margin by which a lease is not sure.
    assert!(lost_after > SECOND * 9 / 2 && lost_after <= 5 * SECOND, "{lost_after:?}");
    let next = store.lock("x").wait(SECOND).acquire().await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.release().await, Released::AlreadyLost);
    // The late release took nothing from the new holder.
    busy(store.lock("x").acquire().await);
    assert_eq!(next.release().await, Released::Released);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_not_renewed() {
    let store = Store::memory();
    let guard = store.lock("x").lease_fixed(SECOND).acquire().await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.lost().await, Loss::TooLong);
    // Told before the store's own deadline, never after it.
    assert!(started.elapsed() < SECOND);
    assert!(guard.remaining().is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lock_that_is_taken_away_is_lost_at_the_next_renewal() {
    let store = Store::memory();
    let guard = store.lock("x").lease(3 * SECOND).acquire().await.unwrap();
    // What a FLUSHALL or an operator's DEL does: the nonce is gone.
    let lease = guard.lease().unwrap();
    store.backend().release(lease.key.clone(), lease.me.clone(), lease.terms.mode).await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.lost().await, Loss::Taken);
    assert!(started.elapsed() <= SECOND + Duration::from_millis(100));
    assert_eq!(guard.release().await, Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn every_waiter_of_a_crowd_is_served() {
    let store = Store::memory();
    let mut crowd = Vec::new();
    for i in 0..50 {
        let store = if i % 2 == 0 { store.clone() } else { store.as_another_process() };
        crowd.push(crate::store::spawn(async move {
            let guard = store.lock("x").wait(60 * SECOND).acquire().await.unwrap();
            let fence = guard.fence();
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(guard.release().await, Released::Released);
            fence
        }));
    }
    let mut fences = Vec::new();
    for waiter in crowd {
        fences.push(waiter.await.unwrap());
    }
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 50);
}
