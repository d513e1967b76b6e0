//! Settlements of ended runs, sent with the next poll.

use tokio::task::JoinError;

use super::{
    queue_worker_loop::QueueWorkerLoop,
    task_failure::FailureAction,
    task_run::{RunningTask, TaskRunResult, task_outcome},
};
use crate::store::{MAX_BYTES_PER_STEP, MAX_TASKS_PER_STEP, RunToken, TaskOutcome, TaskSettlement};

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
        let RunningTask { token, attempt, max_attempts, record_bytes, unique_key, .. } = running;
        if let Err((fault, failure)) = &result
            && !matches!(failure.action, FailureAction::ReturnToQueue(_))
        {
            let (queue, id) = (self.worker.queue.log_hash(), &token.id);
            tracing::warn!(
                %queue, task = ?id, attempt, max_attempts, %fault, reason = failure.reason(),
                "task failed"
            );
        }
        if let Err((_, failure)) = &result
            && let FailureAction::ReturnToQueue(delay) = failure.action
        {
            self.unreadable_tasks.add(delay);
        }
        let outcome = task_outcome(result, attempt, max_attempts, self.worker.backoff);
        self.pending_settlements.push(TaskSettlement {
            run: token,
            record_bytes,
            unique_key,
            outcome,
        });
    }
}

/// Returns the number of settlements for the next poll. The store reads the record of each task
/// returned without delay, and does nothing else meanwhile, so one poll has at most
/// `MAX_BYTES_PER_STEP` of them, or a single larger one. The poll after it follows at once.
pub(super) fn settlements_per_poll(pending: &[TaskSettlement]) -> usize {
    let mut total_bytes = 0u64;
    let fits = |settlement: &&TaskSettlement| {
        let is_read = matches!(
            settlement.outcome,
            TaskOutcome::ReturnToQueue { delay } if delay.is_zero()
        );
        let bytes_before = total_bytes;
        total_bytes = total_bytes.saturating_add(if is_read { settlement.record_bytes } else { 0 });
        !is_read || bytes_before == 0 || total_bytes <= MAX_BYTES_PER_STEP
    };
    pending.iter().take(MAX_TASKS_PER_STEP).take_while(fits).count()
}
