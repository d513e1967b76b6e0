//! `QueueStepper`: a worker for tests that runs due tasks on demand.

use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::Mutex;

use super::{
    poll_until_answered::{NotExecutedFlag, poll_until_answered},
    queue_worker::QueueWorker,
    queue_worker_loop::QueueWorkerLoop,
    task::UndecodedTask,
    task_run::{TaskRunResult, run_handler},
};
use crate::store::{Store, TaskFault, TaskId, TaskPollCommand};

/// Most polls of one call, each of which runs a task. More means that tasks push tasks without end,
/// which is a fault of the test. This crate's own test of it needs fewer.
const MAX_RUNS: usize = if cfg!(test) { 500 } else { 10_000 };

/// One run of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskRunReport {
    /// The task's id.
    pub id: TaskId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Kind of the failure; `None` after a success.
    pub fault: Option<TaskFault>,
    /// The error of the handler, or the message of its panic; empty after a success.
    pub reason: String,
}

type RecordedTaskRuns = Arc<Mutex<Vec<TaskRunReport>>>;

pub(crate) struct QueueStepper {
    worker_loop: QueueWorkerLoop,
    recorded_runs: RecordedTaskRuns,
}

impl QueueStepper {
    /// Creates a stepper that runs one task at a time, so that tasks run in their order.
    pub(crate) fn new(worker: QueueWorker) -> Self {
        let recorded_runs = RecordedTaskRuns::default();
        let worker = with_recording_handler(worker.concurrency(1), Arc::clone(&recorded_runs));
        Self { worker_loop: QueueWorkerLoop::new(worker), recorded_runs }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.worker_loop.worker.store
    }

    /// Runs due tasks one after the other, until none is due.
    #[expect(clippy::panic, reason = "a test without an end must fail")]
    pub(crate) async fn run_due(&mut self) -> Vec<TaskRunReport> {
        for _ in 0..MAX_RUNS {
            let poll = self.worker_loop.build_poll();
            self.poll_and_run(poll).await;
            if self.worker_loop.pending_settlements.is_empty() {
                return std::mem::take(&mut *self.recorded_runs.lock());
            }
        }
        let last_poll = TaskPollCommand { max_runs: 0, ..self.worker_loop.build_poll() };
        self.poll_and_run(last_poll).await;
        panic!(
            "TestQueueWorker::run_due: tasks were still due after {MAX_RUNS} runs; check whether \
             tasks push tasks without end"
        );
    }

    async fn poll_and_run(&mut self, poll: TaskPollCommand) {
        let store = self.worker_loop.worker.store.clone();
        let answer = poll_until_answered(store, poll, NotExecutedFlag::default()).await;
        self.worker_loop.apply_answer(answer);
        while let Some(ended) = self.worker_loop.run_tasks.join_next().await {
            self.worker_loop.record_ended_run(ended);
        }
    }
}

/// Wraps the worker's handler in one that records its runs. It catches panics and enforces the time
/// limit itself, so that these are recorded too.
fn with_recording_handler(mut worker: QueueWorker, recorded_runs: RecordedTaskRuns) -> QueueWorker {
    let (handler, max_run_time) = (worker.handler, worker.max_run_time.take());
    worker.handler = Arc::new(move |task: UndecodedTask| {
        let (id, attempt) = (task.info.id.clone(), task.info.attempt);
        let recorded_runs = Arc::clone(&recorded_runs);
        let record = move |result: TaskRunResult| {
            let error = result.as_ref().err();
            let reason = error.map_or("", |(_, failure)| failure.reason()).to_owned();
            let fault = error.map(|(fault, _)| *fault);
            recorded_runs.lock().push(TaskRunReport { id, attempt, fault, reason });
            result
        };
        run_handler(Arc::clone(&handler), task, max_run_time).map(record).boxed()
    });
    worker
}
