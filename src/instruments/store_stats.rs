//! [`StoreStats`]: a snapshot of the counters of a store handle.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::{
    outcomes::{
        DecisionOutcome, EnqueueResult, LockRequestOutcome, PushResult, RunResult, TaskResult,
    },
    store_counters::StoreCounters,
};

/// What this process has done through a store handle and its clones since it was created.
///
/// The numbers are sums of this process. Add those of all processes, or export metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StoreStats {
    /// Requests for locks that were granted.
    pub locks_granted: u64,
    /// Requests for locks that found them busy, without a wait.
    pub locks_busy: u64,
    /// Requests for locks whose wait ended without a grant.
    pub lock_timeouts: u64,
    /// Requests for locks that found the limit of waiters reached.
    pub lock_queues_full: u64,
    /// Requests for locks that failed for the store.
    pub locks_unavailable: u64,
    /// Locks that were lost while they were held.
    pub locks_lost: u64,
    /// Locks that are held now.
    pub locks_held: u64,
    /// Results of policies that admitted a request.
    pub admitted: u64,
    /// Results of policies that refused a request.
    pub refused: u64,
    /// Requests of clients on a deny list.
    pub denied: u64,
    /// Requests that cost more than their quota ever admits.
    pub too_costly: u64,
    /// Requests that were stored for later.
    pub deferred: u64,
    /// Requests that were not deferred: a limit, no worker, or the store.
    pub not_deferred: u64,
    /// Runs of deferred requests that ended with a response.
    pub runs_done: u64,
    /// Runs of deferred requests that will be repeated.
    pub runs_retried: u64,
    /// Deferred requests that became dead letters, also since the process of their run crashed.
    pub runs_dead: u64,
    /// Runs of deferred requests that this process repeats, since the process that had them crashed
    /// or lost their lock.
    pub runs_lost: u64,
    /// Tasks that were pushed.
    pub tasks_pushed: u64,
    /// Tasks that could not be pushed.
    pub tasks_not_pushed: u64,
    /// Runs of tasks that succeeded.
    pub tasks_done: u64,
    /// Runs of tasks that will be repeated.
    pub tasks_retried: u64,
    /// Tasks that became dead letters, also since the process of their run crashed.
    pub tasks_dead: u64,
    /// Runs of tasks that this process has taken back, since their lease ended before they did: the
    /// process that had them crashed or stalled.
    pub tasks_lost: u64,
}

impl StoreCounters {
    /// Reads all counters. They are read one after the other, so their sums may be of slightly
    /// different times.
    pub(crate) fn read(&self, locks_held: u64) -> StoreStats {
        let locks = |outcome: LockRequestOutcome| self.lock_requests.get(outcome.index());
        let decisions = |outcome: DecisionOutcome| self.decisions.get(outcome.index());
        let accepted = |result: EnqueueResult| self.accepted.get(result.index());
        let runs = |result: RunResult| self.runs.get(result.index());
        let pushes = |result: PushResult| self.pushes.get(result.index());
        let task_runs = |result: TaskResult| self.task_runs.get(result.index());
        StoreStats {
            locks_granted: locks(LockRequestOutcome::Granted),
            locks_busy: locks(LockRequestOutcome::Busy),
            lock_timeouts: locks(LockRequestOutcome::TimedOut),
            lock_queues_full: locks(LockRequestOutcome::QueueFull),
            locks_unavailable: locks(LockRequestOutcome::Unavailable),
            locks_lost: self.lock_losses.load(Ordering::Relaxed),
            locks_held,
            admitted: decisions(DecisionOutcome::Admitted),
            refused: decisions(DecisionOutcome::Refused),
            denied: decisions(DecisionOutcome::Denied),
            too_costly: decisions(DecisionOutcome::TooCostly),
            deferred: accepted(EnqueueResult::Deferred),
            not_deferred: accepted(EnqueueResult::Refused) + accepted(EnqueueResult::Failed),
            runs_done: runs(RunResult::Done),
            runs_retried: runs(RunResult::Retry),
            runs_dead: runs(RunResult::Dead),
            runs_lost: runs(RunResult::Lost),
            tasks_pushed: pushes(PushResult::Stored),
            tasks_not_pushed: pushes(PushResult::Full)
                + pushes(PushResult::TooLarge)
                + pushes(PushResult::Failed),
            tasks_done: task_runs(TaskResult::Done),
            tasks_retried: task_runs(TaskResult::Retry),
            tasks_dead: task_runs(TaskResult::Dead),
            tasks_lost: task_runs(TaskResult::Lost),
        }
    }
}
