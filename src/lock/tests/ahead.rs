//! Word of the store asked for ahead, while the holder works.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    SECOND, free,
    handover::{Log, MS, all},
    take_away,
};
use crate::{
    lock::ReleaseStatus,
    store::{Fault, Faults, Store, faulty},
};

/// One who has the lock, and some behind it, each for 6 ms.
async fn six(store: &Store, log: &Log) {
    let held = store.lock("x").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..6 {
        tasks.push(log.waiter(name, store.lock("x"), 6 * MS).await);
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
    all(tasks).await;
    assert_eq!(log.names(), (0..6).collect::<Vec<_>>());
    log.fences_grow();
}

fn asked(faults: &Faults) -> [usize; 3] {
    ["pass", "still", "release"].map(|step| faults.seen(step))
}

#[tokio::test(start_paused = true)]
async fn who_works_for_milliseconds_does_not_wait_for_the_store() {
    let (store, faults) = faulty();
    six(&store, &Log::default()).await;
    // Once in each turn in which somebody waits.
    assert_eq!(asked(&faults), [0, 5, 1]);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_changes_nothing() {
    for late in [5 * MS, 13 * MS, 100 * MS] {
        for fault in [Fault::Slow(late), Fault::Late(late)] {
            let (store, faults) = faulty();
            faults.set("still", fault, usize::MAX);
            six(&store, &Log::default()).await;
            assert!(faults.seen("pass") > 0, "{fault:?}");
            drop(free(&store).await);
        }
    }
}

/// Few fences are left, so each turn asks. The first answer comes when one of a later turn has been acted on.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_overtaken_by_a_later_one_gives_no_older_fence() {
    let (store, faults) = faulty();
    let log = Log::default();
    faults.set("still", Fault::Slow(7 * MS), 1);
    let request = || store.lock("x").handover_limits(4, SECOND);
    let held = request().acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..6 {
        tasks.push(log.waiter(name, request(), 3 * MS).await);
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
    all(tasks).await;
    assert_eq!(log.names(), (0..6).collect::<Vec<_>>());
    assert!(faults.seen("still") > 1);
    log.fences_grow();
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_nothing_or_very_long_asks_for_nothing() {
    for work in [Duration::ZERO, SECOND] {
        let (store, faults) = faulty();
        let log = Log::default();
        let held = store.lock("x").acquire().await.unwrap();
        let tasks = [1, 2].map(|name| (name, log.clone(), store.clone()));
        let mut waiters = Vec::new();
        for (name, log, store) in tasks {
            waiters.push(log.waiter(name, store.lock("x"), work).await);
        }
        tokio::time::sleep(work).await;
        held.release().await;
        all(waiters).await;
        assert_eq!(faults.seen("still"), 0);
    }
}

/// A word is good for two turns. Whoever waits at the other process when it is asked for is passed by one who came later, and
/// not by more because there is a younger word.
#[tokio::test(start_paused = true)]
async fn nobody_is_passed_more_often_by_word_that_was_asked_ahead() {
    for fault in [Fault::Slow(2 * MS), Fault::Late(MS), Fault::Slow(Duration::ZERO)] {
        let (store, faults) = faulty();
        faults.set("still", fault, usize::MAX);
        let other = store.as_another_process();
        let log = Log::default();
        let held = store.lock("x").acquire().await.unwrap();
        let mut tasks = Vec::new();
        for name in 0..4 {
            tasks.push(log.waiter(name, store.lock("x"), 6 * MS).await);
        }
        assert_eq!(held.release().await, ReleaseStatus::Released);
        for name in 4..20 {
            let store = if name % 5 == 0 { &other } else { &store };
            tasks.push(log.waiter(name, store.lock("x"), 6 * MS).await);
        }
        all(tasks).await;
        let names = log.names();
        for (at, name) in names.iter().enumerate() {
            let elsewhere = |other: &&u32| other.is_multiple_of(5) != name.is_multiple_of(5);
            let passed = names[..at].iter().filter(|other| *other > name).filter(elsewhere);
            assert!(passed.count() <= 1, "{name} of {names:?}, {fault:?}");
        }
        log.fences_grow();
        assert!(faults.seen("still") > 0);
    }
}

/// The word is asked for at 7 ms and answered at 11, when nobody is next here, and 4 waits elsewhere since 8. Who comes
/// here at 12 is served before it only while the word before is good, which is until 10.
#[tokio::test(start_paused = true)]
async fn a_younger_word_is_not_for_those_who_came_after_all_that_it_tells_of() {
    let (store, faults) = faulty();
    let (other, log, began) = (store.as_another_process(), Log::default(), Instant::now());
    faults.set("still", Fault::Late(2 * MS), usize::MAX);
    let held = store.lock("x").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for (name, work) in [(0, 4), (1, 2), (2, 4)] {
        tasks.push(log.waiter(name, store.lock("x"), work * MS).await);
    }
    drop(held);
    for (at, name, store) in [(8, 4, &other), (12, 3, &store)] {
        tokio::time::sleep_until(began + at * MS).await;
        tasks.push(log.waiter(name, store.lock("x"), MS).await);
    }
    all(tasks).await;
    assert_eq!(log.names(), [0, 1, 2, 4, 3]);
    assert!(faults.seen("still") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_not_handed_on() {
    let (store, faults) = faulty();
    let log = Log::default();
    let held = store.lock("x").acquire().await.unwrap();
    let first = crate::store::spawn(store.lock("x").wait(SECOND).acquire());
    tokio::time::sleep(6 * MS).await;
    let last = log.waiter(2, store.lock("x"), Duration::ZERO).await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let first = first.await.unwrap().unwrap();
    take_away(&store, first.lease().unwrap()).await;
    tokio::time::sleep(7 * MS).await;
    assert_eq!(faults.seen("still"), 1);
    assert_eq!(first.release().await, ReleaseStatus::AlreadyLost);
    last.await.unwrap();
    assert_eq!(faults.seen("pass"), 1);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_gone_is_not_kept_by_a_question() {
    let (store, _) = faulty();
    let log = Log::default();
    let held = store.lock("x").acquire().await.unwrap();
    let waiter = log.waiter(1, store.lock("x"), 10 * MS).await;
    tokio::time::sleep(50 * MS).await;
    held.release().await;
    let next = crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire());
    tokio::time::sleep(MS).await;
    next.abort();
    waiter.await.unwrap();
    let weak = store.downgrade();
    drop(store);
    tokio::time::sleep(MS).await;
    assert!(weak.upgrade().is_none());
}
