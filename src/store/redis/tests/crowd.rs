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

use super::{GIVEN_BACK, SECOND, in_line, server::Server};
use crate::{
    lock::{LockRequest, ReleaseStatus},
    store::Store,
};

/// Longest time in which one who asks stands in the store's line, and holders have been told of it. (Of a
/// loaded machine; the hand-over ends 10 ms after a word from the store even without being told.)
const IN_LINE: Duration = Duration::from_millis(100);

/// When somebody asked, and when it was granted.
#[derive(Clone, Copy)]
struct Turn {
    asked: Instant,
    got: Instant,
}

type Turns = Arc<Mutex<Vec<Turn>>>;

/// Asks, holds it for so long and gives it back, again and again until it is told to stop.
fn goes_round(
    request: LockRequest,
    hold: Duration,
    pause: Duration,
    turns: &Turns,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (turns, stop) = (Arc::clone(turns), Arc::clone(stop));
    crate::store::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let guard = request.clone().wait(60 * SECOND).acquire().await.expect("it is served");
            turns.lock().push(Turn { asked, got: Instant::now() });
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
async fn had(turns: &Turns, number: usize) {
    let until = Instant::now() + 60 * SECOND;
    while turns.lock().len() < number {
        assert!(Instant::now() < until, "{} turns of {number}", turns.lock().len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many of `those` came after it stood in line, and were let in before it.
fn passed_by(one: Turn, those: &Turns) -> usize {
    let later = |turn: &&Turn| turn.asked > one.asked + IN_LINE && turn.got < one.got;
    those.lock().iter().filter(later).count()
}

fn none_is_passed_by_more_than(most: usize, waits: &[Turn], those: &Turns) {
    let worst = waits.iter().max_by_key(|wait| passed_by(**wait, those)).expect("some have waited");
    let (passed, waited) = (passed_by(*worst, those), worst.got - worst.asked);
    let longest = waits.iter().map(|wait| wait.got - wait.asked).max().unwrap_or_default();
    println!("figure: passed by at most {passed}");
    println!("figure: longest wait {} ms", longest.as_millis());
    assert!(passed <= most, "passed by {passed}, after {waited:?}");
}

async fn finished(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// One process keeps 64 tasks at it; three others ask now and then.
#[tokio::test]
async fn quiet_processes_wait_for_a_cohort_of_a_chatty_one_and_no_longer() {
    let server = Server::start().await;
    let (chatty, quiet, stop) = (Turns::default(), Turns::default(), Arc::default());
    let loud = server.patient_store().await;
    let (mut tasks, mut few) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let store = server.patient_store().await;
        // Its connection is there before the others begin.
        let guard = store.lock("x").acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        few.push(store.lock("x"));
    }
    for _ in 0..64 {
        let zero = Duration::ZERO;
        tasks.push(goes_round(loud.lock("x"), zero, zero, &chatty, &stop));
    }
    for request in few {
        let (hold, pause) = (Duration::ZERO, Duration::from_millis(20));
        tasks.push(goes_round(request, hold, pause, &quiet, &stop));
    }
    had(&quiet, 40).await;
    stop.store(true, Ordering::Relaxed);
    finished(tasks).await;
    let waits: Vec<_> = quiet.lock().clone();
    none_is_passed_by_more_than(16 + 1, &waits, &chatty);
}

async fn flooded(flood: impl Fn(&Store) -> LockRequest, few: impl Fn(&Store) -> LockRequest) {
    let server = Server::start().await;
    let (many, seldom, stop) = (Turns::default(), Turns::default(), Arc::default());
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let store = server.patient_store().await;
        for _ in 0..12 {
            let (hold, pause) = (Duration::from_millis(2), Duration::ZERO);
            tasks.push(goes_round(flood(&store), hold, pause, &many, &stop));
        }
    }
    let store = server.patient_store().await;
    let (hold, pause) = (Duration::from_millis(1), Duration::from_millis(10));
    tasks.push(goes_round(few(&store), hold, pause, &seldom, &stop));
    had(&seldom, 12).await;
    stop.store(true, Ordering::Relaxed);
    finished(tasks).await;
    let waits: Vec<_> = seldom.lock().clone();
    // Two processes with a cohort each, of as many as they have tasks.
    none_is_passed_by_more_than(2 * 17, &waits, &many);
    assert!(store.shutdown(GIVEN_BACK).await);
}

#[tokio::test]
async fn a_writer_is_let_in_under_a_flood_of_readers() {
    flooded(|store| store.lock("x").shared(), |store| store.lock("x")).await;
}

#[tokio::test]
async fn a_reader_is_let_in_under_a_flood_of_writers() {
    flooded(|store| store.lock("x"), |store| store.lock("x").shared()).await;
}

/// A process that drains gives back the locks that were dropped and the places of its waiters.
#[tokio::test]
async fn a_drain_gives_back_locks_and_places() {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
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
    in_line(&other, 1).await;
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
    assert!(other.shutdown(GIVEN_BACK).await);
    assert_eq!(server.left().await, [""; 0]);
}
