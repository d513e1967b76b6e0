//! Idempotency records, counted for their owner: what `kept.lua` does to `i` and `n`.

use std::{sync::Arc, time::Duration};

use super::lock_transaction::{LockScopedName, LockTransaction};
use crate::store::backend::JobId;

impl LockTransaction<'_> {
    /// The idempotency records of a job are there until then, or for their own time if that is longer.
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

    /// Keeps an idempotency record, and counts it for its owner.
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

    /// How long until the first record of this owner ends, if it has as many as it may.
    pub(super) fn record_limit_wait(&mut self, owner: &str, most: u64) -> Option<Duration> {
        let (count, first) = self.shard.owner_records.count_with_first_expiry(owner, self.now);
        let left = || Duration::from_millis(first.saturating_sub(self.now.ms).max(1));
        (count >= most).then(left)
    }
}
