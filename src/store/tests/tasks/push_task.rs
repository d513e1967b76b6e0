//! Pushing: order, delay, unique keys, capacity.

use std::time::Duration;

use super::{
    StoreHarness, on_every_store,
    polling_worker::{
        PollingWorker, SECOND, dead_outcome, delayed_push_command, push_command, run_payloads,
        unique_push_command,
    },
};
use crate::store::{
    QueueStats, TaskState,
    tasks::{TaskOutcome, TaskPushCommand, TaskPushOutcome},
};

on_every_store!(
    delayed_task_starts_when_due,
    task_with_max_delay_is_timed_and_purged,
    unique_key_admits_one_pending_task,
    redriven_task_reclaims_free_unique_key,
    unique_window_outlives_its_task,
    full_queue_refuses_push,
    full_queue_still_reports_duplicates,
    task_view_follows_state_of_task,
    concurrent_pushes_are_all_stored,
    clock_rewind_does_not_delay_new_task,
);

async fn delayed_task_starts_when_due(rig: &StoreHarness) {
    let id = rig.push_task(delayed_push_command("late", SECOND * 20)).await;
    rig.push_task(delayed_push_command("later", SECOND * 30)).await;
    rig.push_task(push_command("now")).await;
    let worker = PollingWorker::new(rig);
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["now"]);
    let due = rig.task_view(&id).await.unwrap().due_in;
    assert!(due <= SECOND * 20 && due > SECOND * 15, "{due:?}");
    rig.advance(SECOND * 10).await;
    let outcome = worker.poll_tasks(worker.poll_command(9, Vec::new())).await;
    assert!(outcome.started.is_empty());
    let wait = outcome.next_poll_in.expect("it has the timer");
    assert!(wait <= SECOND * 10 && wait > SECOND * 5, "{wait:?}");
    rig.advance_past(SECOND * 10).await;
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["late"]);
    rig.advance_past(SECOND * 10).await;
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["later"]);
}

/// The longest delay overflows none of its encodings: a purge reaches the task, and the timer
/// worker knows its due time.
async fn task_with_max_delay_is_timed_and_purged(rig: &StoreHarness) {
    let max_delay = crate::durations::MAX_DELAY;
    let id = rig.push_task(delayed_push_command("far", max_delay)).await;
    rig.push_task(delayed_push_command("later", max_delay)).await;
    let is_near = |due: Duration| due <= max_delay && due + SECOND * 60 > max_delay;
    let due = rig.task_view(&id).await.unwrap().due_in;
    assert!(is_near(due), "{due:?}");
    let worker = PollingWorker::new(rig);
    let outcome = worker.poll_tasks(worker.poll_command(9, Vec::new())).await;
    assert!(
        outcome.started.is_empty() && is_near(outcome.next_poll_in.unwrap()),
        "{:?}",
        outcome.next_poll_in
    );
    let first =
        rig.backend().purge_waiting(super::polling_worker::test_queue(), None, 1).await.unwrap();
    assert_eq!((first.purged, rig.task_view(&id).await), (1, None));
    let second = rig
        .backend()
        .purge_waiting(super::polling_worker::test_queue(), first.next, 9)
        .await
        .unwrap();
    assert_eq!((second.purged, second.next), (1, None));
    assert_eq!(rig.queue_stats().await.bytes, 0);
}

async fn unique_key_admits_one_pending_task(rig: &StoreHarness) {
    let first = rig.push_task(unique_push_command("a", "k", None)).await;
    assert_eq!(
        rig.try_push_task(unique_push_command("b", "k", None)).await,
        TaskPushOutcome::Duplicate(first.clone())
    );
    rig.push_task(unique_push_command("c", "other", None)).await;
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert_eq!(run.payload, "a");
    // The key is taken while the task runs, too.
    assert_eq!(
        rig.try_push_task(unique_push_command("b", "k", None)).await,
        TaskPushOutcome::Duplicate(first.clone())
    );
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    rig.push_task(unique_push_command("d", "k", None)).await;
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["c", "d"]);
}

async fn redriven_task_reclaims_free_unique_key(rig: &StoreHarness) {
    let worker = PollingWorker::new(rig);
    let redrive = |id| rig.backend().redrive_dead_letter(super::polling_worker::test_queue(), id);
    let first = rig.push_task(unique_push_command("a", "k", None)).await;
    assert!(worker.settle_run(&worker.start_one().await, dead_outcome("hopeless")).await);
    assert!(redrive(first.clone()).await.unwrap());
    assert_eq!(
        rig.try_push_task(unique_push_command("b", "k", None)).await,
        TaskPushOutcome::Duplicate(first.clone())
    );
    assert!(worker.settle_run(&worker.start_one().await, dead_outcome("hopeless")).await);
    // Another task has taken the key meanwhile, and keeps it.
    let second = rig.push_task(unique_push_command("c", "k", None)).await;
    assert!(redrive(first).await.unwrap());
    assert_eq!(
        rig.try_push_task(unique_push_command("d", "k", None)).await,
        TaskPushOutcome::Duplicate(second)
    );
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["c", "a"]);
}

async fn unique_window_outlives_its_task(rig: &StoreHarness) {
    let window = Some(SECOND * 60);
    let first = rig.push_task(unique_push_command("a", "k", window)).await;
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    rig.advance(SECOND * 30).await;
    assert_eq!(
        rig.try_push_task(unique_push_command("b", "k", window)).await,
        TaskPushOutcome::Duplicate(first)
    );
    // A key without a window is a different kind.
    rig.push_task(unique_push_command("c", "k", None)).await;
    rig.advance_past(SECOND * 30).await;
    rig.push_task(unique_push_command("d", "k", window)).await;
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["c", "d"]);
}

async fn full_queue_refuses_push(rig: &StoreHarness) {
    let caps = (2, 1 << 20);
    rig.push_task(TaskPushCommand { capacity: caps, ..push_command("a") }).await;
    rig.push_task(TaskPushCommand { capacity: caps, ..push_command("b") }).await;
    let third = TaskPushCommand { capacity: caps, ..push_command("c") };
    assert_eq!(rig.try_push_task(third.clone()).await, TaskPushOutcome::Full);
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    // The same task is accepted when there is room.
    rig.push_task(third).await;
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    let bytes = rig.queue_stats().await.bytes;
    let large = TaskPushCommand { capacity: (9, bytes + 30), ..push_command(&"x".repeat(30)) };
    assert_eq!(rig.try_push_task(large).await, TaskPushOutcome::Full);
    let fits = TaskPushCommand { capacity: (9, bytes + 30), ..push_command("x") };
    rig.push_task(fits).await;
    assert_eq!(worker.start_runs(9).await.len(), 3);
}

async fn full_queue_still_reports_duplicates(rig: &StoreHarness) {
    let worker = PollingWorker::new(rig);
    for window in [None, Some(SECOND * 60)] {
        let (full_count, full_bytes) = ((1, 1 << 20), (9, 1));
        let first = rig.push_task(unique_push_command("a", "k", window)).await;
        for caps in [full_count, full_bytes] {
            let duplicate =
                TaskPushCommand { capacity: caps, ..unique_push_command("b", "k", window) };
            assert_eq!(
                rig.try_push_task(duplicate).await,
                TaskPushOutcome::Duplicate(first.clone())
            );
            let other =
                TaskPushCommand { capacity: caps, ..unique_push_command("c", "other", window) };
            assert_eq!(rig.try_push_task(other).await, TaskPushOutcome::Full);
        }
        // The refused task has not taken its key.
        rig.push_task(unique_push_command("d", "other", window)).await;
        let runs = worker.start_runs(9).await;
        assert_eq!(run_payloads(&runs), ["a", "d"]);
        for run in runs {
            assert!(worker.settle_run(&run, TaskOutcome::Done).await);
        }
    }
}

async fn task_view_follows_state_of_task(rig: &StoreHarness) {
    let id = rig.push_task(delayed_push_command("12345", SECOND * 9)).await;
    let view = rig.task_view(&id).await.unwrap();
    assert_eq!((view.state, view.payload_bytes, view.history.attempts), (TaskState::Waiting, 5, 0));
    assert!(view.due_in > SECOND * 5 && view.due_in <= SECOND * 9 && view.pushed_us > 0);
    rig.advance_past(SECOND * 9).await;
    assert_eq!(rig.task_view(&id).await.unwrap().due_in, Duration::ZERO);
    let worker = PollingWorker::new(rig);
    let run = worker.start_one().await;
    assert_eq!(rig.task_view(&id).await.unwrap().state, TaskState::Running);
    let payload =
        rig.backend().task_payload(super::polling_worker::test_queue(), id.clone()).await.unwrap();
    assert!(payload.unwrap().ends_with(b"\n12345"));
    let stats = rig.queue_stats().await;
    let expected =
        QueueStats { running: 1, bytes: run.record_bytes, pushed: 1, ..QueueStats::default() };
    assert_eq!(stats, expected);
    assert!(worker.settle_run(&run, TaskOutcome::Done).await);
    assert_eq!(rig.task_view(&id).await, None);
    let expected = QueueStats { pushed: 1, done: 1, ..QueueStats::default() };
    assert_eq!(rig.queue_stats().await, expected);
}

async fn concurrent_pushes_are_all_stored(rig: &StoreHarness) {
    let calls: Vec<_> = (0..300).map(|n| push_command(&n.to_string())).collect();
    let pushes = calls.into_iter().map(|call| rig.try_push_task(call));
    let stored = futures_util::future::join_all(pushes).await;
    assert!(stored.iter().all(|stored| *stored == TaskPushOutcome::Stored));
    let worker = PollingWorker::new(rig);
    let mut payloads = Vec::new();
    for _ in 0..3 {
        let runs = worker.start_runs(100).await;
        payloads.extend(runs.iter().map(|run| run.payload.parse::<u32>().unwrap()));
    }
    assert_eq!(payloads.len(), 300);
    payloads.sort_unstable();
    assert!(payloads.into_iter().eq(0..300));
}

async fn clock_rewind_does_not_delay_new_task(rig: &StoreHarness) {
    rig.push_task(push_command("old")).await;
    rig.rewind_clock(SECOND * 3600).await;
    rig.push_task(push_command("new")).await;
    let worker = PollingWorker::new(rig);
    let runs = worker.start_runs(9).await;
    assert_eq!(run_payloads(&runs), ["new"]);
    assert!(worker.settle_run(&runs[0], TaskOutcome::Done).await);
    rig.advance_past(SECOND * 3600).await;
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["old"]);
}
