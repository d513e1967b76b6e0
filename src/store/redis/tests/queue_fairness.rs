//! Fairness under contention.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{RELEASE_LIMIT, SECOND, server_process::ServerProcess, wait_for_queue_length};
use crate::{
    lock::{LockRequest, ReleaseStatus},
    store::Store,
};

/// Longest time until a waiter is in the store's queue and holders know of it, on a loaded machine.
/// (Handovers end 10 ms after a queue snapshot in any case.)
const JOIN_DELAY: Duration = Duration::from_millis(100);

/// Times of a request and of its grant.
#[derive(Clone, Copy)]
struct LockWait {
    requested_at: Instant,
    granted_at: Instant,
}

type LockWaits = Arc<Mutex<Vec<LockWait>>>;

/// Acquires the lock, holds it for `hold`, releases it and pauses, in a loop until `stop` is set.
fn acquire_in_loop(
    request: LockRequest,
    hold: Duration,
    pause: Duration,
    waits: &LockWaits,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (waits, stop) = (Arc::clone(waits), Arc::clone(stop));
    crate::store::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let requested_at = Instant::now();
            let guard = request.clone().wait(60 * SECOND).acquire().await.expect("it is served");
            waits.lock().push(LockWait { requested_at, granted_at: Instant::now() });
            if !hold.is_zero() {
                tokio::time::sleep(hold).await;
            }
            guard.release().await;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    })
}

/// Waits for `number` grants. Only a stopped machine takes longer than the limit.
async fn wait_for_grants(waits: &LockWaits, number: usize) {
    let until = Instant::now() + 60 * SECOND;
    while waits.lock().len() < number {
        assert!(Instant::now() < until, "{} grants of {number}", waits.lock().len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns how many waits in `others` began after `wait` was queued, and were granted before it.
fn count_overtakers(wait: LockWait, others: &LockWaits) -> usize {
    let overtakes = |other: &&LockWait| {
        other.requested_at > wait.requested_at + JOIN_DELAY && other.granted_at < wait.granted_at
    };
    others.lock().iter().filter(overtakes).count()
}

fn assert_overtaken_at_most(most: usize, waits: &[LockWait], others: &LockWaits) {
    let worst =
        waits.iter().max_by_key(|wait| count_overtakers(**wait, others)).expect("some have waited");
    let (overtakers, waited) =
        (count_overtakers(*worst, others), worst.granted_at - worst.requested_at);
    let longest =
        waits.iter().map(|wait| wait.granted_at - wait.requested_at).max().unwrap_or_default();
    println!("figure: passed by at most {overtakers}");
    println!("figure: longest wait {} ms", longest.as_millis());
    assert!(overtakers <= most, "passed by {overtakers}, after {waited:?}");
}

async fn join_tasks(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// One process has 64 tasks that contend for the lock. Three others request it now and then.
#[tokio::test]
async fn rare_requests_wait_for_one_handover_batch_of_busy_process() {
    let server = ServerProcess::start().await;
    let (busy_waits, rare_waits, stop) =
        (LockWaits::default(), LockWaits::default(), Arc::default());
    let busy_store = server.store_with_long_timeout().await;
    let (mut tasks, mut rare_requests) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let store = server.store_with_long_timeout().await;
        // Connects before the load begins.
        let guard = store.lock("x").acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        rare_requests.push(store.lock("x"));
    }
    for _ in 0..64 {
        let zero = Duration::ZERO;
        tasks.push(acquire_in_loop(busy_store.lock("x"), zero, zero, &busy_waits, &stop));
    }
    for request in rare_requests {
        let (hold, pause) = (Duration::ZERO, Duration::from_millis(20));
        tasks.push(acquire_in_loop(request, hold, pause, &rare_waits, &stop));
    }
    wait_for_grants(&rare_waits, 40).await;
    stop.store(true, Ordering::Relaxed);
    join_tasks(tasks).await;
    let waits: Vec<_> = rare_waits.lock().clone();
    assert_overtaken_at_most(16 + 1, &waits, &busy_waits);
}

async fn assert_served_under_flood(
    flood: impl Fn(&Store) -> LockRequest,
    rare: impl Fn(&Store) -> LockRequest,
) {
    let server = ServerProcess::start().await;
    let (flood_waits, rare_waits, stop) =
        (LockWaits::default(), LockWaits::default(), Arc::default());
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let store = server.store_with_long_timeout().await;
        for _ in 0..12 {
            let (hold, pause) = (Duration::from_millis(2), Duration::ZERO);
            tasks.push(acquire_in_loop(flood(&store), hold, pause, &flood_waits, &stop));
        }
    }
    let store = server.store_with_long_timeout().await;
    let (hold, pause) = (Duration::from_millis(1), Duration::from_millis(10));
    tasks.push(acquire_in_loop(rare(&store), hold, pause, &rare_waits, &stop));
    wait_for_grants(&rare_waits, 12).await;
    stop.store(true, Ordering::Relaxed);
    join_tasks(tasks).await;
    let waits: Vec<_> = rare_waits.lock().clone();
    // Two processes, each with a batch of handovers.
    assert_overtaken_at_most(2 * 17, &waits, &flood_waits);
    assert!(store.shutdown(RELEASE_LIMIT).await);
}

#[tokio::test]
async fn writer_is_granted_under_flood_of_readers() {
    assert_served_under_flood(|store| store.lock("x").shared(), |store| store.lock("x")).await;
}

#[tokio::test]
async fn reader_is_granted_under_flood_of_writers() {
    assert_served_under_flood(|store| store.lock("x"), |store| store.lock("x").shared()).await;
}

/// A shutdown releases dropped locks and removes the queue entries of waiters.
#[tokio::test]
async fn shutdown_releases_dropped_locks_and_queue_entries() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let held = other.lock("x").acquire().await.unwrap();
    for n in 0..20 {
        let name = format!("{n}");
        let request = store.lock(name.as_str());
        let guard = request.wait(SECOND).acquire().await.unwrap();
        if n % 2 == 0 {
            drop(guard);
        } else {
            assert_eq!(guard.release().await, ReleaseStatus::Released);
        }
    }
    let waiters: Vec<_> =
        (0..5).map(|_| crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire())).collect();
    wait_for_queue_length(&other, 1).await;
    for waiter in &waiters {
        waiter.abort();
    }
    for waiter in waiters {
        let _ = waiter.await;
    }
    tokio::task::yield_now().await;
    let drained = Instant::now();
    assert!(store.shutdown(5 * SECOND).await);
    println!("figure: drained after {} ms", drained.elapsed().as_millis());
    assert_eq!(held.release().await, ReleaseStatus::Released);
    assert!(other.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
}
