//! Runs of tasks that an operator cancels.

use std::future::pending;

use tokio::time::Instant;

use super::{SECOND, SpawnedQueueWorker, push_text, task_state, text_queue, wait_until_idle};
use crate::{
    admin::{Admin, AdminError, Operator, Permission},
    queue::{QueueWorker, Task, TaskFailure, TaskState},
    store::{CapturedLog, Store},
};

fn admin_of(store: &Store) -> Admin {
    store.as_another_process().admin(Operator::new("ada", Permission::Act))
}

/// Worker whose payload selects the reaction to a cancellation: `fail`, `dead`, `succeed`, or none.
fn cancellable_worker(store: &Store) -> QueueWorker {
    text_queue(store).worker(async |task: Task<String>| {
        task.cancellation().cancelled().await;
        match task.payload.as_str() {
            "fail" => Err(TaskFailure::new("stopped")),
            "dead" => Err(TaskFailure::dead_letter("stopped")),
            "succeed" => Ok(()),
            _ => pending().await,
        }
    })
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_that_fails_deletes_its_task() {
    let (log, _guard) = CapturedLog::start_capture();
    let store = Store::memory();
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(cancellable_worker(&store));
    for payload in ["fail", "dead"] {
        let id = push_text(&queue, payload).await;
        wait_until_idle().await;
        let before = Instant::now();
        admin_of(&store).cancel_task("texts", &id, "a test").await.expect("it runs");
        assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
        assert_eq!(task_state(&queue, &id).await, None);
    }
    log.assert_contains("task cancelled");
    let stats = queue.stats().await.expect("it answers");
    assert_eq!((stats.cancelled, stats.done, stats.dead, stats.failed), (2, 0, 0, 0));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_of_a_task_is_dropped_after_the_grace() {
    let store = Store::memory();
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(cancellable_worker(&store));
    let id = push_text(&queue, "ignore").await;
    wait_until_idle().await;
    let before = Instant::now();
    let admin = admin_of(&store);
    let (first, second) = tokio::join!(
        admin.cancel_task("texts", &id, "a test"),
        admin.cancel_task("texts", &id, "a test")
    );
    first.and(second).expect("cancelled twice is cancelled once");
    let elapsed = before.elapsed();
    assert!((5 * SECOND..7 * SECOND).contains(&elapsed), "{elapsed:?}");
    assert_eq!(queue.stats().await.expect("it answers").cancelled, 1);
    let unknown = admin.cancel_task("texts", &id, "a test").await;
    assert!(matches!(unknown, Err(AdminError::NotPossible(_))), "{unknown:?}");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_that_succeeds_is_done() {
    let store = Store::memory();
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(cancellable_worker(&store));
    let id = push_text(&queue, "succeed").await;
    wait_until_idle().await;
    admin_of(&store).cancel_task("texts", &id, "a test").await.expect("its task is gone");
    let stats = queue.stats().await.expect("it answers");
    assert_eq!((stats.cancelled, stats.done), (0, 1));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_that_is_cut_off_by_a_drain_is_not_returned() {
    let store = Store::memory();
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(cancellable_worker(&store).drain_timeout(SECOND));
    let id = push_text(&queue, "ignore").await;
    wait_until_idle().await;
    let admin = admin_of(&store);
    let (cancelled, ()) = tokio::join!(admin.cancel_task("texts", &id, "a test"), worker.stop());
    cancelled.expect("it ends with its worker");
    assert_eq!(queue.stats().await.expect("it answers").cancelled, 1);
}

/// No worker answers, and the task stays as it is.
#[tokio::test(start_paused = true)]
async fn run_of_a_worker_that_is_gone_is_reported() {
    let store = Store::memory();
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(cancellable_worker(&store));
    let id = push_text(&queue, "ignore").await;
    wait_until_idle().await;
    worker.task.abort();
    let refused = admin_of(&store).cancel_task("texts", &id, "a test").await;
    let Err(AdminError::NotPossible(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("has not ended the run within 10 s"), "{text}");
    assert_eq!(task_state(&queue, &id).await, Some(TaskState::Running));
}
