//! Ends of runs: done, retried, dead, returned, lost; repeated polls.

use super::{
    StoreHarness, on_every_store,
    polling_worker::{
        PollingWorker, RUN_LEASE, SECOND, dead_outcome, push_command, retry_outcome,
        return_outcome, run_payloads, test_queue, unique_push_command,
    },
};
use crate::store::{
    QueueStats, TaskFault, TaskState,
    tasks::{MAX_HISTORY, TaskOutcome, TaskPollOutcome, TaskPushCommand},
};

on_every_store!(
    failure_history_keeps_last_entries,
    repeated_poll_has_one_effect,
    poll_after_its_successor_has_no_effect,
    settled_run_cannot_be_settled_again,
    run_with_expired_lease_is_retried,
    reaped_run_cannot_renew_or_settle,
    crashed_task_without_retry_becomes_dead,
    poll_tells_which_runs_it_has_taken_back,
    task_becomes_dead_after_max_crashes,
    two_workers_share_due_tasks,
    cancelled_run_deletes_its_task_and_frees_its_unique_key,
);

async fn failure_history_keeps_last_entries(rig: &StoreHarness) {
    let id = rig.push_task(TaskPushCommand { max_attempts: 100, ..push_command("a") }).await;
    let worker = PollingWorker::new(rig);
    for attempt in 1..=10 {
        let run = worker.start_one().await;
        assert_eq!(run.attempt, attempt);
        let reason = format!("number {attempt} of ten");
        let outcome = TaskOutcome::Retry { delay: SECOND, fault: TaskFault::Panicked, reason };
        assert!(worker.settle_run(&run, outcome).await);
        rig.advance_past(SECOND).await;
    }
    let run = worker.start_one().await;
    assert!(worker.settle_run(&run, dead_outcome("enough")).await);
    let view = rig.task_view(&id).await.unwrap();
    assert_eq!((view.state, view.history.attempts, view.history.crashes), (TaskState::Dead, 11, 0));
    let history = &view.history.failures;
    assert_eq!(history.len(), MAX_HISTORY);
    assert_eq!(history[0].reason, "number 4 of ten");
    assert_eq!(history[MAX_HISTORY - 1].reason, "enough");
    assert_eq!(history[MAX_HISTORY - 1].fault, TaskFault::Failed);
    assert!(history[0].at_us > 0);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.panicked, stats.failed, stats.dead), (10, 1, 1));
    assert_eq!((stats.bytes, stats.dead_letters), (0, 1));
}

async fn cancelled_run_deletes_its_task_and_frees_its_unique_key(rig: &StoreHarness) {
    let worker = PollingWorker::new(rig);
    for command in [push_command("a"), unique_push_command("b", "u", None)] {
        let id = rig.push_task(command).await;
        let run = worker.start_one().await;
        assert!(worker.settle_run(&run, retry_outcome(SECOND)).await);
        rig.advance_past(SECOND).await;
        let run = worker.start_one().await;
        assert!(worker.settle_run(&run, TaskOutcome::Cancelled).await);
        assert!(!worker.settle_run(&run, TaskOutcome::Cancelled).await, "it has ended");
        assert_eq!(rig.task_view(&id).await, None);
    }
    let stats = rig.queue_stats().await;
    assert_eq!((stats.cancelled, stats.done, stats.failed), (2, 0, 2));
    assert_eq!((stats.bytes, stats.running, stats.waiting), (0, 0, 0));
    rig.push_task(unique_push_command("c", "u", None)).await;
    assert_eq!(run_payloads(&worker.start_runs(2).await), ["c"], "its key is free");
}

async fn repeated_poll_has_one_effect(rig: &StoreHarness) {
    for payload in ["a", "b", "c", "d"] {
        rig.push_task(push_command(payload)).await;
    }
    let worker = PollingWorker::new(rig);
    let first = worker.start_one().await;
    let command = worker.poll_command(2, vec![first.settlement_with(retry_outcome(SECOND * 20))]);
    let first_reply = worker.poll_tasks(command.clone()).await;
    let second_reply = worker.poll_tasks(command).await;
    assert_eq!(
        (&first_reply.settled, &first_reply.started),
        (&second_reply.settled, &second_reply.started)
    );
    assert_eq!(second_reply.started.len(), 2);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.running, stats.waiting, stats.failed), (2, 2, 1));
}

async fn poll_after_its_successor_has_no_effect(rig: &StoreHarness) {
    rig.push_task(push_command("a")).await;
    let worker = PollingWorker::new(rig);
    let (early, late) = (worker.poll_command(1, Vec::new()), worker.poll_command(0, Vec::new()));
    worker.poll_tasks(late).await;
    assert_eq!(worker.poll_tasks(early).await, TaskPollOutcome::default());
    assert_eq!(rig.queue_stats().await.running, 0);
}

async fn settled_run_cannot_be_settled_again(rig: &StoreHarness) {
    rig.push_task(push_command("a")).await;
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    for outcome in [TaskOutcome::Done, retry_outcome(SECOND), dead_outcome("x"), return_outcome()] {
        assert!(!worker.settle_run(&run, outcome).await);
    }
    let expected = QueueStats { pushed: 1, done: 1, ..QueueStats::default() };
    assert_eq!(rig.queue_stats().await, expected);
}

async fn run_with_expired_lease_is_retried(rig: &StoreHarness) {
    let id = rig.push_task(push_command("a")).await;
    let (dead, alive) = (PollingWorker::new(rig), PollingWorker::new(rig));
    dead.start_one().await;
    assert!(alive.start_runs(1).await.is_empty());
    rig.advance_past(RUN_LEASE).await;
    let run = alive.start_one().await;
    assert_eq!((run.attempt, run.payload.as_str()), (2, "a"));
    let history = rig.task_view(&id).await.unwrap().history;
    assert_eq!((history.attempts, history.crashes, history.failures.len()), (1, 1, 1));
    assert_eq!(history.failures[0].fault, TaskFault::Crashed);
    assert!(alive.settle_run(&run, TaskOutcome::Done).await);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.crashed, stats.failed, stats.done), (1, 0, 1));
    assert_eq!(rig.task_view(&id).await, None);
}

async fn reaped_run_cannot_renew_or_settle(rig: &StoreHarness) {
    rig.push_task(push_command("a")).await;
    let (paused, other) = (PollingWorker::new(rig), PollingWorker::new(rig));
    let reaped = paused.start_one().await;
    rig.advance_past(RUN_LEASE).await;
    let current = other.start_one().await;
    let renewed = rig.backend().renew_runs(
        test_queue(),
        vec![reaped.token.clone(), current.token.clone()],
        RUN_LEASE,
    );
    assert_eq!(renewed.await.unwrap(), [false, true]);
    for outcome in [TaskOutcome::Done, retry_outcome(SECOND), dead_outcome("x"), return_outcome()] {
        assert!(!paused.settle_run(&reaped, outcome).await);
    }
    assert!(other.settle_run(&current, TaskOutcome::Done).await);
}

async fn crashed_task_without_retry_becomes_dead(rig: &StoreHarness) {
    let call = TaskPushCommand { retry_after_crash: false, ..unique_push_command("a", "k", None) };
    let id = rig.push_task(call).await;
    let (worker, other) = (PollingWorker::new(rig), PollingWorker::new(rig));
    worker.start_one().await;
    rig.advance_past(RUN_LEASE).await;
    assert!(other.start_runs(1).await.is_empty());
    let view = rig.task_view(&id).await.unwrap();
    assert_eq!(view.state, TaskState::Dead);
    assert_eq!(view.history.failures[0].reason, "crashed, may have run");
    // The unique key of a dead task is free.
    rig.push_task(unique_push_command("b", "k", None)).await;
}

async fn poll_tells_which_runs_it_has_taken_back(rig: &StoreHarness) {
    for retry_after_crash in [true, false, true] {
        rig.push_task(TaskPushCommand { retry_after_crash, ..push_command("a") }).await;
    }
    let (dead, alive) = (PollingWorker::new(rig), PollingWorker::new(rig));
    assert_eq!(dead.start_runs(3).await.len(), 3);
    rig.advance_past(RUN_LEASE).await;
    let command = alive.poll_command(2, Vec::new());
    let reply = alive.poll_tasks(command.clone()).await;
    assert_eq!((reply.lost_runs, reply.dead_runs, reply.started.len()), (2, 1, 2));
    let repeated = alive.poll_tasks(command).await;
    assert_eq!((repeated.lost_runs, repeated.dead_runs), (2, 1), "the first reply may be lost");
    assert_eq!(repeated.started, reply.started);
    let next = alive.poll_tasks(alive.poll_command(0, Vec::new())).await;
    assert_eq!((next.lost_runs, next.dead_runs), (0, 0));
}

async fn task_becomes_dead_after_max_crashes(rig: &StoreHarness) {
    let id = rig.push_task(TaskPushCommand { max_attempts: 9, ..push_command("a") }).await;
    let worker = PollingWorker::new(rig);
    for _ in 0..worker.dead_letter_limits.max_crashes {
        worker.start_one().await;
        rig.advance_past(RUN_LEASE).await;
    }
    assert!(worker.start_runs(1).await.is_empty());
    assert_eq!(rig.task_view(&id).await.unwrap().state, TaskState::Dead);
    assert_eq!(rig.queue_stats().await.crashed, 2);
}

async fn two_workers_share_due_tasks(rig: &StoreHarness) {
    for n in 0..10 {
        rig.push_task(push_command(&n.to_string())).await;
    }
    let (one, other) = (PollingWorker::new(rig), PollingWorker::new(rig));
    let (mut runs, other_runs) = (one.start_runs(5).await, other.start_runs(9).await);
    assert_eq!((runs.len(), other_runs.len()), (5, 5));
    runs.extend(other_runs);
    assert_eq!(run_payloads(&runs), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
}

/// Only Redis, because the embedded store cannot lose records.
#[cfg(feature = "redis")]
#[tokio::test]
async fn task_without_record_is_counted_as_lost() {
    let rig = &StoreHarness::redis().await;
    rig.push_task(push_command("a")).await;
    rig.push_task(push_command("b")).await;
    rig.delete_queue_key("zt").await;
    let worker = PollingWorker::new(rig);
    assert!(worker.start_runs(9).await.is_empty());
    rig.push_task(push_command("c")).await;
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["c"]);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.lost, stats.waiting, stats.running), (2, 0, 1));
}

/// Holds for any number of lost tasks, and for any operation that finds them.
#[cfg(feature = "redis")]
#[tokio::test]
async fn lost_waiting_task_leaves_no_history() {
    for tasks in 1..=2 {
        let rig = &StoreHarness::redis().await;
        let worker = PollingWorker::new(rig);
        for _ in 0..tasks {
            rig.push_task(push_command("a")).await;
        }
        let runs = worker.start_runs(9).await;
        let settlements =
            runs.iter().map(|run| run.settlement_with(retry_outcome(SECOND))).collect();
        worker.poll_tasks(worker.poll_command(0, settlements)).await;
        for run in &runs {
            let id = run.token.id.as_str();
            assert_eq!(rig.queue_key_command::<u64>("HDEL", "zt", &[id]).await, 1);
        }
        assert!(rig.has_queue_key("zm").await, "the failure message is stored");
        rig.advance_past(SECOND).await;
        assert!(worker.start_runs(9).await.is_empty());
        assert_eq!(rig.queue_stats().await.lost, tasks);
        assert!(!rig.has_queue_key("zm").await);
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn lost_running_or_dead_task_leaves_no_history() {
    let rig = &StoreHarness::redis().await;
    let worker = PollingWorker::new(rig);
    rig.push_task(push_command("a")).await;
    assert!(worker.settle_run(&worker.start_one().await, retry_outcome(SECOND)).await);
    rig.advance_past(SECOND).await;
    worker.start_one().await;
    rig.delete_queue_key("zt").await;
    rig.advance_past(RUN_LEASE).await;
    assert!(worker.start_runs(1).await.is_empty());
    assert_eq!(rig.queue_stats().await.lost, 1);
    assert!(!rig.has_queue_key("zm").await);
    let id = rig.push_task(push_command("b")).await;
    assert!(worker.settle_run(&worker.start_one().await, dead_outcome("hopeless")).await);
    rig.delete_queue_key("zt").await;
    assert!(!rig.backend().redrive_dead_letter(test_queue(), id).await.unwrap());
    assert!(!rig.has_queue_key("zm").await);
}
