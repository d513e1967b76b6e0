//! `IdempotencyRecord`: its insertion, its expiry, and the limit of its owner; the operations of
//! `ended_job_bookkeeping.lua` on `i` and `n`.

use std::{sync::Arc, time::Duration};

use super::lock_transaction::{LockScopedName, LockTransaction};
use crate::store::backend::JobId;

/// Stored link from an idempotency key to its job or direct run.
#[derive(Clone)]
pub(super) struct IdempotencyRecord {
    pub(super) job_id: JobId,
    /// Fingerprint of the request that created the job; `-` while that of a direct run is unknown.
    pub(super) fingerprint: String,
}

impl LockTransaction<'_> {
    /// Sets the expiry of a job's idempotency records to `expires_ms`, or to their own minimum if
    /// that is later.
    pub(super) fn extend_job_records(&mut self, id: &JobId, expires_ms: u64) {
        let Some(job) = self.jobs.get(id, self.now.ms) else { return };
        for (record_name, min_expires_ms) in &job.idempotency_records {
            let name = (job.lock.clone(), Arc::clone(record_name));
            let expires_ms = expires_ms.max(*min_expires_ms);
            let record = self.idempotency_records.get(&name, self.now.ms);
            if record.is_some_and(|record| record.job_id == *id) {
                self.idempotency_records.set_expiry(&name, Some(expires_ms));
                self.shard.owner_records.set(&job.owner, &name, expires_ms, self.now);
            }
        }
    }

    /// Extends one record of this job to `expires_ms` at least.
    pub(super) fn extend_record(&mut self, record_name: &Arc<str>, id: &JobId, expires_ms: u64) {
        let name = (self.key.clone(), Arc::clone(record_name));
        let record = self.idempotency_records.get(&name, self.now.ms);
        if record.is_some_and(|record| record.job_id == *id) {
            let old_expiry = self.idempotency_records.expiry_of(&name);
            let expires_ms = old_expiry.map_or(expires_ms, |old| old.max(expires_ms));
            self.idempotency_records.set_expiry(&name, Some(expires_ms));
            let owner = self.jobs.get(id, self.now.ms).map_or("", |job| &job.owner);
            self.shard.owner_records.set(owner, &name, expires_ms, self.now);
        }
    }

    /// Stores an idempotency record, and counts it for its owner.
    pub(super) fn insert_record(
        &mut self,
        name: &LockScopedName,
        record: IdempotencyRecord,
        expires_ms: u64,
        owner: &str,
    ) {
        self.idempotency_records.insert(name, record, Some(expires_ms));
        self.shard.owner_records.set(owner, name, expires_ms, self.now);
    }

    /// Returns the time until the owner's first record expires, if the owner has reached its limit.
    pub(super) fn record_limit_wait(&mut self, owner: &str, max_records: u64) -> Option<Duration> {
        let live = self.shard.owner_records.count_live(owner, self.now);
        let wait_ms = live.first_expires_ms.saturating_sub(self.now.ms).max(1);
        (live.count >= max_records).then(|| Duration::from_millis(wait_ms))
    }
}
