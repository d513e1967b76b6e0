//! Idle workers: which of them gets a wake-up, and which has the timer.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{
    StoreHarness, on_every_store,
    polling_worker::{PollingWorker, SECOND, delayed_push_command, push_command, test_queue},
};
use crate::store::tasks::{TaskOutcome, TaskPollCommand, TaskPollOutcome};

on_every_store!(
    push_wakes_exactly_one_worker,
    only_one_idle_worker_has_timer,
    earlier_task_wakes_timer_worker,
    remaining_task_wakes_next_worker,
    push_skips_dead_worker,
    push_skips_many_dead_workers,
    full_worker_is_not_woken,
    long_idle_worker_is_woken,
    idle_poll_keeps_worker_listed,
    queue_is_not_idle_while_tasks_wait_or_run,
    idle_poll_does_not_relist_woken_worker,
    unserved_tasks_are_counted_without_a_worker,
);

/// The signs of a worker, one after the other: its last poll, its run, its entry as idle.
async fn unserved_tasks_are_counted_without_a_worker(rig: &StoreHarness) {
    let unserved =
        async || rig.backend().unserved_task_count(test_queue(), SECOND * 10).await.unwrap();
    rig.push_task(push_command("a")).await;
    rig.push_task(delayed_push_command("late", SECOND * 600)).await;
    assert_eq!(unserved().await, 2);

    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert_eq!(unserved().await, 0);
    rig.advance_past(SECOND * 20).await;
    assert_eq!(unserved().await, 0, "it runs a task");
    // A worker that stops is not listed as idle, and its last poll counts.
    let last_poll = TaskPollCommand {
        idle_timeout: Duration::ZERO,
        ..worker.poll_command(0, vec![run.settlement_with(TaskOutcome::Done)])
    };
    worker.poll_tasks(last_poll).await;
    assert_eq!(unserved().await, 0);
    rig.advance_past(SECOND * 10).await;
    assert_eq!(unserved().await, 1);

    let idle_poll =
        TaskPollCommand { idle_timeout: SECOND * 60, ..worker.poll_command(1, Vec::new()) };
    worker.poll_tasks(idle_poll).await;
    rig.advance_past(SECOND * 30).await;
    assert_eq!(unserved().await, 0, "it is listed as idle");
    rig.advance_past(SECOND * 40).await;
    assert_eq!(unserved().await, 1, "it has died");
    rig.backend().set_tasks_paused(test_queue(), true).await.unwrap();
    assert_eq!(unserved().await, 0);
}

/// Returns true if the worker gets a wake-up within the time limit.
async fn is_woken_in_time(worker: &PollingWorker<'_>) -> bool {
    tokio::time::timeout(Duration::from_secs(20), worker.task_wakeup.notified()).await.is_ok()
}

/// Returns true if the worker has a wake-up already. An earlier message to one worker has arrived
/// once a later one to another has.
fn was_woken(worker: &PollingWorker<'_>) -> bool {
    worker.task_wakeup.notified().now_or_never().is_some()
}

async fn become_idle(worker: &PollingWorker<'_>) -> TaskPollOutcome {
    let outcome = worker.poll_tasks(worker.poll_command(1, Vec::new())).await;
    assert!(outcome.started.is_empty() && outcome.is_listed_idle);
    outcome
}

async fn push_wakes_exactly_one_worker(rig: &StoreHarness) {
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::subscribed(rig).await);
    become_idle(&one).await;
    rig.advance(SECOND).await;
    become_idle(&other).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    assert_eq!(one.start_runs(1).await.len(), 1);
    assert!(!was_woken(&other));
    rig.push_task(push_command("b")).await;
    assert!(is_woken_in_time(&other).await);
    assert!(!was_woken(&one));
}

async fn only_one_idle_worker_has_timer(rig: &StoreHarness) {
    rig.push_task(delayed_push_command("a", SECOND * 5)).await;
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::subscribed(rig).await);
    assert!(become_idle(&one).await.next_poll_in.is_some_and(|wait| wait <= SECOND * 5));
    assert_eq!(become_idle(&other).await.next_poll_in, None);
    // The timer worker has not polled for longer than its idle time.
    rig.advance_past(SECOND * 8).await;
    let outcome = other.poll_tasks(other.poll_command(1, Vec::new())).await;
    assert_eq!(outcome.started.len(), 1);
}

async fn earlier_task_wakes_timer_worker(rig: &StoreHarness) {
    rig.push_task(delayed_push_command("a", SECOND * 100)).await;
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::subscribed(rig).await);
    become_idle(&other).await;
    rig.advance(SECOND).await;
    become_idle(&one).await;
    rig.push_task(delayed_push_command("b", SECOND * 50)).await;
    assert!(is_woken_in_time(&other).await);
    assert!(!was_woken(&one));
    let wait = become_idle(&other).await.next_poll_in.expect("it has the timer");
    assert!(wait <= SECOND * 50, "{wait:?}");
    // A task that is due later than the next known one wakes no worker.
    rig.push_task(delayed_push_command("c", SECOND * 60)).await;
    rig.push_task(push_command("d")).await;
    assert!(is_woken_in_time(&one).await || was_woken(&other));
}

async fn remaining_task_wakes_next_worker(rig: &StoreHarness) {
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::subscribed(rig).await);
    become_idle(&one).await;
    rig.advance(SECOND).await;
    become_idle(&other).await;
    rig.push_task(push_command("a")).await;
    rig.push_task(push_command("b")).await;
    assert!(is_woken_in_time(&one).await);
    assert!(!was_woken(&other));
    assert_eq!(one.start_runs(1).await.len(), 1);
    assert!(is_woken_in_time(&other).await);
}

async fn push_skips_dead_worker(rig: &StoreHarness) {
    if !rig.reports_receiver_count().await {
        // A cluster node before 7.0 does not know the subscribers of other nodes. The next poll of
        // another worker finds the task.
        return;
    }
    let (dead, alive) = (PollingWorker::new(rig), PollingWorker::subscribed(rig).await);
    become_idle(&dead).await;
    rig.advance(SECOND).await;
    become_idle(&alive).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&alive).await);
}

/// The dead workers are first in the list, and a push examines a limited number of entries.
async fn push_skips_many_dead_workers(rig: &StoreHarness) {
    for _ in 0..120 {
        become_idle(&PollingWorker::new(rig)).await;
    }
    rig.advance_past(SECOND * 8).await;
    let alive = PollingWorker::subscribed(rig).await;
    become_idle(&alive).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&alive).await);
}

async fn full_worker_is_not_woken(rig: &StoreHarness) {
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::subscribed(rig).await);
    become_idle(&one).await;
    rig.advance(SECOND).await;
    become_idle(&other).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    // The worker polled without a wake-up, so it is still listed as idle.
    let command = TaskPollCommand { can_stay_idle: true, ..other.poll_command(1, Vec::new()) };
    let outcome = other.poll_tasks(command).await;
    assert_eq!((outcome.started.len(), outcome.is_listed_idle), (1, false));
    become_idle(&one).await;
    rig.push_task(push_command("b")).await;
    assert!(is_woken_in_time(&one).await);
    assert!(!was_woken(&other));
}

/// A poll extends the idle entry; otherwise a push would find no worker.
async fn long_idle_worker_is_woken(rig: &StoreHarness) {
    let one = PollingWorker::subscribed(rig).await;
    become_idle(&one).await;
    for _ in 0..2 {
        rig.advance_past(SECOND * 5).await;
        let outcome = one
            .poll_tasks(TaskPollCommand { can_stay_idle: true, ..one.poll_command(1, Vec::new()) })
            .await;
        assert!(outcome.is_listed_idle);
    }
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    assert_eq!(one.start_runs(1).await.len(), 1);
}

async fn poll_idle(worker: &PollingWorker<'_>, idle_time: Duration) -> bool {
    let (node, id) = (worker.node.clone(), Arc::clone(&worker.worker_id));
    worker.harness.backend().poll_idle(test_queue(), node, id, idle_time).await.unwrap()
}

async fn idle_poll_keeps_worker_listed(rig: &StoreHarness) {
    let one = PollingWorker::subscribed(rig).await;
    assert!(become_idle(&one).await.is_queue_idle);
    for _ in 0..3 {
        rig.advance_past(SECOND * 5).await;
        assert!(poll_idle(&one, SECOND * 5).await);
    }
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    assert_eq!(one.start_runs(1).await.len(), 1);
}

async fn queue_is_not_idle_while_tasks_wait_or_run(rig: &StoreHarness) {
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::subscribed(rig).await);
    assert!(become_idle(&one).await.is_queue_idle);
    // The task waits for the timer worker.
    let delayed = delayed_push_command("late", SECOND * 100);
    rig.push_task(delayed.clone()).await;
    assert!(!poll_idle(&one, Duration::ZERO).await);
    assert!(!become_idle(&one).await.is_queue_idle);
    assert!(!become_idle(&other).await.is_queue_idle, "also without the timer");
    assert!(rig.backend().cancel_task(test_queue(), delayed.id).await.unwrap().is_some());
    assert!(become_idle(&one).await.is_queue_idle);

    rig.push_task(push_command("a")).await;
    let run = other.start_one().await;
    assert!(!poll_idle(&one, Duration::ZERO).await);
    assert!(!become_idle(&one).await.is_queue_idle);
    assert!(other.settle_run(&run, TaskOutcome::Done).await);
    assert!(become_idle(&one).await.is_queue_idle);

    rig.backend().set_tasks_paused(test_queue(), true).await.unwrap();
    rig.push_task(push_command("b")).await;
    assert!(!become_idle(&one).await.is_queue_idle);
}

/// A worker whose wake-up was lost, or has not been handled yet.
async fn idle_poll_does_not_relist_woken_worker(rig: &StoreHarness) {
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::new(rig));
    assert!(!poll_idle(&one, SECOND * 8).await, "the worker was never listed as idle");
    become_idle(&one).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    let run = other.start_one().await;
    assert!(other.settle_run(&run, TaskOutcome::Done).await);
    assert!(!poll_idle(&one, SECOND * 8).await, "the queue is empty but the worker is not listed");
    rig.push_task(push_command("b")).await;
    // A push that finds no idle worker sends no message. This poll comes when a message would have
    // arrived.
    let run = other.start_one().await;
    assert!(other.settle_run(&run, TaskOutcome::Done).await);
    become_idle(&one).await;
    rig.push_task(push_command("c")).await;
    assert!(is_woken_in_time(&one).await && !was_woken(&one), "the worker was woken once");
}
