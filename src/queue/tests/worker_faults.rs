//! Crashes, lost replies, and shutdowns.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    SECOND, SpawnedQueueWorker, TaskRunLog, push_text, scripted_worker, task_state, text_queue,
    wait_until_idle,
};
use crate::{
    queue::{Queue, QueueWorker, Task, TaskFailure, TaskState, queue_worker_loop::QueueWorkerLoop},
    store::{BackendFault, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn long_run_is_renewed() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let workers = [(); 2].map(|()| {
        SpawnedQueueWorker::start(scripted_worker(&text_queue(&store.as_another_process()), &log))
    });
    push_text(&queue, "sleep 300000").await;
    tokio::time::sleep(SECOND * 310).await;
    assert_eq!(log.attempts(), [1]);
    assert_eq!(queue.stats().await.unwrap().done, 1);
    for worker in workers {
        worker.stop().await;
    }
}

/// Worker whose runs take a minute, and a weak reference that dies with the future of the first
/// run.
fn minute_long_worker(queue: &Queue<String>, log: &TaskRunLog) -> (QueueWorker, Weak<()>) {
    let token = Arc::new(());
    let (seen, token, log) = (Arc::downgrade(&token), Mutex::new(Some(token)), log.clone());
    let worker = queue.worker(move |task: Task<String>| {
        log.record(&task);
        let token = token.lock().take();
        async move {
            tokio::time::sleep(SECOND * 60).await;
            drop(token);
            Ok::<(), TaskFailure>(())
        }
    });
    (worker, seen)
}

#[tokio::test(start_paused = true)]
async fn run_without_renewal_is_cancelled_before_lease_end() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store), TaskRunLog::default());
    let (worker, seen) = minute_long_worker(&queue, &log);
    push_text(&queue, "x").await;
    let worker = SpawnedQueueWorker::start(worker);
    wait_until_idle().await;
    faults.set("renew_runs", BackendFault::Unavailable, 1000);
    tokio::time::sleep(SECOND * 9).await;
    assert!(seen.upgrade().is_some(), "it still runs");
    tokio::time::sleep(SECOND).await;
    assert!(seen.upgrade().is_none(), "its future is dropped");
    faults.set("renew_runs", BackendFault::Unavailable, 0);
    tokio::time::sleep(SECOND * 90).await;
    assert_eq!(log.attempts(), [1, 2]);
    let stats = store.stats();
    assert_eq!((stats.tasks_lost, stats.tasks_done), (1, 1), "each run is counted once");
    worker.stop().await;
}

/// Their own process may have gone.
#[tokio::test(start_paused = true)]
async fn lost_runs_are_counted_by_the_process_that_takes_them_back() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    push_text(&queue, "sleep 5000").await;
    push_text(&queue.clone().once(), "sleep 5000").await;
    let gone = store.as_another_process();
    let killed = SpawnedQueueWorker::start(scripted_worker(&text_queue(&gone), &log));
    wait_until_idle().await;
    assert_eq!(log.attempts(), [1, 1]);
    killed.task.abort();
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(log.attempts(), [1, 1, 2]);
    let stats = store.stats();
    assert_eq!((stats.tasks_lost, stats.tasks_dead, stats.tasks_done), (1, 1, 1));
    worker.stop().await;
}

/// The lease ends although the renewal is never answered.
#[tokio::test(start_paused = true)]
async fn run_with_hanging_renewal_is_cancelled_before_lease_end() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store), TaskRunLog::default());
    push_text(&queue, "sleep 60000").await;
    let mut worker = QueueWorkerLoop::new(scripted_worker(&queue, &log));
    faults.set("renew_runs", BackendFault::NeverReplies, 1);
    let began = tokio::time::Instant::now();
    let run_loop = async {
        while log.payloads().is_empty() || !worker.running.is_empty() {
            worker.step().await;
        }
    };
    let _ = tokio::time::timeout(SECOND * 30, run_loop).await;
    assert_eq!(log.attempts(), [1]);
    assert!(began.elapsed() <= SECOND * 10, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn idle_worker_stops_promptly_during_an_outage() {
    let (store, faults) = faulty_store();
    let worker =
        scripted_worker(&text_queue(&store), &TaskRunLog::default()).drain_timeout(Duration::MAX);
    let worker = SpawnedQueueWorker::start(worker);
    wait_until_idle().await;
    faults.set("still_idle", BackendFault::Unavailable, usize::MAX);
    faults.set("turn", BackendFault::Unavailable, usize::MAX);
    tokio::time::sleep(SECOND * 6).await;
    let began = tokio::time::Instant::now();
    worker.stop().await;
    assert!(began.elapsed() <= SECOND * 3, "{:?}", began.elapsed());
}

/// Runs started by a poll with a lost reply are returned if the store recovers in time.
#[tokio::test(start_paused = true)]
async fn stop_waits_for_an_uncertain_poll_and_returns_its_tasks() {
    let (store, faults) = faulty_store();
    let queue = text_queue(&store).once();
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &TaskRunLog::default()));
    wait_until_idle().await;
    faults.set("turn", BackendFault::ReplyTimeout, 5);
    let id = push_text(&queue, "x").await;
    wait_until_idle().await;
    assert_eq!(queue.stats().await.unwrap().running, 1, "the lost start still counts as a run");
    worker.stop().await;
    assert_eq!(faults.remaining("turn"), 0);
    assert_eq!(task_state(&queue, &id).await, Some(TaskState::Waiting));
    assert_eq!(queue.stats().await.unwrap().crashed, 0);
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_active_runs() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    push_text(&queue, "sleep 5000").await;
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    wait_until_idle().await;
    let began = tokio::time::Instant::now();
    push_text(&queue, "left").await;
    wait_until_idle().await;
    worker.stop().await;
    assert!(began.elapsed() < SECOND * 6);
    assert_eq!(queue.stats().await.unwrap().done, 2);
    push_text(&queue, "not any more").await;
    wait_until_idle().await;
    assert_eq!(log.payloads().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn run_over_drain_timeout_is_returned_without_an_attempt() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store).max_attempts(1);
    let id = push_text(&queue, "sleep 60000").await;
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log).drain_timeout(SECOND * 3));
    wait_until_idle().await;
    let began = tokio::time::Instant::now();
    worker.stop().await;
    assert!(began.elapsed() < SECOND * 4);
    let info = queue.get(&id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts), (TaskState::Waiting, 0));
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    tokio::time::sleep(SECOND * 61).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1, 1]);
    assert_eq!(queue.stats().await.unwrap().done, 1);
}

/// The drain drops the runs and then waits for the poll in flight: by then another worker may have
/// their leases.
#[tokio::test(start_paused = true)]
async fn drain_drops_runs_before_their_lease_ends() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store), TaskRunLog::default());
    let (worker, seen) = minute_long_worker(&queue, &log);
    push_text(&queue, "x").await;
    let worker = SpawnedQueueWorker::start(worker.lease(SECOND).drain_timeout(Duration::ZERO));
    wait_until_idle().await;
    faults.set("turn", BackendFault::Unavailable, usize::MAX);
    faults.set("renew_runs", BackendFault::Unavailable, usize::MAX);
    push_text(&queue, "y").await;
    wait_until_idle().await;
    assert!(seen.upgrade().is_some(), "it runs");
    let began = tokio::time::Instant::now();
    let stopping = crate::store::spawn(worker.stop());
    tokio::time::sleep(SECOND).await;
    assert!(seen.upgrade().is_none(), "its future is dropped");
    stopping.await.unwrap();
    assert!(began.elapsed() < SECOND * 3, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn once_task_over_drain_timeout_is_dead_lettered() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store).once();
    let id = push_text(&queue, "sleep 60000").await;
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log).drain_timeout(SECOND * 3));
    wait_until_idle().await;
    worker.stop().await;
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    tokio::time::sleep(SECOND * 61).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1]);
    let info = queue.get(&id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts), (TaskState::Dead, 1));
    assert_eq!(info.history[0].reason, "drained, may have run");
}
