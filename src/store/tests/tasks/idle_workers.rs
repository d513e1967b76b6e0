//! Idle workers: who is told of what, and who has the timer.

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
);

/// Whether it is told of something before long.
async fn is_woken_in_time(worker: &PollingWorker<'_>) -> bool {
    tokio::time::timeout(Duration::from_secs(20), worker.task_wakeup.notified()).await.is_ok()
}

/// Whether it has been told by now. (What one worker was sent is there once a later message to another is.)
fn was_woken(worker: &PollingWorker<'_>) -> bool {
    worker.task_wakeup.notified().now_or_never().is_some()
}

async fn become_idle(worker: &PollingWorker<'_>) -> TaskPollOutcome {
    let turned = worker.poll_tasks(worker.poll_command(1, Vec::new())).await;
    assert!(turned.started.is_empty() && turned.is_listed_idle);
    turned
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
    // Not heard of for too long.
    rig.advance_past(SECOND * 8).await;
    let turned = other.poll_tasks(other.poll_command(1, Vec::new())).await;
    assert_eq!(turned.started.len(), 1);
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
    // One that comes later than what is known is nobody's business.
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
        // A node of a cluster before 7.0 does not know who listens on another one: the next turn of another worker
        // finds it.
        return;
    }
    let (dead, alive) = (PollingWorker::new(rig), PollingWorker::subscribed(rig).await);
    become_idle(&dead).await;
    rig.advance(SECOND).await;
    become_idle(&alive).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&alive).await);
}

/// They are the first in line, and a push looks at so many and no more.
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
    // It was not woken for this one, so it still stands among the idle.
    let turn = TaskPollCommand { can_stay_idle: true, ..other.poll_command(1, Vec::new()) };
    let turned = other.poll_tasks(turn).await;
    assert_eq!((turned.started.len(), turned.is_listed_idle), (1, false));
    become_idle(&one).await;
    rig.push_task(push_command("b")).await;
    assert!(is_woken_in_time(&one).await);
    assert!(!was_woken(&other));
}

/// A look prolongs its place among the idle, or a push would find nobody there.
async fn long_idle_worker_is_woken(rig: &StoreHarness) {
    let one = PollingWorker::subscribed(rig).await;
    become_idle(&one).await;
    for _ in 0..2 {
        rig.advance_past(SECOND * 5).await;
        let turned = one
            .poll_tasks(TaskPollCommand { can_stay_idle: true, ..one.poll_command(1, Vec::new()) })
            .await;
        assert!(turned.is_listed_idle);
    }
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    assert_eq!(one.start_runs(1).await.len(), 1);
}

async fn poll_idle(worker: &PollingWorker<'_>, longer: Duration) -> bool {
    let (node, id) = (worker.node.clone(), Arc::clone(&worker.worker_id));
    worker.harness.backend().poll_idle(test_queue(), node, id, longer).await.unwrap()
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
    // It waits, for whoever has the timer.
    let late = delayed_push_command("late", SECOND * 100);
    rig.push_task(late.clone()).await;
    assert!(!poll_idle(&one, Duration::ZERO).await);
    assert!(!become_idle(&one).await.is_queue_idle);
    assert!(!become_idle(&other).await.is_queue_idle, "also without the timer");
    assert!(rig.backend().cancel_task(test_queue(), late.id).await.unwrap().is_some());
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

/// Nobody hears what it is told; or what it was told, it has not heard.
async fn idle_poll_does_not_relist_woken_worker(rig: &StoreHarness) {
    let (one, other) = (PollingWorker::subscribed(rig).await, PollingWorker::new(rig));
    assert!(!poll_idle(&one, SECOND * 8).await, "it never stood there");
    become_idle(&one).await;
    rig.push_task(push_command("a")).await;
    assert!(is_woken_in_time(&one).await);
    let run = other.start_one().await;
    assert!(other.settle_run(&run, TaskOutcome::Done).await);
    assert!(!poll_idle(&one, SECOND * 8).await, "nothing waits, and it does not stand there");
    rig.push_task(push_command("b")).await;
    // A push that finds nobody tells nobody: this one comes once that would have been heard.
    let run = other.start_one().await;
    assert!(other.settle_run(&run, TaskOutcome::Done).await);
    become_idle(&one).await;
    rig.push_task(push_command("c")).await;
    assert!(is_woken_in_time(&one).await && !was_woken(&one), "it was told once");
}
