//! Limits shared by all workers: pause, start rate, concurrent runs. Limit of one poll: its bytes.

use super::{
    StoreHarness, on_every_store,
    polling_worker::{PollingWorker, RUN_LEASE, SECOND, delayed_push_command, push_command},
};
use crate::store::tasks::{
    MAX_BYTES_PER_STEP, TaskOutcome, TaskPollOutcome, TaskPushCommand, TaskRunLimits,
};

on_every_store!(
    runs_of_dead_worker_count_until_lease_end,
    start_rate_is_limited,
    poll_starts_at_most_max_bytes_per_step,
    tasks_postponed_by_size_start_later,
);

async fn push_tasks(rig: &StoreHarness, tasks: usize) {
    for n in 0..tasks {
        rig.push_task(push_command(&n.to_string())).await;
    }
}

async fn runs_of_dead_worker_count_until_lease_end(rig: &StoreHarness) {
    push_tasks(rig, 3).await;
    let limits = TaskRunLimits { max_running: 1, ..TaskRunLimits::default() };
    let worker = PollingWorker { run_limits: limits, ..PollingWorker::new(rig) };
    worker.start_one().await;
    assert!(worker.start_runs(9).await.is_empty());
    rig.advance_past(RUN_LEASE).await;
    assert_eq!(worker.start_runs(9).await.len(), 1);
}

async fn start_rate_is_limited(rig: &StoreHarness) {
    push_tasks(rig, 20).await;
    let limits =
        TaskRunLimits { start_interval_us: 2_000_000, start_burst: 5, ..TaskRunLimits::default() };
    let worker = PollingWorker { run_limits: limits, ..PollingWorker::new(rig) };
    assert_eq!(worker.start_runs(9).await.len(), 5);
    let outcome = worker.poll_tasks(worker.poll_command(9, Vec::new())).await;
    assert!(outcome.started.is_empty());
    let wait = outcome.next_poll_in.expect("the outcome has the next poll");
    assert!(wait <= SECOND * 2 && wait > SECOND, "{wait:?}");
    rig.advance_past(wait).await;
    assert_eq!(worker.start_runs(9).await.len(), 1);
    rig.advance_past(SECOND * 100).await;
    assert_eq!(worker.start_runs(9).await.len(), 5);
    assert_eq!(worker.start_runs(9).await.len(), 0);
}

fn started_bytes(outcome: &TaskPollOutcome) -> u64 {
    outcome.started.iter().map(|run| run.record.len() as u64).sum()
}

/// Pushes tasks of a megabyte, including their record heads.
async fn push_large_tasks(rig: &StoreHarness, tasks: usize) {
    for n in 0..tasks {
        let mut payload = n.to_string();
        payload.push_str(&"x".repeat((1 << 20) - 100));
        rig.push_task(TaskPushCommand { capacity: (1000, 1 << 30), ..push_command(&payload) })
            .await;
    }
}

/// Each reply can be repeated. A worker with free run slots asks for the rest at once, and so may
/// others.
async fn poll_starts_at_most_max_bytes_per_step(rig: &StoreHarness) {
    push_large_tasks(rig, 9).await;
    rig.push_task(TaskPushCommand {
        capacity: (1000, 1 << 30),
        ..delayed_push_command("later", SECOND)
    })
    .await;
    let worker = PollingWorker::new(rig);
    let mut started = Vec::new();
    for (runs, is_cut) in [(4, true), (4, true), (1, false)] {
        let command = worker.poll_command(100, Vec::new());
        let outcome = worker.poll_tasks(command.clone()).await;
        assert_eq!(outcome.started.len(), runs);
        assert!(started_bytes(&outcome) <= MAX_BYTES_PER_STEP, "{}", started_bytes(&outcome));
        // A worker with more work is not listed as idle, and polls again at once.
        assert_eq!(
            (outcome.is_listed_idle, outcome.next_poll_in.is_some_and(|wait| wait.is_zero())),
            (!is_cut, is_cut)
        );
        let repeated = worker.poll_tasks(command.clone()).await;
        assert_eq!(repeated.started, outcome.started);
        started.extend(
            outcome.started.into_iter().map(|run| worker.decode_run(run, command.poll_number)),
        );
    }
    let order = Vec::from_iter(started.iter().map(|run| run.payload.chars().next().unwrap()));
    assert_eq!(String::from_iter(order), "012345678");
    assert_eq!(rig.queue_stats().await.running, 9);
    let settlements = started.iter().map(|run| run.settlement_with(TaskOutcome::Done)).collect();
    assert_eq!(worker.poll_tasks(worker.poll_command(0, settlements)).await.settled, [true; 9]);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.waiting, stats.running, stats.lost), (1, 0, 0));
}

/// A postponed task keeps its position and counts for no limit. A task beyond the byte limit starts
/// alone.
async fn tasks_postponed_by_size_start_later(rig: &StoreHarness) {
    let huge = "x".repeat(usize::try_from(MAX_BYTES_PER_STEP).unwrap());
    for payload in ["a", &huge, &huge, "b", "c"] {
        rig.push_task(TaskPushCommand { capacity: (1000, 1 << 30), ..push_command(payload) }).await;
    }
    let limits = TaskRunLimits { max_running: 9, start_interval_us: 100_000_000, start_burst: 5 };
    let worker = PollingWorker { run_limits: limits, ..PollingWorker::new(rig) };
    let mut lengths = Vec::new();
    for _ in 0..5 {
        let runs = worker.start_runs(9).await;
        lengths.push(Vec::from_iter(runs.iter().map(|run| run.payload.len())));
    }
    let huge = huge.len();
    assert_eq!(lengths, [vec![1], vec![huge], vec![huge], vec![1, 1], vec![]]);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.waiting, stats.running, stats.lost), (0, 5, 0));
}
