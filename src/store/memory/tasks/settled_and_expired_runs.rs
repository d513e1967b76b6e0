//! Ends of runs: settlements by their worker (done, retry, dead letter, return to the queue), and
//! runs that are taken back because their lease has expired.

use super::{QueueTransaction, settle_and_poll::PollState};
use crate::{
    durations::saturating_micros,
    store::tasks::{
        AttemptFailure, MAX_HISTORY, MAX_TASKS_PER_STEP, TaskFault, TaskId, TaskOutcome,
        TaskRecord, TaskSettlement,
    },
};

impl QueueTransaction<'_> {
    /// Settles a run. Returns false if its worker has lost it.
    pub(super) fn settle_task(
        &mut self,
        settlement: &TaskSettlement,
        poll: &mut PollState<'_>,
    ) -> bool {
        let (id, unique_key) = (&settlement.run.id, settlement.unique_key.as_ref());
        if self.queue.running.get(&settlement.run).is_none() {
            return false;
        }
        self.queue.running.remove(&settlement.run);
        match &settlement.outcome {
            outcome @ (TaskOutcome::Done | TaskOutcome::Cancelled) => {
                self.release_unique_key(unique_key, id);
                self.queue.task_histories.remove(id);
                self.queue.task_records.remove(id);
                let stats = &mut self.queue.stats;
                stats.bytes = stats.bytes.saturating_sub(settlement.record_bytes);
                match outcome {
                    TaskOutcome::Cancelled => stats.cancelled += 1,
                    _ => stats.done += 1,
                }
            }
            TaskOutcome::Retry { delay, fault, reason } => {
                self.record_failure(id, *fault, reason);
                let retry_us = self.now_us.saturating_add(saturating_micros(*delay));
                self.schedule_retry(id, retry_us, poll);
            }
            TaskOutcome::Dead { fault, reason } => {
                self.record_failure(id, *fault, reason);
                self.move_to_dead_letters(id, settlement.record_bytes, unique_key, poll);
            }
            TaskOutcome::ReturnToQueue { delay } => {
                let record = self.queue.task_records.get(id).and_then(TaskRecord::decode);
                let due_us = record.map_or(self.now_us, |record| record.pushed_us.min(self.now_us));
                if delay.is_zero() {
                    self.queue.waiting.insert_first(id, due_us);
                    poll.note_retry(due_us);
                } else {
                    self.schedule_retry(id, self.now_us + saturating_micros(*delay), poll);
                }
            }
        }
        true
    }

    fn schedule_retry(&mut self, id: &TaskId, retry_us: u64, poll: &mut PollState<'_>) {
        self.queue.waiting.insert(id, retry_us);
        poll.note_retry(retry_us);
    }

    /// Records a failed attempt.
    fn record_failure(&mut self, id: &TaskId, fault: TaskFault, reason: &str) {
        let stats = &mut self.queue.stats;
        match fault {
            TaskFault::Failed | TaskFault::Undecodable => stats.failed += 1,
            TaskFault::Panicked => stats.panicked += 1,
            TaskFault::Crashed => stats.crashed += 1,
        }
        let history = self.queue.task_histories.entry(id.clone()).or_default();
        history.attempts += 1;
        history.crashes += u32::from(fault == TaskFault::Crashed);
        let failure = AttemptFailure { at_us: self.now_us, fault, reason: reason.to_owned() };
        history.failures.push(failure);
        let excess = history.failures.len().saturating_sub(MAX_HISTORY);
        history.failures.drain(..excess);
    }

    /// Takes back runs with an expired lease. Returns true if there may be more.
    pub(super) fn reap_expired_runs(&mut self, poll: &mut PollState<'_>) -> bool {
        let expired =
            self.queue.running.iter().take_while(|(lease_end_us, _)| *lease_end_us <= self.now_us);
        let mut expired: Vec<_> =
            expired.take(MAX_TASKS_PER_STEP).map(|(_, run)| run.clone()).collect();
        let fit_count = self.count_within_byte_limit(expired.iter().map(|run| &run.id));
        let has_more = fit_count < expired.len() || expired.len() == MAX_TASKS_PER_STEP;
        expired.truncate(fit_count);
        for run in expired {
            self.queue.running.remove(&run);
            let record = self.queue.task_records.get(&run.id);
            let Some((record_bytes, record)) =
                record.map(|record| (record.len() as u64, TaskRecord::decode(record)))
            else {
                self.queue.task_histories.remove(&run.id);
                self.queue.stats.lost += 1;
                poll.lost_runs += 1;
                continue;
            };
            self.record_failure(&run.id, TaskFault::Crashed, "crashed, may have run");
            let history = self.queue.task_histories.get(&run.id).cloned().unwrap_or_default();
            let (may_repeat, max_attempts, unique_key) = record.map_or((true, 0, None), |record| {
                (record.retry_after_crash, record.max_attempts, record.unique)
            });
            if !may_repeat
                || history.attempts >= max_attempts
                || history.crashes >= poll.command.dead_letter_limits.max_crashes
            {
                self.move_to_dead_letters(&run.id, record_bytes, unique_key.as_ref(), poll);
                poll.dead_runs += 1;
            } else {
                poll.lost_runs += 1;
                self.schedule_retry(&run.id, self.now_us, poll);
            }
        }
        has_more
    }
}
