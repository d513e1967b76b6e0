//! Stop of a worker with blocked handlers, and the size of its polls.

use std::{
    future::pending,
    sync::{Arc, mpsc},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::task::block_in_place;

use super::{
    SECOND, SpawnedQueueWorker, TaskRunLog, push_text, scripted_worker, task_state, text_queue,
    wait_until_idle,
};
use crate::{
    queue::{Task, TaskFailure, TaskId, TaskState, queue_worker_loop::QueueWorkerLoop},
    store::{CapturedLog, RunToken, Store, TaskOutcome, TaskSettlement},
};

/// Reports its drop on a channel.
struct DropNotifier(mpsc::Sender<()>);

impl Drop for DropNotifier {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Dropped runs are returned, and runs that completed meanwhile are done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_handler_does_not_delay_return_of_other_tasks() {
    let (log, _guard) = CapturedLog::start_capture();
    let store = Store::memory();
    let queue = text_queue(&store).max_attempts(1);
    let mut ids = Vec::new();
    for payload in ["waits", "ends", "waits", "blocks", "waits"] {
        ids.push(push_text(&queue, payload).await);
    }
    let (starts, mut started) = tokio::sync::mpsc::unbounded_channel();
    let (dropped, drops) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (drops, released) = (Arc::new(Mutex::new(drops)), Arc::new(Mutex::new(released)));
    let worker = queue.worker(move |task: Task<String>| {
        let (starts, notifier) = (starts.clone(), DropNotifier(dropped.clone()));
        let (drops, released) = (Arc::clone(&drops), Arc::clone(&released));
        async move {
            starts.send(()).expect("the test waits");
            match &*task.payload {
                "waits" => {
                    let _notifier = notifier;
                    pending::<()>().await;
                }
                "ends" => block_in_place(|| drops.lock().recv().expect("others are dropped")),
                // Until the test is over.
                _ => drop(block_in_place(|| released.lock().recv())),
            }
            Ok::<(), TaskFailure>(())
        }
    });
    let all_have_started = async {
        for _ in 0..5 {
            started.recv().await.expect("the worker works");
        }
    };
    worker.drain_timeout(Duration::ZERO).run(all_have_started).await;
    let mut states = Vec::new();
    for id in &ids {
        states.push(task_state(&queue, id).await);
    }
    let (waits, runs) = (Some(TaskState::Waiting), Some(TaskState::Running));
    assert_eq!(states, [waits, None, waits, runs, waits]);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed, stats.dead), (1, 0, 0));
    log.assert_contains("left=1 running=1");
    drop(release);
}

/// The store reads the records of tasks that are returned to the head of the queue, all of one poll
/// in one operation.
#[tokio::test(start_paused = true)]
async fn poll_returns_at_most_the_store_read_limit() {
    let mut worker_loop = QueueWorkerLoop::new(scripted_worker(
        &text_queue(&Store::memory()),
        &TaskRunLog::default(),
    ));
    let (now, later) = (Duration::ZERO, SECOND);
    let return_after = |delay| TaskOutcome::ReturnToQueue { delay };
    let outcomes = [
        (3, return_after(now)),
        (9, TaskOutcome::Done),
        (3, return_after(now)),
        (9, return_after(later)),
        (5, return_after(now)),
        (1, return_after(now)),
        (3, return_after(now)),
        (1, return_after(now)),
    ];
    worker_loop.pending_settlements.extend(outcomes.map(|(mebibytes, verdict)| {
        let run = RunToken { id: TaskId::new(), owner: "x.1".into() };
        TaskSettlement { run, record_bytes: mebibytes << 20, unique_key: None, outcome: verdict }
    }));
    let counts: Vec<_> = (0..5).map(|_| worker_loop.build_poll().settlements.len()).collect();
    assert_eq!(counts, [2, 2, 1, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn tasks_in_memory_are_reported_lost_by_the_last_worker() {
    let queue = text_queue(&Store::memory());
    queue.push(&"later".to_owned()).delay(SECOND * 600).await.expect("there is room");
    let runs = TaskRunLog::default();
    let (log, _guard) = CapturedLog::start_capture();
    let first = SpawnedQueueWorker::start(scripted_worker(&queue, &runs));
    let last = SpawnedQueueWorker::start(scripted_worker(&queue, &runs));
    wait_until_idle().await;
    first.stop().await;
    assert!(!log.text().contains("lost=1"), "another worker runs it: {}", log.text());
    last.stop().await;
    log.assert_contains("lost=1");
}
