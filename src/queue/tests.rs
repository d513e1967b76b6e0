//! Workers on the embedded store, with tokio's clock paused.

mod cancelled_runs;
mod dead_letter_search;
mod handler_errors;
mod idle_worker;
mod queue_registration;
mod run_lease;
#[cfg(feature = "seal")]
mod sealed_payloads;
mod serial_worker;
mod task_outcomes;
#[cfg(feature = "test-kit")]
mod test_queue_worker;
mod trace_context;
mod undecodable_payloads;
mod unserved_queue;
mod worker_faults;
mod worker_stop;

use std::{future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Queue, QueueWorker, Task, TaskFailure, TaskId, TaskState};
use crate::store::Store;

const SECOND: Duration = Duration::from_secs(1);

/// Log of the runs in order: payload, attempt, and start time.
#[derive(Clone, Default)]
struct TaskRunLog(Arc<Mutex<Vec<(String, u32, Instant)>>>);

impl TaskRunLog {
    fn record(&self, task: &Task<String>) {
        self.0.lock().push((task.payload.clone(), task.attempt(), Instant::now()));
    }

    fn payloads(&self) -> Vec<String> {
        self.0.lock().iter().map(|(payload, ..)| payload.clone()).collect()
    }

    fn attempts(&self) -> Vec<u32> {
        self.0.lock().iter().map(|(_, attempt, _)| *attempt).collect()
    }

    /// Start times of the runs.
    fn start_times(&self) -> Vec<Instant> {
        self.0.lock().iter().map(|(.., at)| *at).collect()
    }
}

fn text_queue(store: &Store) -> Queue<String> {
    store.queue("texts")
}

/// Worker whose payload selects the outcome: `fail`, `later`, `dead`, `panic`, `sleep <ms>`; any
/// other payload succeeds.
fn scripted_worker(queue: &Queue<String>, log: &TaskRunLog) -> QueueWorker {
    let log = log.clone();
    queue.worker(move |task: Task<String>| {
        log.record(&task);
        assert!(task.payload != "panic outside", "outside of the future");
        async move {
            match task.payload.split(' ').collect::<Vec<_>>()[..] {
                ["fail"] => Err(TaskFailure::new("requested by the test")),
                ["later"] => Err(TaskFailure::new("not now").retry_after(SECOND * 100)),
                ["dead"] => Err(TaskFailure::dead_letter("hopeless")),
                ["panic"] => panic!("requested by the test"),
                ["sleep", ms] => {
                    sleep(Duration::from_millis(ms.parse().unwrap())).await;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    })
}

/// Worker task that runs until `stop`.
struct SpawnedQueueWorker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SpawnedQueueWorker {
    fn start(worker: QueueWorker) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = crate::store::spawn(worker.run(async {
            if stopped.await.is_err() {
                pending::<()>().await;
            }
        }));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("it ends well");
    }
}

async fn push_text(queue: &Queue<String>, payload: &str) -> TaskId {
    queue.push(&payload.to_owned()).await.expect("the queue accepts the task").into_id()
}

async fn task_state(queue: &Queue<String>, id: &TaskId) -> Option<TaskState> {
    queue.get(id).await.unwrap().map(|info| info.state)
}

/// Runs all runnable tasks: the paused clock advances only when every task is idle.
async fn wait_until_idle() {
    sleep(Duration::from_millis(50)).await;
}

#[test]
fn invalid_queue_rate_is_a_config_error() {
    for (starts, per) in [(0, SECOND), (1, Duration::ZERO), (1, Duration::MAX)] {
        let worker = scripted_worker(&text_queue(&Store::memory()), &TaskRunLog::default());
        let error = worker.try_queue_rate(starts, per).expect_err("it is refused");
        assert_eq!(error.kind(), crate::ErrorKind::Config);
    }
}
