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
        let Ok((token, ran)) = ended else { return };
        let id = token.id.clone();
        if self.running.get(&id).is_none_or(|running| running.token != token) {
            return;
        }
        let Some(running) = self.running.remove(&id) else { return };
        let RunningTask {
            token,
            attempt,
            max_attempts,
            record_bytes: bytes,
            unique_key: unique,
            ..
        } = running;
        if let Err((fault, why)) = &ran
            && !matches!(why.action, FailureAction::ReturnToQueue(_))
        {
            let (queue, id) = (self.worker.queue.log_hash(), &token.id);
            tracing::warn!(
                %queue, task = ?id, attempt, max_attempts, %fault, reason = why.reason(),
                "task failed"
            );
        }
        if let Err((_, why)) = &ran
            && let FailureAction::ReturnToQueue(delay) = why.action
        {
            self.returned_tasks.add(delay);
        }
        let verdict = task_outcome(ran, attempt, max_attempts, self.worker.backoff);
        self.pending_settlements.push(TaskSettlement {
            run: token,
            record_bytes: bytes,
            unique_key: unique,
            outcome: verdict,
        });
    }
}

/// Returns the number of settlements for the next poll. The store reads the record of each task
/// returned without delay, and does nothing else meanwhile, so one poll has at most
/// `MAX_BYTES_PER_STEP` of them, or a single larger one. The poll after it follows at once.
pub(super) fn settlements_per_poll(ends: &[TaskSettlement]) -> usize {
    let mut bytes = 0u64;
    let fits = |end: &&TaskSettlement| {
        let (is_read, others) =
            (matches!(end.outcome, TaskOutcome::ReturnToQueue { delay } if delay.is_zero()), bytes);
        bytes = bytes.saturating_add(if is_read { end.record_bytes } else { 0 });
        !is_read || others == 0 || bytes <= MAX_BYTES_PER_STEP
    };
    ends.iter().take(MAX_TASKS_PER_STEP).take_while(fits).count()
}
