//! Dead letters, and the operations on them.

use super::{
    StoreHarness, on_every_store,
    polling_worker::{
        DEAD_LETTER_RETENTION, PollingWorker, SECOND, dead_outcome, delayed_push_command,
        push_command, test_queue,
    },
};
use crate::store::{TaskId, TaskState, tasks::DeadLetterLimits};

on_every_store!(
    every_dead_letter_is_listed_in_order,
    expired_dead_letters_are_trimmed_and_counted,
    newest_dead_letter_is_kept_despite_earliest_expiry,
    dead_letters_beyond_max_bytes_are_trimmed,
    dead_letter_above_max_bytes_is_not_kept,
    lowered_limit_trims_hundred_dead_letters_per_poll,
    single_dead_letter_can_be_purged,
);

/// Runs tasks to dead letters, in this order.
async fn run_to_dead_letters(
    rig: &StoreHarness,
    worker: &PollingWorker<'_>,
    payloads: &[&str],
) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for payload in payloads {
        ids.push(rig.push_task(push_command(payload)).await);
        let run = worker.start_one().await;
        assert!(worker.settle_run(&run, dead_outcome("hopeless")).await);
    }
    ids
}

/// Holds for any number of dead letters of one time, as on a manual clock. They are listed in the
/// order of their ends.
async fn every_dead_letter_is_listed_in_order(rig: &StoreHarness) {
    let mut worker = PollingWorker::new(rig);
    worker.dead_letter_limits = DeadLetterLimits { max_count: 2_000, ..worker.dead_letter_limits };
    let mut ids = run_to_dead_letters(rig, &worker, &["first"]).await;
    for _ in 0..10 {
        let pushes = (0..100).map(|_| rig.try_push_task(push_command("a")));
        futures_util::future::join_all(pushes).await;
        let runs = worker.start_runs(100).await;
        let settlements =
            runs.iter().map(|run| run.settlement_with(dead_outcome("hopeless"))).collect();
        worker.poll_tasks(worker.poll_command(0, settlements)).await;
        ids.extend(runs.into_iter().map(|run| run.token.id));
    }
    let (mut listed, mut after) = (Vec::new(), Some(0));
    while let Some(cursor) = after {
        let page = rig.backend().list_dead_letters(test_queue(), cursor, 10).await.unwrap();
        listed.extend(page.dead_letters.into_iter().map(|view| view.id));
        after = page.next;
    }
    assert_eq!(listed.len(), 1_001);
    assert!(listed == ids, "in another order");
}

async fn expired_dead_letters_are_trimmed_and_counted(rig: &StoreHarness) {
    let worker = PollingWorker::new(rig);
    let ids = run_to_dead_letters(rig, &worker, &["a"]).await;
    rig.advance_past(DEAD_LETTER_RETENTION).await;
    worker.start_runs(1).await;
    assert_eq!(rig.task_view(&ids[0]).await, None);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.trimmed, stats.dead_letters), (1, 0));
}

/// Workers of another version may use a shorter retention.
async fn newest_dead_letter_is_kept_despite_earliest_expiry(rig: &StoreHarness) {
    let mut worker = PollingWorker::new(rig);
    worker.dead_letter_limits = DeadLetterLimits { max_count: 2, ..worker.dead_letter_limits };
    let older = run_to_dead_letters(rig, &worker, &["a", "b"]).await;
    worker.dead_letter_limits.retention = DEAD_LETTER_RETENTION / 2;
    let newest = run_to_dead_letters(rig, &worker, &["c"]).await.remove(0);
    assert_eq!(rig.task_view(&newest).await.map(|view| view.state), Some(TaskState::Dead));
    assert_eq!(rig.task_view(&older[0]).await, None);
    assert_eq!(rig.task_view(&older[1]).await.map(|view| view.state), Some(TaskState::Dead));
    // The same for the limit of bytes.
    let bytes = rig.queue_stats().await.dead_bytes;
    worker.dead_letter_limits = DeadLetterLimits {
        retention: DEAD_LETTER_RETENTION / 4,
        max_count: 100,
        max_bytes: bytes,
        ..worker.dead_letter_limits
    };
    let last = run_to_dead_letters(rig, &worker, &["d"]).await.remove(0);
    assert_eq!(rig.task_view(&last).await.map(|view| view.state), Some(TaskState::Dead));
    let stats = rig.queue_stats().await;
    assert_eq!((stats.trimmed, stats.dead_letters, stats.dead_bytes), (2, 2, bytes));
}

/// Returns the bytes of all dead letters, as the store counts them.
async fn dead_letter_bytes(rig: &StoreHarness) -> u64 {
    rig.queue_stats().await.dead_bytes
}

async fn dead_letters_beyond_max_bytes_are_trimmed(rig: &StoreHarness) {
    let mut worker = PollingWorker::new(rig);
    let first = run_to_dead_letters(rig, &worker, &["a"]).await.remove(0);
    let letter_bytes = dead_letter_bytes(rig).await;
    assert!(letter_bytes > 1, "a letter has bytes");
    worker.dead_letter_limits =
        DeadLetterLimits { max_bytes: 3 * letter_bytes, ..worker.dead_letter_limits };
    let ids = run_to_dead_letters(rig, &worker, &["b", "c"]).await;
    let stats = rig.queue_stats().await;
    assert_eq!((stats.trimmed, stats.dead_letters, stats.dead_bytes), (0, 3, 3 * letter_bytes));
    // One byte beyond the limit evicts the oldest dead letters.
    let longer = run_to_dead_letters(rig, &worker, &["dd"]).await.remove(0);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.trimmed, stats.dead_letters), (2, 2));
    assert_eq!(stats.dead_bytes, 2 * letter_bytes + 1);
    assert_eq!((rig.task_view(&first).await, rig.task_view(&ids[0]).await), (None, None));
    // A redriven or purged dead letter no longer counts.
    assert!(rig.backend().redrive_dead_letter(test_queue(), longer).await.unwrap());
    assert_eq!(dead_letter_bytes(rig).await, letter_bytes);
    assert_eq!(rig.queue_stats().await.bytes, letter_bytes + 1);
    assert_eq!(rig.backend().purge_dead_letters(test_queue()).await.unwrap(), 1);
    assert_eq!(dead_letter_bytes(rig).await, 0);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.dead, stats.trimmed, stats.waiting), (4, 3, 1));
}

async fn dead_letter_above_max_bytes_is_not_kept(rig: &StoreHarness) {
    let mut worker = PollingWorker::new(rig);
    worker.dead_letter_limits = DeadLetterLimits { max_bytes: 10, ..worker.dead_letter_limits };
    let ids = run_to_dead_letters(rig, &worker, &["far too long"]).await;
    assert_eq!(rig.task_view(&ids[0]).await, None);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.dead, stats.trimmed, stats.dead_letters), (1, 1, 0));
    assert_eq!((stats.dead_bytes, stats.bytes), (0, 0));
}

async fn lowered_limit_trims_hundred_dead_letters_per_poll(rig: &StoreHarness) {
    let mut worker = PollingWorker::new(rig);
    worker.dead_letter_limits = DeadLetterLimits { max_count: 1_000, ..worker.dead_letter_limits };
    for n in 0..130 {
        rig.push_task(push_command(&n.to_string())).await;
    }
    for _ in 0..2 {
        for run in worker.start_runs(100).await {
            assert!(worker.settle_run(&run, dead_outcome("hopeless")).await);
        }
    }
    assert_eq!(rig.queue_stats().await.dead_letters, 130);
    worker.dead_letter_limits = DeadLetterLimits { max_bytes: 0, ..worker.dead_letter_limits };
    for remaining in [30, 0] {
        rig.advance_past(SECOND).await;
        worker.start_runs(1).await;
        assert_eq!(rig.queue_stats().await.dead_letters, remaining);
    }
    let stats = rig.queue_stats().await;
    assert_eq!((stats.trimmed, stats.dead_bytes), (130, 0));
}

async fn single_dead_letter_can_be_purged(rig: &StoreHarness) {
    let worker = PollingWorker::new(rig);
    let ids = run_to_dead_letters(rig, &worker, &["a", "bb", "c"]).await;
    let running = rig.push_task(push_command("runs")).await;
    worker.start_one().await;
    let waiting = rig.push_task(delayed_push_command("waits", SECOND)).await;
    let (before, bytes) =
        (rig.queue_stats().await, rig.task_view(&ids[0]).await.unwrap().payload_bytes);
    let purge = |id: &TaskId| rig.backend().purge_dead_letter(test_queue(), id.clone());
    assert!(purge(&ids[1]).await.unwrap());
    for id in [&ids[1], &running, &waiting, &TaskId::new()] {
        assert!(!purge(id).await.unwrap());
    }
    assert_eq!(rig.task_view(&ids[1]).await, None);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.trimmed, stats.dead_letters), (1, 2));
    assert_eq!((stats.waiting, stats.running, stats.bytes), (1, 1, before.bytes));
    // One byte more than a third.
    let freed = before.dead_bytes - stats.dead_bytes;
    assert_eq!((freed, bytes), (before.dead_bytes / 3 + 1, 1));
    assert!(purge(&ids[0]).await.unwrap() && purge(&ids[2]).await.unwrap());
    assert_eq!(rig.queue_stats().await.dead_bytes, 0);
}

/// Only Redis, because the embedded store cannot lose records.
#[cfg(feature = "redis")]
#[tokio::test]
async fn tasks_without_records_can_be_purged() {
    let rig = &StoreHarness::redis().await;
    let worker = PollingWorker::new(rig);
    run_to_dead_letters(rig, &worker, &["a", "b"]).await;
    let waiting = [
        rig.push_task(push_command("c")).await,
        rig.push_task(push_command("d")).await,
        rig.push_task(push_command("e")).await,
    ];
    rig.delete_queue_key("zt").await;
    let state = rig.backend().cancel_task(test_queue(), waiting[0].clone()).await;
    assert_eq!(state.unwrap(), Some(TaskState::Waiting));
    let page = rig.backend().purge_waiting(test_queue(), None, 100).await.unwrap();
    assert_eq!((page.purged, page.next), (2, None));
    assert_eq!(rig.backend().purge_dead_letters(test_queue()).await.unwrap(), 2);
    let stats = rig.queue_stats().await;
    assert_eq!((stats.waiting, stats.dead_letters), (0, 0));
    assert_eq!((stats.bytes, stats.dead_bytes), (0, 0), "of nothing");
    assert_eq!((stats.cancelled, stats.trimmed), (3, 2));
}
