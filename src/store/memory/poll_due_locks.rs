//! Due work of a shard: `poll_due_locks_and_jobs.lua` of the embedded store.

use std::time::Duration;

use super::{
    expiring_map::TimeIndex,
    local_pubsub::OutgoingWakeup,
    lock_transaction::SCAN_LIMIT,
    memory_shard::{MemoryShard, ServerTime},
    shard_state::ShardState,
};
use crate::{
    key::Key,
    store::backend::{DueLocks, JobId},
};

/// Delay, in ms, after which the lock of a webhook is due again.
const WEBHOOK_QUEUE_DELAY_MS: u64 = 1_000;

/// Remaining work of one call of `poll_due_locks_and_jobs.lua`.
pub(super) struct PollBudget {
    pub(super) locks: usize,
    delayed_jobs: usize,
    deadlines: usize,
}

impl PollBudget {
    pub(super) fn new(max_locks: usize) -> Self {
        Self { locks: max_locks, delayed_jobs: SCAN_LIMIT, deadlines: SCAN_LIMIT }
    }
}

/// Returns the due jobs of an index, and subtracts them from `remaining`.
fn take_due(index: &TimeIndex<JobId>, remaining: &mut usize, now: ServerTime) -> Vec<JobId> {
    let due_jobs = index.iter().take_while(|(at, _)| *at <= now.ms).take(*remaining);
    let due_jobs = Vec::from_iter(due_jobs.map(|(_, id)| id.clone()));
    *remaining -= due_jobs.len();
    due_jobs
}

impl MemoryShard {
    /// `poll_due_locks_and_jobs.lua`, one shard. The next call does the remaining work.
    pub(super) fn poll_due(
        &mut self,
        budget: &mut PollBudget,
        now: ServerTime,
        outbox: &mut Vec<OutgoingWakeup>,
    ) -> DueLocks {
        if budget.locks == 0 {
            // The next call does the work.
            return DueLocks { locks: Vec::new(), next_due_in: Some(Duration::ZERO) };
        }
        self.sweep_expired(now);
        self.requeue_and_expire_jobs(budget, now, outbox);
        let due_entries = self.state.due_index.iter().take_while(|(at, _)| *at <= now.ms);
        let mut keys: Vec<_> =
            due_entries.take(budget.locks + 1).map(|(_, key)| key.clone()).collect();
        let later_due_times =
            self.state.due_index.iter().skip_while(|(at, _)| *at <= now.ms).map(|(at, _)| at);
        let first_due = |index: &TimeIndex<JobId>| index.iter().next().map(|(at, _)| at);
        let mut next_due = later_due_times
            .chain(first_due(&self.state.delayed_jobs))
            .chain(first_due(&self.state.deadline_index))
            .min();
        if keys.len() > budget.locks {
            keys.truncate(budget.locks);
            next_due = Some(0);
        }
        budget.locks -= keys.len();
        for key in keys.iter().filter(|key| key.is_webhook()) {
            self.state.due_index.set(key, now.ms + WEBHOOK_QUEUE_DELAY_MS);
            next_due = next_due
                .min(Some(now.ms + WEBHOOK_QUEUE_DELAY_MS))
                .or(Some(now.ms + WEBHOOK_QUEUE_DELAY_MS));
        }
        let with_head = |key: Key| {
            let head = self.first_job(&key, now);
            (key, head)
        };
        DueLocks {
            locks: keys.into_iter().map(with_head).collect(),
            next_due_in: next_due
                .map(|at| Duration::from_micros(at.saturating_mul(1_000).saturating_sub(now.us))),
        }
    }

    /// Moves due delayed jobs into their queues, and ends queued jobs past their deadline.
    fn requeue_and_expire_jobs(
        &mut self,
        budget: &mut PollBudget,
        now: ServerTime,
        outbox: &mut Vec<OutgoingWakeup>,
    ) {
        for id in take_due(&self.state.delayed_jobs, &mut budget.delayed_jobs, now) {
            match self.lock_of(&id, now) {
                Some(key) => {
                    self.with_lock(&key, now, outbox, |transaction| {
                        transaction.requeue_delayed_job(&id);
                    });
                }
                None => self.state.delayed_jobs.remove(&id),
            }
        }
        for id in take_due(&self.state.deadline_index, &mut budget.deadlines, now) {
            match self.lock_of(&id, now) {
                Some(key) => self
                    .with_lock(&key, now, outbox, |transaction| transaction.expire_if_queued(&id)),
                None => self.state.deadline_index.remove(&id),
            }
        }
    }

    /// Returns true if anything is due or will be.
    pub(super) fn has_work(&self) -> bool {
        let ShardState { due_index, delayed_jobs, deadline_index, .. } = &self.state;
        due_index.iter().next().is_some()
            || delayed_jobs.iter().chain(deadline_index.iter()).next().is_some()
    }
}
