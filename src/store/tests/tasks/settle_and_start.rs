//! Polls that settle one run and start the next.

use std::time::Duration;

use super::{
    StoreHarness, on_every_store,
    polling_worker::{PollingWorker, SECOND, TaskRunHandle, push_command, retry_outcome},
};
use crate::store::tasks::{TaskOutcome, TaskPollCommand, TaskPollOutcome};

on_every_store!(
    repeated_settle_and_start_has_one_effect,
    settle_and_start_counts_earlier_attempts,
    settle_and_start_reaps_expired_runs,
    settling_lost_run_starts_nothing,
);

fn settle_and_start_command(worker: &PollingWorker<'_>, run: &TaskRunHandle) -> TaskPollCommand {
    worker.poll_command(1, vec![run.settlement_with(TaskOutcome::Done)])
}

/// Settles a run. Returns the run that has started instead.
async fn settle_and_start(
    worker: &PollingWorker<'_>,
    run: &TaskRunHandle,
) -> Option<TaskRunHandle> {
    let command = settle_and_start_command(worker, run);
    let poll_number = command.poll_number;
    let TaskPollOutcome { settled, started: runs, is_listed_idle, .. } =
        worker.poll_tasks(command).await;
    assert_eq!((settled, is_listed_idle), (vec![true], runs.is_empty()));
    assert!(runs.len() < 2);
    runs.into_iter().next().map(|started| worker.decode_run(started, poll_number))
}

async fn repeated_settle_and_start_has_one_effect(rig: &StoreHarness) {
    for payload in ["0", "1", "2", "3"] {
        rig.push_task(push_command(payload)).await;
    }
    let worker = PollingWorker::new(rig);
    let mut run = worker.start_one().await;
    let mut previous: Option<TaskPollCommand> = None;
    for payload in ["1", "2", "3"] {
        let command = settle_and_start_command(&worker, &run);
        let poll_number = command.poll_number;
        let first_reply = worker.poll_tasks(command.clone()).await;
        let second_reply = worker.poll_tasks(command.clone()).await;
        assert_eq!(
            (&first_reply.settled, &first_reply.started),
            (&second_reply.settled, &second_reply.started)
        );
        // A late copy of an earlier poll starts nothing.
        if let Some(late) = previous.replace(command) {
            assert_eq!(worker.poll_tasks(late).await.started, []);
        }
        run = worker.decode_run(
            first_reply.started.into_iter().next().expect("another one is due"),
            poll_number,
        );
        assert_eq!(run.payload, payload);
        assert_eq!(rig.queue_stats().await.running, 1);
    }
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    assert_eq!(rig.queue_stats().await.done, 4);
}

async fn settle_and_start_counts_earlier_attempts(rig: &StoreHarness) {
    let id = rig.push_task(push_command("a")).await;
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert!(worker.settle_run(&run, retry_outcome(SECOND * 20)).await);
    for payload in ["b", "c"] {
        rig.push_task(push_command(payload)).await;
    }
    let mut run = worker.start_one().await;
    rig.advance_past(SECOND * 20).await;
    for (payload, attempt) in [("c", 1), ("a", 2)] {
        run = settle_and_start(&worker, &run).await.expect("another one is due");
        assert_eq!((run.payload.as_str(), run.attempt), (payload, attempt));
    }
    assert!(settle_and_start(&worker, &run).await.is_none());
    assert_eq!(rig.task_view(&id).await, None);
}

async fn settle_and_start_reaps_expired_runs(rig: &StoreHarness) {
    for payload in ["0", "1", "2"] {
        rig.push_task(push_command(payload)).await;
    }
    let (dead, worker) = (PollingWorker::new(rig), PollingWorker::new(rig));
    let short = Duration::from_millis(100);
    dead.poll_tasks(TaskPollCommand { lease: short, ..dead.poll_command(1, Vec::new()) }).await;
    let run = worker.start_one().await;
    rig.advance_past(short).await;
    let run = settle_and_start(&worker, &run).await.expect("another one is due");
    assert_eq!((run.payload.as_str(), rig.queue_stats().await.crashed), ("2", 1));
    let run = settle_and_start(&worker, &run).await.expect("the lost run starts again");
    assert_eq!((run.payload.as_str(), run.attempt), ("0", 2));
}

async fn settling_lost_run_starts_nothing(rig: &StoreHarness) {
    for payload in ["0", "1"] {
        rig.push_task(push_command(payload)).await;
    }
    let (paused, other) = (PollingWorker::new(rig), PollingWorker::new(rig));
    let command = TaskPollCommand { lease: SECOND, ..paused.poll_command(1, Vec::new()) };
    let poll_number = command.poll_number;
    let started = paused.poll_tasks(command).await.started.remove(0);
    let run = paused.decode_run(started, poll_number);
    rig.advance_past(SECOND).await;
    assert_eq!(other.start_runs(9).await.len(), 2);
    let outcome = paused.poll_tasks(settle_and_start_command(&paused, &run)).await;
    assert_eq!((outcome.settled, outcome.started), (vec![false], Vec::new()));
    assert_eq!(rig.queue_stats().await.done, 0);
}
