//! Workers that run one task at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use super::{
    SECOND, SpawnedQueueWorker, TaskFailure, TaskRunLog, push_text, scripted_worker, task_state,
    text_queue, wait_until_idle,
};
use crate::{
    queue::{Task, TaskState},
    store::Store,
};

#[tokio::test(start_paused = true)]
async fn serial_worker_continues_after_each_handler_outcome() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store).max_attempts(1);
    let all = ["panic", "panic outside", "fail", "sleep 20", "dead", "x", "sleep 20", "y"];
    for payload in all {
        push_text(&queue, payload).await;
    }
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log).concurrency(1));
    wait_until_idle().await;
    assert_eq!(log.payloads(), all);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.panicked, stats.failed, stats.running), (4, 2, 2, 0));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn serial_run_is_renewed_and_returned_at_drain_timeout() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let own = text_queue(&store.as_another_process());
    let id = push_text(&queue, "sleep 1000000").await;
    let worker = SpawnedQueueWorker::start(
        scripted_worker(&queue, &log).concurrency(1).drain_timeout(SECOND),
    );
    wait_until_idle().await;
    let other = SpawnedQueueWorker::start(scripted_worker(&own, &TaskRunLog::default()));
    tokio::time::sleep(SECOND * 100).await;
    assert_eq!(task_state(&queue, &id).await, Some(TaskState::Running));
    other.stop().await;
    worker.stop().await;
    assert_eq!(task_state(&queue, &id).await, Some(TaskState::Waiting));
    let stats = queue.stats().await.unwrap();
    assert_eq!((log.attempts(), stats.crashed), (vec![1], 0));
}

/// Store and handlers complete at once, so only the worker itself can yield.
#[tokio::test(start_paused = true)]
async fn serial_worker_yields_between_short_tasks() {
    let (store, yields) = (Store::memory(), Arc::new(AtomicU64::new(0)));
    let (queue, counter) = (text_queue(&store), Arc::clone(&yields));
    for n in 0..1_000 {
        push_text(&queue, &n.to_string()).await;
    }
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let worker = queue.worker(move |_: Task<String>| {
        let _ = sender.send(yields.load(Relaxed));
        async { Ok::<(), TaskFailure>(()) }
    });
    let others = crate::store::spawn(async move {
        loop {
            counter.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let worker = SpawnedQueueWorker::start(worker.concurrency(1));
    let mut last = 0;
    for _ in 0..1_000 {
        last = receiver.recv().await.expect("all of them run");
    }
    assert!(last > 2, "{last}");
    others.abort();
    worker.stop().await;
}

/// Uses the real clock, since the handler blocks its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn handler_that_blocks_its_thread_keeps_its_lease() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    push_text(&queue, "blocks").await;
    let blocking = |queue: &super::Queue<String>| {
        let log = log.clone();
        let worker = queue.worker(move |task: Task<String>| {
            log.record(&task);
            thread::sleep(Duration::from_secs(6));
            async { Ok::<(), TaskFailure>(()) }
        });
        SpawnedQueueWorker::start(worker.concurrency(1).lease(4 * SECOND))
    };
    let own = text_queue(&store.as_another_process());
    let workers = [blocking(&queue), blocking(&own)];
    let mut stats = queue.stats().await.unwrap();
    while stats.done + stats.dead_letters == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        stats = queue.stats().await.unwrap();
    }
    assert_eq!((log.attempts(), stats.crashed), (vec![1], 0));
    for worker in workers {
        worker.stop().await;
    }
}
