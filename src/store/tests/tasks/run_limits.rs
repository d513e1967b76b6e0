//! What binds all workers together: pause, rate, most at once. And what binds a turn: its bytes.

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
    let turned = worker.poll_tasks(worker.poll_command(9, Vec::new())).await;
    assert!(turned.started.is_empty());
    let wait = turned.next_poll_in.expect("the next start is known");
    assert!(wait <= SECOND * 2 && wait > SECOND, "{wait:?}");
    rig.advance_past(wait).await;
    assert_eq!(worker.start_runs(9).await.len(), 1);
    rig.advance_past(SECOND * 100).await;
    assert_eq!(worker.start_runs(9).await.len(), 5);
    assert_eq!(worker.start_runs(9).await.len(), 0);
}

fn started_bytes(turned: &TaskPollOutcome) -> u64 {
    turned.started.iter().map(|run| run.record.len() as u64).sum()
}

/// Tasks of a megabyte, but for their records' heads.
async fn push_large_tasks(rig: &StoreHarness, tasks: usize) {
    for n in 0..tasks {
        let mut payload = n.to_string();
        payload.push_str(&"x".repeat((1 << 20) - 100));
        rig.push_task(TaskPushCommand { capacity: (1000, 1 << 30), ..push_command(&payload) })
            .await;
    }
}

/// Each answer is one that can be given again; whoever has room left asks for the others at once, and so may anybody else.
async fn poll_starts_at_most_max_bytes_per_step(rig: &StoreHarness) {
    push_large_tasks(rig, 9).await;
    rig.push_task(TaskPushCommand {
        capacity: (1000, 1 << 30),
        ..delayed_push_command("later", SECOND)
    })
    .await;
    let worker = PollingWorker::new(rig);
    let mut started = Vec::new();
    for (runs, cut) in [(4, true), (4, true), (1, false)] {
        let turn = worker.poll_command(100, Vec::new());
        let turned = worker.poll_tasks(turn.clone()).await;
        assert_eq!(turned.started.len(), runs);
        assert!(started_bytes(&turned) <= MAX_BYTES_PER_STEP, "{}", started_bytes(&turned));
        // It has work: it is not to be woken, and looks again at once.
        assert_eq!(
            (turned.is_listed_idle, turned.next_poll_in.is_some_and(|wait| wait.is_zero())),
            (!cut, cut)
        );
        let repeated = worker.poll_tasks(turn.clone()).await;
        assert_eq!(repeated.started, turned.started);
        started
            .extend(turned.started.into_iter().map(|run| worker.decode_run(run, turn.poll_number)));
    }
    let order = Vec::from_iter(started.iter().map(|run| run.payload.chars().next().unwrap()));
    assert_eq!(String::from_iter(order), "012345678");
    assert_eq!(rig.queue_stats().await.running, 9);
    let ends = started.iter().map(|run| run.settlement_with(TaskOutcome::Done)).collect();
    assert_eq!(worker.poll_tasks(worker.poll_command(0, ends)).await.settled, [true; 9]);
    let numbers = rig.queue_stats().await;
    assert_eq!((numbers.waiting, numbers.running, numbers.lost), (1, 0, 0));
}

/// It stands where it stood, counts for no limit, and what is larger than any answer goes by itself.
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
    let numbers = rig.queue_stats().await;
    assert_eq!((numbers.waiting, numbers.running, numbers.lost), (0, 5, 0));
}
