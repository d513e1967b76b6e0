//! Dead letters, and what is done from outside.

use super::{
    Rig,
    desk::{KEEP, SECOND, Worker, dead, later, queue, task},
    on_every_store,
};
use crate::store::{TaskId, TaskState, tasks::DeadLetterLimits};

on_every_store!(
    every_letter_is_on_a_page,
    old_letters_are_trimmed_and_counted,
    the_last_to_die_is_kept_though_its_time_ends_first,
    letters_that_are_too_large_together_are_trimmed_and_counted,
    a_letter_beyond_all_bounds_is_not_kept,
    a_cap_that_is_lowered_takes_a_hundred_at_once,
    one_dead_letter_can_be_thrown_away,
);

/// Tasks that died, in this order.
async fn killed(rig: &Rig, worker: &Worker<'_>, payloads: &[&str]) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for payload in payloads {
        ids.push(rig.push(task(payload)).await);
        let run = worker.one().await;
        assert!(worker.end(&run, dead("hopeless")).await);
    }
    ids
}

/// However many have died at once, on a clock that stands still too; in the order in which they died.
async fn every_letter_is_on_a_page(rig: &Rig) {
    let mut worker = Worker::new(rig);
    worker.graves = DeadLetterLimits { max_count: 2_000, ..worker.graves };
    let mut ids = killed(rig, &worker, &["first"]).await;
    for _ in 0..10 {
        let pushes = (0..100).map(|_| rig.pushed(task("a")));
        futures_util::future::join_all(pushes).await;
        let runs = worker.start(100).await;
        let ends = runs.iter().map(|run| run.ended(dead("hopeless"))).collect();
        worker.take(worker.turn(0, ends)).await;
        ids.extend(runs.into_iter().map(|run| run.token.id));
    }
    let (mut found, mut after) = (Vec::new(), Some(0));
    while let Some(from) = after {
        let page = rig.backend().list_dead_letters(queue(), from, 10).await.unwrap();
        found.extend(page.letters.into_iter().map(|view| view.id));
        after = page.next;
    }
    assert_eq!(found.len(), 1_001);
    assert!(found == ids, "in another order");
}

async fn old_letters_are_trimmed_and_counted(rig: &Rig) {
    let worker = Worker::new(rig);
    let ids = killed(rig, &worker, &["a"]).await;
    rig.pass(KEEP).await;
    worker.start(1).await;
    assert_eq!(rig.task(&ids[0]).await, None);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.trimmed, numbers.dead_letters), (1, 0));
}

/// Workers of another version may keep letters for a shorter time.
async fn the_last_to_die_is_kept_though_its_time_ends_first(rig: &Rig) {
    let mut worker = Worker::new(rig);
    worker.graves = DeadLetterLimits { max_count: 2, ..worker.graves };
    let old = killed(rig, &worker, &["a", "b"]).await;
    worker.graves.retention = KEEP / 2;
    let new = killed(rig, &worker, &["c"]).await.remove(0);
    assert_eq!(rig.task(&new).await.map(|view| view.state), Some(TaskState::Dead));
    assert_eq!(rig.task(&old[0]).await, None);
    assert_eq!(rig.task(&old[1]).await.map(|view| view.state), Some(TaskState::Dead));
    // Where it is their bytes that are too many, too.
    let bytes = rig.numbers().await.dead_bytes;
    worker.graves =
        DeadLetterLimits { retention: KEEP / 4, max_count: 100, max_bytes: bytes, ..worker.graves };
    let last = killed(rig, &worker, &["d"]).await.remove(0);
    assert_eq!(rig.task(&last).await.map(|view| view.state), Some(TaskState::Dead));
    let numbers = rig.numbers().await;
    assert_eq!((numbers.trimmed, numbers.dead_letters, numbers.dead_bytes), (2, 2, bytes));
}

/// Of one by number, as the store counts them.
async fn dead_bytes(rig: &Rig) -> u64 {
    rig.numbers().await.dead_bytes
}

async fn letters_that_are_too_large_together_are_trimmed_and_counted(rig: &Rig) {
    let mut worker = Worker::new(rig);
    let first = killed(rig, &worker, &["a"]).await.remove(0);
    let one = dead_bytes(rig).await;
    assert!(one > 1, "a letter has bytes");
    worker.graves = DeadLetterLimits { max_bytes: 3 * one, ..worker.graves };
    let ids = killed(rig, &worker, &["b", "c"]).await;
    let numbers = rig.numbers().await;
    assert_eq!((numbers.trimmed, numbers.dead_letters, numbers.dead_bytes), (0, 3, 3 * one));
    // A byte more than fits, and the oldest goes.
    let longer = killed(rig, &worker, &["dd"]).await.remove(0);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.trimmed, numbers.dead_letters), (2, 2));
    assert_eq!(numbers.dead_bytes, 2 * one + 1);
    assert_eq!((rig.task(&first).await, rig.task(&ids[0]).await), (None, None));
    // What is taken out is not counted any more, however that is done.
    assert!(rig.backend().redrive_dead_letter(queue(), longer).await.unwrap());
    assert_eq!(dead_bytes(rig).await, one);
    assert_eq!(rig.numbers().await.bytes, one + 1);
    assert_eq!(rig.backend().purge_dead_letters(queue()).await.unwrap(), 1);
    assert_eq!(dead_bytes(rig).await, 0);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.dead, numbers.trimmed, numbers.waiting), (4, 3, 1));
}

async fn a_letter_beyond_all_bounds_is_not_kept(rig: &Rig) {
    let mut worker = Worker::new(rig);
    worker.graves = DeadLetterLimits { max_bytes: 10, ..worker.graves };
    let ids = killed(rig, &worker, &["far too long"]).await;
    assert_eq!(rig.task(&ids[0]).await, None);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.dead, numbers.trimmed, numbers.dead_letters), (1, 1, 0));
    assert_eq!((numbers.dead_bytes, numbers.bytes), (0, 0));
}

async fn a_cap_that_is_lowered_takes_a_hundred_at_once(rig: &Rig) {
    let mut worker = Worker::new(rig);
    worker.graves = DeadLetterLimits { max_count: 1_000, ..worker.graves };
    for n in 0..130 {
        rig.push(task(&n.to_string())).await;
    }
    for _ in 0..2 {
        for run in worker.start(100).await {
            assert!(worker.end(&run, dead("hopeless")).await);
        }
    }
    assert_eq!(rig.numbers().await.dead_letters, 130);
    worker.graves = DeadLetterLimits { max_bytes: 0, ..worker.graves };
    for left in [30, 0] {
        rig.pass(SECOND).await;
        worker.start(1).await;
        assert_eq!(rig.numbers().await.dead_letters, left);
    }
    let numbers = rig.numbers().await;
    assert_eq!((numbers.trimmed, numbers.dead_bytes), (130, 0));
}

async fn one_dead_letter_can_be_thrown_away(rig: &Rig) {
    let worker = Worker::new(rig);
    let ids = killed(rig, &worker, &["a", "bb", "c"]).await;
    let running = rig.push(task("runs")).await;
    worker.one().await;
    let waiting = rig.push(later("waits", SECOND)).await;
    let (before, bytes) = (rig.numbers().await, rig.task(&ids[0]).await.unwrap().payload_bytes);
    let purge = |id: &TaskId| rig.backend().purge_dead_letter(queue(), id.clone());
    assert!(purge(&ids[1]).await.unwrap());
    for id in [&ids[1], &running, &waiting, &TaskId::new()] {
        assert!(!purge(id).await.unwrap());
    }
    assert_eq!(rig.task(&ids[1]).await, None);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.trimmed, numbers.dead_letters), (1, 2));
    assert_eq!((numbers.waiting, numbers.running, numbers.bytes), (1, 1, before.bytes));
    // A byte more than a third.
    let its = before.dead_bytes - numbers.dead_bytes;
    assert_eq!((its, bytes), (before.dead_bytes / 3 + 1, 1));
    assert!(purge(&ids[0]).await.unwrap() && purge(&ids[2]).await.unwrap());
    assert_eq!(rig.numbers().await.dead_bytes, 0);
}

/// Memory loses no record.
#[cfg(feature = "redis")]
#[tokio::test]
async fn what_vanished_can_be_thrown_away() {
    let rig = &Rig::redis().await;
    let worker = Worker::new(rig);
    killed(rig, &worker, &["a", "b"]).await;
    let waiting = [rig.push(task("c")).await, rig.push(task("d")).await, rig.push(task("e")).await];
    rig.vanish("zt").await;
    let found = rig.backend().cancel_task(queue(), waiting[0].clone()).await;
    assert_eq!(found.unwrap(), Some(TaskState::Waiting));
    let walked = rig.backend().purge_waiting(queue(), None, 100).await.unwrap();
    assert_eq!((walked.purged, walked.next), (2, None));
    assert_eq!(rig.backend().purge_dead_letters(queue()).await.unwrap(), 2);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.dead_letters), (0, 0));
    assert_eq!((numbers.bytes, numbers.dead_bytes), (0, 0), "of nothing");
    assert_eq!((numbers.cancelled, numbers.trimmed), (3, 2));
}
