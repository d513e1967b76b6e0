//! Large tasks: one operation reads a bounded number of bytes, and the next one continues.

use std::time::Duration;

use super::{
    StoreHarness, on_every_store,
    polling_worker::{
        PollingWorker, RUN_LEASE, SECOND, TaskRunHandle, dead_outcome, delayed_push_command,
        push_command, test_queue,
    },
};
use crate::store::{
    TaskId,
    tasks::{DeadLetterLimits, MAX_BYTES_PER_STEP, MAX_TASKS_PER_STEP, TaskPushCommand},
};

on_every_store!(
    page_of_large_dead_letters_is_short_and_continues,
    large_dead_letters_are_redriven_in_batches,
    large_waiting_tasks_are_purged_in_batches,
    purge_continues_past_large_remaining_tasks,
    large_runs_of_dead_worker_are_reaped_in_batches,
);

/// A task of which four are as much as one operation reads.
fn large_task(n: u64) -> TaskPushCommand {
    let payload = format!("{n}{}", "x".repeat((1 << 20) - 100));
    TaskPushCommand { capacity: (1000, 1 << 30), ..push_command(&payload) }
}

fn small_task() -> TaskPushCommand {
    TaskPushCommand { capacity: (1000, 1 << 30), ..push_command("a") }
}

/// A task that is larger than one operation reads.
fn huge_task() -> TaskPushCommand {
    let length = usize::try_from(MAX_BYTES_PER_STEP).unwrap();
    TaskPushCommand { capacity: (1000, 1 << 30), ..push_command(&"x".repeat(length)) }
}

fn new_worker(rig: &StoreHarness) -> PollingWorker<'_> {
    let mut worker = PollingWorker::new(rig);
    worker.dead_letter_limits =
        DeadLetterLimits { max_bytes: 1 << 30, ..worker.dead_letter_limits };
    worker
}

/// Starts all due tasks; one call starts a bounded number of bytes.
async fn start_all_due(worker: &PollingWorker<'_>) -> Vec<TaskRunHandle> {
    let mut started = Vec::new();
    loop {
        let runs = worker.start_runs(100).await;
        if runs.is_empty() {
            return started;
        }
        started.extend(runs);
    }
}

/// Runs tasks to dead letters, in this order.
async fn run_to_dead_letters(
    rig: &StoreHarness,
    worker: &PollingWorker<'_>,
    pushes: Vec<TaskPushCommand>,
) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for push in pushes {
        ids.push(rig.push_task(push).await);
    }
    for run in start_all_due(worker).await {
        assert!(worker.settle_run(&run, dead_outcome("hopeless")).await);
    }
    ids
}

fn tasks_of_mixed_size() -> Vec<TaskPushCommand> {
    (0..6).map(large_task).chain([huge_task(), small_task(), huge_task(), huge_task()]).collect()
}

async fn page_of_large_dead_letters_is_short_and_continues(rig: &StoreHarness) {
    let ids = run_to_dead_letters(rig, &new_worker(rig), tasks_of_mixed_size()).await;
    let (mut listed, mut lengths, mut after) = (Vec::new(), Vec::new(), Some(0));
    while let Some(cursor) = after {
        let page = rig
            .backend()
            .list_dead_letters(test_queue(), cursor, MAX_TASKS_PER_STEP)
            .await
            .unwrap();
        lengths.push(page.dead_letters.len());
        listed.extend(page.dead_letters.into_iter().map(|view| view.id));
        after = page.next;
    }
    assert_eq!(lengths, [4, 2, 1, 1, 1, 1]);
    assert_eq!(listed, ids);
    // The same with a page that small tasks fill.
    let page = rig.backend().list_dead_letters(test_queue(), 0, 3).await.unwrap();
    assert_eq!((page.dead_letters.len(), page.next.is_some()), (3, true));
}

async fn large_dead_letters_are_redriven_in_batches(rig: &StoreHarness) {
    let worker = new_worker(rig);
    let ids = run_to_dead_letters(rig, &worker, tasks_of_mixed_size()).await;
    let mut batches = Vec::new();
    loop {
        let redriven = rig
            .backend()
            .redrive_dead_letters(test_queue(), MAX_TASKS_PER_STEP, SECOND, Duration::ZERO)
            .await
            .unwrap();
        if redriven == 0 {
            break;
        }
        batches.push(redriven);
    }
    assert_eq!(batches, [4, 2, 1, 1, 1, 1]);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.waiting, stats.dead_letters, stats.dead_bytes), (10, 0, 0));
    rig.advance_past(SECOND).await;
    let runs = start_all_due(&worker).await;
    assert_eq!(Vec::from_iter(runs.iter().map(|run| &run.token.id)), Vec::from_iter(&ids));
}

async fn large_waiting_tasks_are_purged_in_batches(rig: &StoreHarness) {
    for push in tasks_of_mixed_size() {
        rig.push_task(push).await;
    }
    let (mut batches, mut cursor) = (Vec::new(), None);
    loop {
        let page =
            rig.backend().purge_waiting(test_queue(), cursor, MAX_TASKS_PER_STEP).await.unwrap();
        batches.push(page.purged);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(batches, [4, 2, 1, 1, 1, 1]);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.waiting, stats.bytes, stats.cancelled), (0, 0, 10));
}

/// A purge makes progress past tasks of any size, and ends.
async fn purge_continues_past_large_remaining_tasks(rig: &StoreHarness) {
    let delayed_task =
        |n: u64| delayed_push_command("old", SECOND * u32::try_from(60 + n).unwrap());
    rig.push_task(delayed_task(0)).await;
    let first = rig.backend().purge_waiting(test_queue(), None, 1).await.unwrap();
    // It was the only task, so the purge would end with it.
    assert_eq!((first.purged, first.next.is_some()), (1, true));
    let mut cursor = first
        .next
        .map(|cursor| crate::store::tasks::PurgeCursor { until_us: u64::MAX >> 12, ..cursor });
    for n in 0..5 {
        rig.push_task(TaskPushCommand {
            delay: SECOND * 90,
            ..if n % 2 == 0 { huge_task() } else { large_task(n) }
        })
        .await;
    }
    let mut purged = 0;
    for _ in 0..20 {
        let Some(position) = cursor else { break };
        let page = rig
            .backend()
            .purge_waiting(test_queue(), Some(position), MAX_TASKS_PER_STEP)
            .await
            .unwrap();
        (purged, cursor) = (purged + page.purged, page.next);
    }
    assert_eq!((purged, cursor), (0, None));
    assert_eq!(rig.queue_stats().await.waiting, 5);
}

/// Any worker reaps them. It polls again at once until all are reaped, even while the queue is
/// paused.
async fn large_runs_of_dead_worker_are_reaped_in_batches(rig: &StoreHarness) {
    let (dying, alive) = (new_worker(rig), new_worker(rig));
    for push in tasks_of_mixed_size() {
        rig.push_task(push).await;
    }
    // Leases that end in this order.
    for runs in [4, 2, 1, 1, 1, 1] {
        assert_eq!(dying.start_runs(100).await.len(), runs);
        rig.advance(Duration::from_millis(1)).await;
    }
    rig.backend().set_tasks_paused(test_queue(), true).await.unwrap();
    rig.advance_past(RUN_LEASE).await;
    let mut running = Vec::new();
    loop {
        let outcome = alive.poll_tasks(alive.poll_command(9, Vec::new())).await;
        assert!(outcome.started.is_empty());
        running.push(rig.queue_stats().await.running);
        let is_due_at_once = outcome.next_poll_in.is_some_and(|wait| wait.is_zero());
        assert_eq!(
            (is_due_at_once, outcome.is_listed_idle),
            (running.last() != Some(&0), !is_due_at_once)
        );
        if !is_due_at_once {
            break;
        }
    }
    assert_eq!(running, [6, 4, 3, 2, 1, 0]);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.crashed, stats.waiting, stats.lost), (10, 10, 0));
    rig.backend().set_tasks_paused(test_queue(), false).await.unwrap();
    assert_eq!(start_all_due(&alive).await.len(), 10);
}
