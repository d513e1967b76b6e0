//! `QueueStepper`: a worker for tests that runs due tasks on demand.

use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::Mutex;

use super::{
    poll::{NotExecutedFlag, poll_until_answered},
    queue_worker::QueueWorker,
    queue_worker_loop::QueueWorkerLoop,
    task::UndecodedTask,
    task_run::{TaskRunResult, run_handler},
};
use crate::store::{TaskFault, TaskId, TaskPollCommand};

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
        let ran = RecordedTaskRuns::default();
        let rounds =
            QueueWorkerLoop::new(with_recording_handler(worker.concurrency(1), Arc::clone(&ran)));
        Self { worker_loop: rounds, recorded_runs: ran }
    }

    /// Runs due tasks one after the other, until none is due.
    #[expect(clippy::panic, reason = "a test without an end must fail")]
    pub(crate) async fn run_due(&mut self) -> Vec<TaskRunReport> {
        for _ in 0..MAX_RUNS {
            let turn = self.worker_loop.build_poll();
            self.poll_and_run(turn).await;
            if self.worker_loop.pending_settlements.is_empty() {
                return std::mem::take(&mut *self.recorded_runs.lock());
            }
        }
        let last = TaskPollCommand { max_runs: 0, ..self.worker_loop.build_poll() };
        self.poll_and_run(last).await;
        panic!(
            "TestQueueWorker::run_due: tasks were still due after {MAX_RUNS} runs; check whether \
             tasks push tasks without end"
        );
    }

    async fn poll_and_run(&mut self, turn: TaskPollCommand) {
        let answer = poll_until_answered(
            self.worker_loop.worker.store.clone(),
            turn,
            NotExecutedFlag::default(),
        )
        .await;
        self.worker_loop.apply_answer(answer);
        while let Some(ended) = self.worker_loop.run_tasks.join_next().await {
            self.worker_loop.record_ended_run(ended);
        }
    }
}

/// Wraps the worker's handler in one that records its runs. It catches panics and enforces the time
/// limit itself, so that these are recorded too.
fn with_recording_handler(mut worker: QueueWorker, ran: RecordedTaskRuns) -> QueueWorker {
    let (handler, longest) = (worker.handler, worker.max_run.take());
    worker.handler = Arc::new(move |raw: UndecodedTask| {
        let (id, attempt) = (raw.info.id.clone(), raw.info.attempt);
        let ran = Arc::clone(&ran);
        let note = move |ended: TaskRunResult| {
            let wrong = ended.as_ref().err();
            let reason = wrong.map_or("", |(_, why)| why.reason()).to_owned();
            ran.lock().push(TaskRunReport {
                id,
                attempt,
                fault: wrong.map(|(fault, _)| *fault),
                reason,
            });
            ended
        };
        run_handler(Arc::clone(&handler), raw, longest).map(note).boxed()
    });
    worker
}
