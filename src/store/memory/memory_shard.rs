//! Shard of the embedded store: all data that one operation may touch, behind one mutex.

use std::time::Duration;

use bytes::Bytes;

use super::{
    expiring_map::ExpiringMap,
    idempotency_record_expiry_and_limit::IdempotencyRecord,
    job_record::JobRecord,
    local_pubsub::OutgoingWakeup,
    lock_holders_and_queue::{HolderEntry, LockHoldersAndQueue},
    lock_transaction::{LockScopedName, LockTransaction},
    rate_counters::{StoredCounter, StoredCounterKey},
    shard_state::ShardState,
};
use crate::{
    key::Key,
    store::backend::{JobId, LeaseRenewal, LockMode, LockToken},
};

/// Number of values of each kind that an operation checks for expiry. It creates fewer, so expired
/// values are removed faster than they appear.
pub(super) const SWEEP_LIMIT: usize = 4;

/// Time of an operation; the clock is read once, at its beginning.
#[derive(Clone, Copy)]
pub(super) struct ServerTime {
    pub(super) us: u64,
    pub(super) ms: u64,
}

impl ServerTime {
    pub(super) fn from_micros(us: u64) -> Self {
        Self { us, ms: us / 1000 }
    }

    /// Returns the first ms after a delay: a delayed entry must not come early.
    pub(super) fn earliest_after(self, delay: Duration) -> u64 {
        self.us.div_ceil(1000).saturating_add(crate::durations::ceil_millis(delay))
    }

    /// Returns the deadline, in ms, of a time that begins now.
    pub(super) fn deadline_after(self, time: Duration) -> u64 {
        self.ms.saturating_add(crate::durations::ceil_millis(time))
    }
}

/// Data of one shard.
#[derive(Default)]
pub(super) struct MemoryShard {
    pub(super) locks: ExpiringMap<Key, LockHoldersAndQueue>,
    pub(super) jobs: ExpiringMap<JobId, JobRecord>,
    pub(super) idempotency_records: ExpiringMap<LockScopedName, IdempotencyRecord>,
    pub(super) counters: ExpiringMap<StoredCounterKey, StoredCounter>,
    /// Number of GCRA debts begun, which names the next one.
    pub(super) last_debt_id: u64,
    pub(super) state: ShardState,
}

impl MemoryShard {
    /// Runs an operation on one lock. Creates its state if needed, and removes the state if the
    /// operation has left it empty.
    pub(super) fn with_lock<T>(
        &mut self,
        key: &Key,
        now: ServerTime,
        outbox: &mut Vec<OutgoingWakeup>,
        operation: impl FnOnce(&mut LockTransaction<'_>) -> T,
    ) -> T {
        let lock = self.locks.get_or_insert_default(key);
        lock.drop_expired(now);
        let mut transaction = LockTransaction {
            key,
            lock,
            shard: &mut self.state,
            jobs: &mut self.jobs,
            idempotency_records: &mut self.idempotency_records,
            outbox,
            now,
        };
        let result = operation(&mut transaction);
        if lock.is_empty() {
            self.locks.remove(key);
        } else {
            let expires_ms = lock.expiry();
            self.locks.set_expiry(key, expires_ms);
        }
        self.enqueue_webhooks(now, outbox);
        self.sweep_expired(now);
        result
    }

    /// Enqueues the webhook jobs of the jobs that the operation before has ended: each has a lock
    /// of its own.
    fn enqueue_webhooks(&mut self, now: ServerTime, outbox: &mut Vec<OutgoingWakeup>) {
        for webhook in std::mem::take(&mut self.state.pending_webhooks) {
            self.with_lock(&webhook.spec.key.clone(), now, outbox, |transaction| {
                transaction.enqueue_webhook(webhook);
            });
        }
    }

    pub(super) fn sweep_expired(&mut self, now: ServerTime) {
        self.locks.sweep(now.ms, SWEEP_LIMIT);
        self.jobs.sweep(now.ms, SWEEP_LIMIT);
        self.idempotency_records.sweep(now.ms, SWEEP_LIMIT);
        self.state.latest_by_group.sweep(now.ms, SWEEP_LIMIT);
        self.state.merged_into.sweep(now.ms, SWEEP_LIMIT);
        self.state.owner_tombstones.sweep(now.ms, SWEEP_LIMIT);
        self.state.owner_records.sweep(now.ms, SWEEP_LIMIT);
        self.state.done_jobs.remove_expired(now.us);
        self.state.dead_jobs.remove_expired(now.us);
    }

    /// `renew.lua`, one item.
    pub(super) fn renew_lease(&mut self, item: &LeaseRenewal, now: ServerTime) -> bool {
        let requested_deadline = now.deadline_after(item.lease);
        let Some(lock) = self.locks.get_mut(&item.key, now.ms) else {
            return false;
        };
        lock.drop_expired(now);
        let Some(deadline) = lock.extend_holder(&item.token, item.mode, now, requested_deadline)
        else {
            return false;
        };
        let expires_ms = lock.expiry();
        self.locks.set_expiry(&item.key, expires_ms);
        if let Some(id) = &item.job {
            let is_run_by_token = |job: &JobRecord| job.run_token.as_ref() == Some(&item.token);
            if self.jobs.get(id, now.ms).is_some_and(is_run_by_token) {
                self.state.due_index.set(&item.key, deadline);
            }
        }
        true
    }

    /// `advance_fence.lua`.
    pub(super) fn advance_fence(
        &mut self,
        key: &Key,
        token: &LockToken,
        fence: u64,
        now: ServerTime,
    ) -> bool {
        let member = HolderEntry::holder(LockMode::Exclusive, token);
        let deadline = self.locks.get(key, now.ms).and_then(|lock| lock.deadline_of(&member));
        let is_held = deadline.is_some_and(|deadline| deadline > now.ms);
        if is_held {
            self.state.highest_fence = self.state.highest_fence.max(fence);
        }
        is_held
    }

    /// Returns the stored request. There is none once the job is done, as on Redis, where the
    /// request has a key of its own.
    pub(super) fn job_envelope(&self, id: &JobId, now: ServerTime) -> Option<Bytes> {
        let envelope = &self.jobs.get(id, now.ms)?.envelope;
        Some(envelope.clone()).filter(|envelope| !envelope.is_empty())
    }

    pub(super) fn lock_of(&self, id: &JobId, now: ServerTime) -> Option<Key> {
        self.jobs.get(id, now.ms).map(|job| job.lock.clone())
    }

    pub(super) fn first_job(&self, key: &Key, now: ServerTime) -> Option<JobId> {
        let (_, id) = self.locks.get(key, now.ms)?.first_job()?;
        Some(id.clone())
    }

    /// Returns the number of values of all kinds.
    #[cfg(test)]
    pub(super) fn value_count(&self) -> usize {
        let merge_count = self.state.latest_by_group.len() + self.state.merged_into.len();
        let owner_count =
            self.state.owner_tombstones.owner_count() + self.state.owner_records.owner_count();
        let map_count = self.locks.len()
            + self.jobs.len()
            + self.idempotency_records.len()
            + self.counters.len();
        map_count
            + merge_count
            + owner_count
            + self.state.index_entry_count()
            + self.state.done_jobs.len()
            + self.state.dead_jobs.len()
    }

    #[cfg(test)]
    pub(super) fn persistent_entry_count(&self) -> usize {
        let persistent_counts = [self.locks.persistent_len(), self.jobs.persistent_len()];
        persistent_counts.iter().sum::<usize>()
            + self.idempotency_records.persistent_len()
            + self.counters.persistent_len()
            + self.state.index_entry_count()
    }

    #[cfg(test)]
    pub(super) fn usage_counts(&self, key: &Key) -> [u64; 3] {
        let lock_bytes = self.locks.get(key, 0).map_or(0, |lock| lock.job_bytes);
        [self.state.job_count, self.state.job_bytes, lock_bytes]
    }
}
