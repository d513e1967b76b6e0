//! Due work of a shard: `poll_due.lua` of the embedded store.

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

/// Remaining work of one call of `poll_due.lua`.
pub(super) struct PollBudget {
    pub(super) locks: usize,
    delayed_jobs: usize,
    deadlines: usize,
}

impl PollBudget {
    pub(super) fn new(names: usize) -> Self {
        Self { locks: names, delayed_jobs: SCAN_LIMIT, deadlines: SCAN_LIMIT }
    }
}

/// Returns the due jobs of an index.
fn take_due(index: &TimeIndex<JobId>, most: &mut usize, now: ServerTime) -> Vec<JobId> {
    let ripe = index.iter().take_while(|(at, _)| *at <= now.ms).take(*most);
    let ripe = Vec::from_iter(ripe.map(|(_, id)| id.clone()));
    *most -= ripe.len();
    ripe
}

impl MemoryShard {
    /// `poll_due.lua`, one shard. The next call does the remaining work.
    pub(super) fn poll_due(
        &mut self,
        left: &mut PollBudget,
        now: ServerTime,
        post: &mut Vec<OutgoingWakeup>,
    ) -> DueLocks {
        if left.locks == 0 {
            // Left to the next call.
            return DueLocks { locks: Vec::new(), next_due_in: Some(Duration::ZERO) };
        }
        self.sweep_expired(now);
        for id in take_due(&self.state.delayed_jobs, &mut left.delayed_jobs, now) {
            match self.lock_of(&id, now) {
                Some(key) => {
                    self.with_lock(&key, now, post, |visit| visit.requeue_delayed_job(&id));
                }
                None => self.state.delayed_jobs.remove(&id),
            }
        }
        for id in take_due(&self.state.deadline_index, &mut left.deadlines, now) {
            match self.lock_of(&id, now) {
                Some(key) => self.with_lock(&key, now, post, |visit| visit.expire_if_queued(&id)),
                None => self.state.deadline_index.remove(&id),
            }
        }
        let due = self.state.due_index.iter().take_while(|(at, _)| *at <= now.ms);
        let mut names: Vec<_> = due.take(left.locks + 1).map(|(_, name)| name.clone()).collect();
        let later =
            self.state.due_index.iter().skip_while(|(at, _)| *at <= now.ms).map(|(at, _)| at);
        let first = |index: &TimeIndex<JobId>| index.iter().next().map(|(at, _)| at);
        let mut next = later
            .chain(first(&self.state.delayed_jobs))
            .chain(first(&self.state.deadline_index))
            .min();
        if names.len() > left.locks {
            names.truncate(left.locks);
            next = Some(0);
        }
        left.locks -= names.len();
        for name in names.iter().filter(|name| name.is_webhook()) {
            self.state.due_index.set(name, now.ms + WEBHOOK_QUEUE_DELAY_MS);
            next = next
                .min(Some(now.ms + WEBHOOK_QUEUE_DELAY_MS))
                .or(Some(now.ms + WEBHOOK_QUEUE_DELAY_MS));
        }
        let with_head = |name: Key| {
            let head = self.first_job(&name, now);
            (name, head)
        };
        DueLocks {
            locks: names.into_iter().map(with_head).collect(),
            next_due_in: next
                .map(|at| Duration::from_micros(at.saturating_mul(1_000).saturating_sub(now.us))),
        }
    }

    /// Returns true if anything is due or will be.
    pub(super) fn has_work(&self) -> bool {
        let ShardState { due_index: due, delayed_jobs: late, deadline_index: exp, .. } =
            &self.state;
        due.iter().next().is_some() || late.iter().chain(exp.iter()).next().is_some()
    }
}
