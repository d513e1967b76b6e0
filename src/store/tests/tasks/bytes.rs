//! Large tasks: no step reads more of them than the server has the time for, and the next one goes on.

use std::time::Duration;

use super::{
    Rig,
    desk::{LEASE, Run, SECOND, Worker, dead, later, queue, task},
    on_every_store,
};
use crate::store::{
    TaskId,
    tasks::{DeadLetterLimits, MAX_BYTES_PER_STEP, MAX_TASKS_PER_STEP, TaskPushCommand},
};

on_every_store!(
    a_page_of_large_letters_is_shorter_and_leads_on,
    large_letters_are_redriven_in_parts,
    large_tasks_that_wait_are_thrown_away_in_parts,
    a_walk_comes_by_large_tasks_that_stay,
    large_runs_of_a_dead_worker_are_taken_back_turn_by_turn,
);

/// Of these four are as much as a step reads.
fn large(n: u64) -> TaskPushCommand {
    let payload = format!("{n}{}", "x".repeat((1 << 20) - 100));
    TaskPushCommand { capacity: (1000, 1 << 30), ..task(&payload) }
}

fn small() -> TaskPushCommand {
    TaskPushCommand { capacity: (1000, 1 << 30), ..task("a") }
}

/// More than a step reads.
fn huge() -> TaskPushCommand {
    let most = usize::try_from(MAX_BYTES_PER_STEP).unwrap();
    TaskPushCommand { capacity: (1000, 1 << 30), ..task(&"x".repeat(most)) }
}

fn worker(rig: &Rig) -> Worker<'_> {
    let mut worker = Worker::new(rig);
    worker.graves = DeadLetterLimits { max_bytes: 1 << 30, ..worker.graves };
    worker
}

/// All that are due, of which one call starts no more than comes in time.
async fn started(worker: &Worker<'_>) -> Vec<Run> {
    let mut all = Vec::new();
    loop {
        let runs = worker.start(100).await;
        if runs.is_empty() {
            return all;
        }
        all.extend(runs);
    }
}

/// Letters in this order.
async fn killed(rig: &Rig, worker: &Worker<'_>, pushes: Vec<TaskPushCommand>) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for push in pushes {
        ids.push(rig.push(push).await);
    }
    for run in started(worker).await {
        assert!(worker.end(&run, dead("hopeless")).await);
    }
    ids
}

fn pushes() -> Vec<TaskPushCommand> {
    (0..6).map(large).chain([huge(), small(), huge(), huge()]).collect()
}

async fn a_page_of_large_letters_is_shorter_and_leads_on(rig: &Rig) {
    let ids = killed(rig, &worker(rig), pushes()).await;
    let (mut found, mut lengths, mut after) = (Vec::new(), Vec::new(), Some(0));
    while let Some(from) = after {
        let page =
            rig.backend().list_dead_letters(queue(), from, MAX_TASKS_PER_STEP).await.unwrap();
        lengths.push(page.letters.len());
        found.extend(page.letters.into_iter().map(|view| view.id));
        after = page.next;
    }
    assert_eq!(lengths, [4, 2, 1, 1, 1, 1]);
    assert_eq!(found, ids);
    // A page that is full of small ones too.
    let page = rig.backend().list_dead_letters(queue(), 0, 3).await.unwrap();
    assert_eq!((page.letters.len(), page.next.is_some()), (3, true));
}

async fn large_letters_are_redriven_in_parts(rig: &Rig) {
    let worker = worker(rig);
    let ids = killed(rig, &worker, pushes()).await;
    let mut parts = Vec::new();
    loop {
        let moved = rig
            .backend()
            .redrive_dead_letters(queue(), MAX_TASKS_PER_STEP, SECOND, Duration::ZERO)
            .await
            .unwrap();
        if moved == 0 {
            break;
        }
        parts.push(moved);
    }
    assert_eq!(parts, [4, 2, 1, 1, 1, 1]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.dead_letters, numbers.dead_bytes), (10, 0, 0));
    rig.pass(SECOND).await;
    let runs = started(&worker).await;
    assert_eq!(Vec::from_iter(runs.iter().map(|run| &run.token.id)), Vec::from_iter(&ids));
}

async fn large_tasks_that_wait_are_thrown_away_in_parts(rig: &Rig) {
    for push in pushes() {
        rig.push(push).await;
    }
    let (mut parts, mut walk) = (Vec::new(), None);
    loop {
        let walked = rig.backend().purge_waiting(queue(), walk, MAX_TASKS_PER_STEP).await.unwrap();
        parts.push(walked.purged);
        walk = walked.next;
        if walk.is_none() {
            break;
        }
    }
    assert_eq!(parts, [4, 2, 1, 1, 1, 1]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.waiting, numbers.bytes, numbers.cancelled), (0, 0, 10));
}

/// It comes on however large they are, and ends.
async fn a_walk_comes_by_large_tasks_that_stay(rig: &Rig) {
    let small = |n: u64| later("old", SECOND * u32::try_from(60 + n).unwrap());
    rig.push(small(0)).await;
    let first = rig.backend().purge_waiting(queue(), None, 1).await.unwrap();
    // It was the last of them, so the walk would end with it.
    assert_eq!((first.purged, first.next.is_some()), (1, true));
    let mut walk = first
        .next
        .map(|walk| crate::store::tasks::PurgeCursor { until_us: u64::MAX >> 12, ..walk });
    for n in 0..5 {
        rig.push(TaskPushCommand {
            delay: SECOND * 90,
            ..if n % 2 == 0 { huge() } else { large(n) }
        })
        .await;
    }
    let mut gone = 0;
    for _ in 0..20 {
        let Some(from) = walk else { break };
        let walked =
            rig.backend().purge_waiting(queue(), Some(from), MAX_TASKS_PER_STEP).await.unwrap();
        (gone, walk) = (gone + walked.purged, walked.next);
    }
    assert_eq!((gone, walk), (0, None));
    assert_eq!(rig.numbers().await.waiting, 5);
}

/// By whoever comes first, who looks again at once until all are; also while nothing may be started.
async fn large_runs_of_a_dead_worker_are_taken_back_turn_by_turn(rig: &Rig) {
    let (dying, alive) = (worker(rig), worker(rig));
    for push in pushes() {
        rig.push(push).await;
    }
    // Leases that end one after the other, in this order.
    for runs in [4, 2, 1, 1, 1, 1] {
        assert_eq!(dying.start(100).await.len(), runs);
        rig.advance(Duration::from_millis(1)).await;
    }
    rig.backend().set_tasks_paused(queue(), true).await.unwrap();
    rig.pass(LEASE).await;
    let mut left = Vec::new();
    loop {
        let turned = alive.take(alive.turn(9, Vec::new())).await;
        assert!(turned.started.is_empty());
        left.push(rig.numbers().await.running);
        let at_once = turned.next_poll_in.is_some_and(|wait| wait.is_zero());
        assert_eq!((at_once, turned.is_listed_idle), (left.last() != Some(&0), !at_once));
        if !at_once {
            break;
        }
    }
    assert_eq!(left, [6, 4, 3, 2, 1, 0]);
    let numbers = rig.numbers().await;
    assert_eq!((numbers.crashed, numbers.waiting, numbers.lost), (10, 10, 0));
    rig.backend().set_tasks_paused(queue(), false).await.unwrap();
    assert_eq!(started(&alive).await.len(), 10);
}
