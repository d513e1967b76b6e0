//! Polls of the due index: their time, their shards, and the handling of their results.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{JobDispatcher, MAX_DUE_LOCKS, RETRY_DELAY};
use crate::{
    error::Error,
    key::Key,
    store::{DueLocks, JobId},
};

/// Number of waiting request locks below which more are polled. It covers the duration of a poll.
const LOW_WATERMARK: usize = 50;

/// Delay of a poll while at least `LOW_WATERMARK` locks wait. Locks that only came due have no
/// wake-up, and must get their turn too.
const BACKLOG_POLL_DELAY: Duration = Duration::from_secs(1);

/// Result of a due poll.
pub(super) struct DueLockPollResult {
    /// The polled shards, with the times since which they were due.
    shards: Vec<(u16, Instant)>,
    due_locks: Result<Vec<DueLocks>, Error>,
}

impl JobDispatcher {
    pub(super) fn next_due_poll_at(&self) -> Option<Instant> {
        let has_backlog = self.ready_queues.request_count() >= LOW_WATERMARK;
        let delay = if has_backlog { BACKLOG_POLL_DELAY } else { Duration::ZERO };
        let first = self.due_polls.values().min().filter(|_| self.due_poll.is_none());
        first.map(|at| *at + delay)
    }

    pub(super) fn schedule_due_poll(&mut self, shard: u16, at: Instant) {
        if self.owned_shards.contains(&shard) {
            let scheduled_at = self.due_polls.entry(shard).or_insert(at);
            *scheduled_at = at.min(*scheduled_at);
        }
    }

    /// Returns the shards with a due poll, the longest overdue first.
    fn overdue_shards(&self, now: Instant) -> Vec<(u16, Instant)> {
        let scheduled = self.due_polls.iter().map(|(&shard, &at)| (shard, at));
        let mut overdue: Vec<_> = scheduled.filter(|(_, at)| *at <= now).collect();
        overdue.sort_unstable_by_key(|(_, at)| *at);
        overdue
    }

    /// Polls the due shards in the background.
    pub(super) fn start_due_poll(&mut self) {
        let shards = self.overdue_shards(Instant::now());
        for (shard, _) in &shards {
            self.due_polls.remove(shard);
        }
        let store = self.worker.store.clone();
        self.due_poll = Some(Box::pin(async move {
            let polled = shards.iter().map(|(shard, _)| *shard).collect();
            let due_locks = store.backend().poll_due(polled, MAX_DUE_LOCKS).await;
            DueLockPollResult { shards, due_locks }
        }));
    }

    pub(super) fn handle_due_poll(
        &mut self,
        DueLockPollResult { shards, due_locks }: DueLockPollResult,
    ) {
        let now = Instant::now();
        let Ok(due_locks) = due_locks else {
            let retry_at = now + RETRY_DELAY;
            return shards
                .into_iter()
                .for_each(|(shard, _)| self.schedule_due_poll(shard, retry_at));
        };
        for ((shard, due_since), due) in shards.into_iter().zip(due_locks) {
            let can_start = |key: &Key| {
                let is_handled =
                    self.running_chains.contains_key(key) || self.ready_queues.contains(key);
                !is_handled && (!key.is_webhook() || self.ready_queues.accepts(key))
            };
            let earliest = match &due.locks[..] {
                // `MAX_DUE_LOCKS` was used up by other shards. This one is first in the next poll.
                [] => due_since,
                locks if locks.iter().any(|(key, _)| can_start(key)) => now,
                // All locks are known already and can't start yet; polling at once would find the
                // same.
                _ => now + RETRY_DELAY,
            };
            if let Some(due_in) = due.next_due_in {
                self.schedule_due_poll(
                    shard,
                    if due_in.is_zero() { earliest } else { now + due_in },
                );
            }
            due.locks.into_iter().for_each(|(key, head)| self.enqueue_due_lock(&key, head, now));
        }
        self.start_ready_chains();
    }

    fn enqueue_due_lock(&mut self, key: &Key, head: Option<JobId>, now: Instant) {
        if self.running_chains.contains_key(key) {
            return;
        }
        if head.as_ref().is_some_and(|head| self.leave_to_peer(key, head, now)) {
            self.schedule_due_poll(key.shard(), now + RETRY_DELAY);
        } else if self.ready_queues.accepts(key) {
            self.ready_queues.queue_for(key).push_due(key, head);
        } else if !key.is_webhook() {
            // The lock of a webhook becomes due again by itself.
            self.schedule_due_poll(key.shard(), now);
        }
    }
}

/// Waits for the current poll; never resolves if there is none.
pub(super) async fn await_due_poll(
    due_poll: &mut Option<BoxFuture<'static, DueLockPollResult>>,
) -> DueLockPollResult {
    let Some(poll) = due_poll else { return std::future::pending().await };
    let result = poll.await;
    *due_poll = None;
    result
}
