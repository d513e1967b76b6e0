//! Records (tombstones, idempotency records) that count for their owner until they expire, like the
//! indexes `n` and `e` of `ended_job_bookkeeping.lua`.

use std::hash::Hash;

use super::{
    expiring_map::{ExpiringMap, TimeIndex},
    memory_shard::ServerTime,
};

/// Names of records with their expiries, by owner.
pub(super) struct RecordsPerOwner<K>(ExpiringMap<String, TimeIndex<K>>);

/// Number of one owner's records that have not expired.
#[derive(Default)]
pub(super) struct LiveRecordCount {
    pub(super) count: u64,
    /// First expiry; 0 without records.
    pub(super) first_expires_ms: u64,
}

impl<K: Clone + Eq + Hash + Ord> RecordsPerOwner<K> {
    /// Counts a record until its expiry; replaces an earlier expiry.
    pub(super) fn set(&mut self, owner: &str, record: &K, expires_ms: u64, now: ServerTime) {
        let owner = owner.to_owned();
        let records = self.0.get_or_insert_default(&owner);
        records.remove_due(now.ms);
        records.set(record, expires_ms);
        let last_expiry = records.last();
        self.0.set_expiry(&owner, last_expiry);
    }

    pub(super) fn remove(&mut self, owner: &str, record: &K, now: ServerTime) {
        if let Some(records) = self.0.get_mut(&owner.to_owned(), now.ms) {
            records.remove(record);
        }
    }

    /// Counts the owner's live records.
    pub(super) fn count_live(&mut self, owner: &str, now: ServerTime) -> LiveRecordCount {
        let Some(records) = self.0.get_mut(&owner.to_owned(), now.ms) else {
            return LiveRecordCount::default();
        };
        records.remove_due(now.ms);
        LiveRecordCount {
            count: records.len() as u64,
            first_expires_ms: records.first().map_or(0, |(expires_ms, _)| expires_ms),
        }
    }

    /// Removes and returns the record that expires first.
    pub(super) fn pop_first(&mut self, owner: &str, now: ServerTime) -> Option<K> {
        let records = self.0.get_mut(&owner.to_owned(), now.ms)?;
        let (_, record) = records.first()?;
        records.remove(&record);
        Some(record)
    }

    pub(super) fn sweep(&mut self, now: u64, max_removed: usize) {
        self.0.sweep(now, max_removed);
    }

    /// Returns the number of owners.
    #[cfg(test)]
    pub(super) fn owner_count(&self) -> usize {
        self.0.len()
    }
}

impl<K> Default for RecordsPerOwner<K> {
    fn default() -> Self {
        Self(ExpiringMap::default())
    }
}
