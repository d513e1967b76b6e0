//! Large batches of readers: all readers queued before a writer enter before it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    lock::{
        AcquireError, LockGuard, LockRequest, ReleaseStatus,
        local_wait_queue::{LocalQueueId, LocalQueues},
    },
    store::{LockMode, Store},
};

fn reader(store: &Store) -> LockRequest {
    store.lock("x").shared().wait(60 * SECOND)
}

fn writer(store: &Store) -> LockRequest {
    store.lock("x").wait(60 * SECOND)
}

type AcquireTask = JoinHandle<Result<LockGuard, AcquireError>>;

/// Spawns `number` readers of one process, in order, behind a writer of another process.
async fn spawn_queued_readers(store: &Store, number: usize) -> Vec<AcquireTask> {
    let mut readers = Vec::new();
    let queue_id = LocalQueueId { key: "x".into(), mode: LockMode::Shared };
    for n in 1..=number {
        readers.push(crate::store::spawn(reader(store).acquire()));
        wait_until(async || store.extension::<LocalQueues>().waiting_tasks(&queue_id) >= n).await;
    }
    readers
}

async fn wait_for_queue_length(store: &Store, number: u64) {
    let probe = store.as_another_process();
    wait_until(async || expect_busy(probe.lock("x").acquire().await).queue_length == number).await;
}

async fn wait_until(condition: impl AsyncFn() -> bool) {
    while !condition().await {
        tokio::time::sleep(MS).await;
    }
}

/// FAIRNESS: readers enter in batches, and all readers queued before a writer enter before it.
pub(crate) async fn queued_readers_enter_before_a_later_writer(store: &Store) {
    let (holder, other) = (store.as_another_process(), store.as_another_process());
    let held = writer(&holder).acquire().await.unwrap();
    let readers = spawn_queued_readers(store, 80).await;
    wait_for_queue_length(store, 1).await;
    let writing = crate::store::spawn(writer(&other).acquire());
    wait_for_queue_length(store, 2).await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let mut inside = Vec::new();
    for (n, reader) in readers.into_iter().enumerate() {
        let entered = tokio::time::timeout(5 * SECOND, reader).await;
        let entered = entered.unwrap_or_else(|_| panic!("{n} came before the writer"));
        inside.push(entered.unwrap().unwrap());
    }
    assert!(!writing.is_finished(), "it waits for all of them");
    // A reader that joins now is queued behind the writer.
    let late = crate::store::spawn(reader(store).acquire());
    wait_for_queue_length(store, 2).await;
    drop(inside);
    let guard = writing.await.unwrap().unwrap();
    assert!(!late.is_finished());
    guard.release().await;
    drop(late.await.unwrap().unwrap());
    assert!(holder.shutdown(5 * SECOND).await && other.shutdown(5 * SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn readers_beyond_one_batch_are_not_passed_by_a_writer() {
    let store = Store::memory();
    queued_readers_enter_before_a_later_writer(&store).await;
    drop(acquire_after_shutdown(&store).await);
}

/// The admitted readers leave at once, so the writer gets the lock between two calls of their
/// process. The rest of the batch enters behind that writer and before the later one.
#[tokio::test(start_paused = true)]
async fn interrupted_reader_batch_resumes_behind_the_writer() {
    let store = Store::memory();
    let [holder, second, third] = [(); 3].map(|()| store.as_another_process());
    let held = writer(&holder).acquire().await.unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let spawn_holder = |name: &'static str, request: LockRequest| {
        let log = Arc::clone(&log);
        crate::store::spawn(async move {
            let guard = request.acquire().await.expect("in time");
            log.lock().push(name);
            guard.release().await;
        })
    };
    let mut tasks = Vec::new();
    for _ in 0..100 {
        tasks.push(spawn_holder("reads", reader(&store)));
    }
    tokio::time::sleep(MS).await;
    for (name, store) in [("writes", &second), ("writes last", &third)] {
        tasks.push(spawn_holder(name, writer(store)));
        tokio::time::sleep(MS).await;
    }
    held.release().await;
    for task in tasks {
        task.await.unwrap();
    }
    let log = log.lock().clone();
    assert_eq!(log.last(), Some(&"writes last"), "{log:?}");
    drop(acquire_after_shutdown(&store).await);
}
