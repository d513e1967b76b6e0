//! Idempotency records, counted for their owner: what `kept.lua` does to `i` and `n`.

use std::{sync::Arc, time::Duration};

use super::visit::{RecordName, Visit};
use crate::store::backend::JobId;

impl Visit<'_> {
    /// The idempotency records of a job are there until then, or for their own time if that is longer.
    pub(super) fn remember_until(&mut self, id: &JobId, until: u64) {
        let Some(job) = self.jobs.get(id, self.now.ms) else { return };
        for (record, least) in &job.records {
            let (name, end) = ((job.lock.clone(), Arc::clone(record)), until.max(*least));
            if self.records.get(&name, self.now.ms).is_some_and(|(whose, _)| whose == id) {
                self.records.end_at(&name, Some(end));
                self.facts.records.set(&job.owner, &name, end, self.now);
            }
        }
    }

    /// Keeps an idempotency record, and counts it for its owner.
    pub(super) fn put_record(
        &mut self,
        name: &RecordName,
        record: (JobId, String),
        end: u64,
        owner: &str,
    ) {
        self.records.put(name, record, Some(end));
        self.facts.records.set(owner, name, end, self.now);
    }

    /// How long until the first record of this owner ends, if it has as many as it may.
    pub(super) fn records_full(&mut self, owner: &str, most: u64) -> Option<Duration> {
        let (count, first) = self.facts.records.count(owner, self.now);
        let left = || Duration::from_millis(first.saturating_sub(self.now.ms).max(1));
        (count >= most).then(left)
    }
}
