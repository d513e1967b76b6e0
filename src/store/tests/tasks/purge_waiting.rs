//! Purge of waiting tasks in pages: it removes the tasks pushed before its first page, and no
//! others.

use super::{
    StoreHarness, on_every_store,
    polling_worker::{
        DEAD_LETTER_RETENTION, PollingWorker, SECOND, delayed_push_command, push_command,
        retry_outcome, run_payloads, test_queue,
    },
};
use crate::store::{
    TaskState,
    tasks::{MAX_TASKS_PER_STEP, PurgeCursor, PurgePage},
};

on_every_store!(
    waiting_tasks_are_purged_in_pages,
    task_pushed_during_purge_is_kept,
    purge_skips_newer_tasks_and_reaches_later_ones,
    purge_misses_no_task_of_equal_due_time,
    purge_includes_tasks_in_retry,
    purge_of_empty_queue_ends_at_once,
);

async fn purge_page(rig: &StoreHarness, cursor: Option<PurgeCursor>, limit: usize) -> PurgePage {
    rig.backend().purge_waiting(test_queue(), cursor, limit).await.unwrap()
}

/// Reads all further pages. Returns the number of purged tasks.
async fn purge_remaining(
    rig: &StoreHarness,
    mut cursor: Option<PurgeCursor>,
    limit: usize,
) -> usize {
    let mut purged = 0;
    for _ in 0..1_000 {
        if cursor.is_none() {
            return purged;
        }
        let page = purge_page(rig, cursor, limit).await;
        (purged, cursor) = (purged + page.purged, page.next);
    }
    panic!("it does not end: {cursor:?}");
}

async fn waiting_tasks_are_purged_in_pages(rig: &StoreHarness) {
    for n in 0..120 {
        rig.push_task(delayed_push_command(&n.to_string(), SECOND)).await;
    }
    let first = purge_page(rig, None, MAX_TASKS_PER_STEP).await;
    assert_eq!(
        (first.purged, purge_remaining(rig, first.next, MAX_TASKS_PER_STEP).await),
        (100, 20)
    );
    let stats = rig.queue_stats().await;
    assert_eq!((stats.cancelled, stats.bytes, stats.waiting), (120, 0, 0));
}

async fn task_pushed_during_purge_is_kept(rig: &StoreHarness) {
    let before = [
        rig.push_task(delayed_push_command("a", DEAD_LETTER_RETENTION)).await,
        rig.push_task(delayed_push_command("b", DEAD_LETTER_RETENTION)).await,
    ];
    let first = purge_page(rig, None, 1).await;
    let now = rig.push_task(push_command("c")).await;
    let delayed = rig.push_task(delayed_push_command("d", SECOND)).await;
    let second = purge_page(rig, first.next, 1).await;
    assert_eq!((first.purged, second.purged), (1, 1));
    assert_eq!(purge_remaining(rig, second.next, 1).await, 0);
    for id in &before {
        assert_eq!(rig.task_view(id).await, None);
    }
    for id in [&now, &delayed] {
        assert_eq!(rig.task_view(id).await.map(|view| view.state), Some(TaskState::Waiting));
    }
    // A new purge includes the later tasks.
    assert_eq!(purge_remaining(rig, purge_page(rig, None, 1).await.next, 1).await, 1);
    assert_eq!(rig.queue_stats().await.cancelled, 4);
}

async fn purge_skips_newer_tasks_and_reaches_later_ones(rig: &StoreHarness) {
    rig.push_task(delayed_push_command("a", SECOND * 10)).await;
    rig.push_task(delayed_push_command("b", SECOND * 60)).await;
    let first = purge_page(rig, None, 1).await;
    for payload in ["c", "d", "e"] {
        rig.push_task(delayed_push_command(payload, SECOND * 30)).await;
    }
    rig.push_task(delayed_push_command("f", SECOND * 90)).await;
    assert_eq!((first.purged, purge_remaining(rig, first.next, 1).await), (1, 1));
    rig.advance_past(SECOND * 90).await;
    let worker = PollingWorker::new(rig);
    assert_eq!(run_payloads(&worker.start_runs(9).await), ["c", "d", "e", "f"]);
}

/// A page may end between tasks of one due time, as on a manual clock.
async fn purge_misses_no_task_of_equal_due_time(rig: &StoreHarness) {
    for _ in 0..5 {
        rig.push_task(delayed_push_command("old", SECOND * 60)).await;
    }
    let first = purge_page(rig, None, 2).await;
    for _ in 0..7 {
        rig.push_task(delayed_push_command("new", SECOND * 60)).await;
    }
    assert_eq!((first.purged, purge_remaining(rig, first.next, 2).await), (2, 3));
    rig.advance_past(SECOND * 60).await;
    assert_eq!(run_payloads(&PollingWorker::new(rig).start_runs(9).await), ["new"; 7]);
}

async fn purge_includes_tasks_in_retry(rig: &StoreHarness) {
    rig.push_task(push_command("a")).await;
    let worker = PollingWorker::new(rig);
    assert!(worker.settle_run(&worker.start_one().await, retry_outcome(SECOND)).await);
    rig.push_task(push_command("runs")).await;
    worker.start_one().await;
    let page = purge_page(rig, None, MAX_TASKS_PER_STEP).await;
    assert_eq!((page.purged, page.next), (1, None));
    let stats = rig.queue_stats().await;
    assert_eq!((stats.waiting, stats.running, stats.cancelled), (0, 1, 1));
}

async fn purge_of_empty_queue_ends_at_once(rig: &StoreHarness) {
    assert_eq!(purge_page(rig, None, MAX_TASKS_PER_STEP).await, PurgePage::default());
    assert_eq!(rig.queue_stats().await, crate::store::QueueStats::default());
}
