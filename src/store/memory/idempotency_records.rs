//! Idempotency records, counted for their owner: the operations of `ended_jobs.lua` on `i` and `n`.

use std::{sync::Arc, time::Duration};

use super::lock_transaction::{LockScopedName, LockTransaction};
use crate::store::backend::JobId;

impl LockTransaction<'_> {
    /// Sets the expiry of a job's idempotency records to `until`, or to their own minimum if that
    /// is later.
    pub(super) fn extend_job_records(&mut self, id: &JobId, until: u64) {
        let Some(job) = self.jobs.get(id, self.now.ms) else { return };
        for (record, least) in &job.idempotency_records {
            let (name, end) = ((job.lock.clone(), Arc::clone(record)), until.max(*least));
            if self
                .idempotency_records
                .get(&name, self.now.ms)
                .is_some_and(|(whose, _)| whose == id)
            {
                self.idempotency_records.set_expiry(&name, Some(end));
                self.shard.owner_records.set(&job.owner, &name, end, self.now);
            }
        }
    }

    /// Stores an idempotency record, and counts it for its owner.
    pub(super) fn insert_record(
        &mut self,
        name: &LockScopedName,
        record: (JobId, String),
        end: u64,
        owner: &str,
    ) {
        self.idempotency_records.insert(name, record, Some(end));
        self.shard.owner_records.set(owner, name, end, self.now);
    }

    /// Returns the time until the owner's first record expires, if the owner has reached its limit.
    pub(super) fn record_limit_wait(&mut self, owner: &str, most: u64) -> Option<Duration> {
        let (count, first) = self.shard.owner_records.count_with_first_expiry(owner, self.now);
        let left = || Duration::from_millis(first.saturating_sub(self.now.ms).max(1));
        (count >= most).then(left)
    }
}
