//! Collects ended runs, and turns them into settlements for the next poll.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::task::JoinError;

use super::{
    queue_worker::QueueWorker,
    queue_worker_loop::QueueWorkerLoop,
    task_failure::FailureAction,
    task_run::{RunningTask, TaskRunResult, task_outcome},
};
use crate::{
    durations::saturating_millis,
    instruments::TaskResult,
    store::{RunToken, TaskOutcome, TaskSettlement},
};

impl QueueWorkerLoop {
    /// Collects an ended run, and others that have ended with it, so that they share a poll.
    pub(super) async fn collect_ended_runs(
        &mut self,
        first: Result<(RunToken, TaskRunResult), JoinError>,
    ) {
        self.record_ended_run(first);
        if !self.running.is_empty() && self.pending_poll.is_none() {
            tokio::task::yield_now().await;
        }
        while let Some(ended) = self.run_tasks.try_join_next() {
            self.record_ended_run(ended);
        }
    }

    pub(super) fn record_ended_run(&mut self, ended: Result<(RunToken, TaskRunResult), JoinError>) {
        // A cancelled run was lost, or its task is returned by `drain`. (A run catches all panics
        // but one during its drop.)
        let Ok((token, result)) = ended else { return };
        let id = token.id.clone();
        if self.running.get(&id).is_none_or(|running| running.token != token) {
            return;
        }
        let Some(running) = self.running.remove(&id) else { return };
        self.busy_slots.store(self.running.len(), Ordering::Relaxed);
        if let Err((_, failure)) = &result
            && let FailureAction::ReturnToQueue(delay) = failure.action
        {
            self.unreadable_tasks.add(delay);
        }
        let outcome = task_outcome(result, &running, self.worker.backoff);
        self.count_run(task_result(&outcome), Some(running.started_at.elapsed()));
        self.log_failure(&running, &outcome);
        let RunningTask { token, record_bytes, unique_key, .. } = running;
        self.pending_settlements.push(TaskSettlement {
            run: token,
            record_bytes,
            unique_key,
            outcome,
        });
    }

    /// Counts the end of a run. Its duration is not known if another worker has lost it.
    pub(super) fn count_run(&self, result: TaskResult, duration: Option<Duration>) {
        let QueueWorker { store, queue, .. } = &self.worker;
        store.counters().record_task_run(&queue.operator_name(), result, duration);
    }

    /// Logs a failed run, and what follows it; or that it was cancelled.
    fn log_failure(&self, running: &RunningTask, outcome: &TaskOutcome) {
        let RunningTask { token: RunToken { id, .. }, attempt, max_attempts, .. } = running;
        let (fault, reason, then, retry_in_ms) = match outcome {
            TaskOutcome::Retry { delay, fault, reason } => {
                (fault, reason, "retry", Some(saturating_millis(*delay)))
            }
            TaskOutcome::Dead { fault, reason } => (fault, reason, "dead letter", None),
            TaskOutcome::Cancelled => {
                let queue = self.worker.log_name();
                tracing::info!(%queue, task = %id.log_prefix(), attempt, "task cancelled");
                return;
            }
            TaskOutcome::Done | TaskOutcome::ReturnToQueue { .. } => return,
        };
        tracing::warn!(
            queue = %self.worker.log_name(), task = %id.log_prefix(), attempt, max_attempts,
            %fault, reason = reason.as_str(), then, retry_in_ms, "task failed"
        );
    }
}

/// Returns the result by which a run is counted.
pub(super) fn task_result(outcome: &TaskOutcome) -> TaskResult {
    match outcome {
        TaskOutcome::Done => TaskResult::Done,
        TaskOutcome::Cancelled => TaskResult::Cancelled,
        TaskOutcome::Retry { .. } => TaskResult::Retry,
        TaskOutcome::Dead { .. } => TaskResult::Dead,
        TaskOutcome::ReturnToQueue { .. } => TaskResult::Returned,
    }
}
