//! Crowds: who has to wait for whom.

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

/// Longest time in which one who asks stands in the store's line, and holders have been told of it. (Of a
/// loaded machine; the hand-over ends 10 ms after a word from the store even without being told.)
const JOIN_DELAY: Duration = Duration::from_millis(100);

/// When somebody asked, and when it was granted.
#[derive(Clone, Copy)]
struct LockWait {
    requested_at: Instant,
    granted_at: Instant,
}

type LockWaits = Arc<Mutex<Vec<LockWait>>>;

/// Asks, holds it for so long and gives it back, again and again until it is told to stop.
fn acquire_in_loop(
    request: LockRequest,
    hold: Duration,
    pause: Duration,
    turns: &LockWaits,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (turns, stop) = (Arc::clone(turns), Arc::clone(stop));
    crate::store::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let guard = request.clone().wait(60 * SECOND).acquire().await.expect("it is served");
            turns.lock().push(LockWait { requested_at: asked, granted_at: Instant::now() });
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

/// Until so many turns were had. They are: only a machine that does nothing at all takes so long.
async fn wait_for_grants(turns: &LockWaits, number: usize) {
    let until = Instant::now() + 60 * SECOND;
    while turns.lock().len() < number {
        assert!(Instant::now() < until, "{} turns of {number}", turns.lock().len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many of `those` came after it stood in line, and were let in before it.
fn count_overtakers(one: LockWait, those: &LockWaits) -> usize {
    let later = |turn: &&LockWait| {
        turn.requested_at > one.requested_at + JOIN_DELAY && turn.granted_at < one.granted_at
    };
    those.lock().iter().filter(later).count()
}

fn assert_overtaken_at_most(most: usize, waits: &[LockWait], those: &LockWaits) {
    let worst =
        waits.iter().max_by_key(|wait| count_overtakers(**wait, those)).expect("some have waited");
    let (passed, waited) = (count_overtakers(*worst, those), worst.granted_at - worst.requested_at);
    let longest =
        waits.iter().map(|wait| wait.granted_at - wait.requested_at).max().unwrap_or_default();
    println!("figure: passed by at most {passed}");
    println!("figure: longest wait {} ms", longest.as_millis());
    assert!(passed <= most, "passed by {passed}, after {waited:?}");
}

async fn join_tasks(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// One process keeps 64 tasks at it; three others ask now and then.
#[tokio::test]
async fn rare_requests_wait_for_one_handover_batch_of_busy_process() {
    let server = ServerProcess::start().await;
    let (chatty, quiet, stop) = (LockWaits::default(), LockWaits::default(), Arc::default());
    let loud = server.store_with_long_timeout().await;
    let (mut tasks, mut few) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let store = server.store_with_long_timeout().await;
        // Its connection is there before the others begin.
        let guard = store.lock("x").acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        few.push(store.lock("x"));
    }
    for _ in 0..64 {
        let zero = Duration::ZERO;
        tasks.push(acquire_in_loop(loud.lock("x"), zero, zero, &chatty, &stop));
    }
    for request in few {
        let (hold, pause) = (Duration::ZERO, Duration::from_millis(20));
        tasks.push(acquire_in_loop(request, hold, pause, &quiet, &stop));
    }
    wait_for_grants(&quiet, 40).await;
    stop.store(true, Ordering::Relaxed);
    join_tasks(tasks).await;
    let waits: Vec<_> = quiet.lock().clone();
    assert_overtaken_at_most(16 + 1, &waits, &chatty);
}

async fn assert_served_under_flood(
    flood: impl Fn(&Store) -> LockRequest,
    few: impl Fn(&Store) -> LockRequest,
) {
    let server = ServerProcess::start().await;
    let (many, seldom, stop) = (LockWaits::default(), LockWaits::default(), Arc::default());
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let store = server.store_with_long_timeout().await;
        for _ in 0..12 {
            let (hold, pause) = (Duration::from_millis(2), Duration::ZERO);
            tasks.push(acquire_in_loop(flood(&store), hold, pause, &many, &stop));
        }
    }
    let store = server.store_with_long_timeout().await;
    let (hold, pause) = (Duration::from_millis(1), Duration::from_millis(10));
    tasks.push(acquire_in_loop(few(&store), hold, pause, &seldom, &stop));
    wait_for_grants(&seldom, 12).await;
    stop.store(true, Ordering::Relaxed);
    join_tasks(tasks).await;
    let waits: Vec<_> = seldom.lock().clone();
    // Two processes with a cohort each, of as many as they have tasks.
    assert_overtaken_at_most(2 * 17, &waits, &many);
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

/// A process that drains gives back the locks that were dropped and the places of its waiters.
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
