//! Names that count for their owner until they expire, like the indexes `n` and `e` of
//! `ended_jobs.lua`.

use std::hash::Hash;

use super::{
    expiring_map::{ExpiringMap, TimeIndex},
    memory_shard::ServerTime,
};

/// Names with their expiries, by owner.
pub(super) struct RecordsPerOwner<K>(ExpiringMap<String, TimeIndex<K>>);

impl<K: Clone + Eq + Hash + Ord> RecordsPerOwner<K> {
    /// Counts a name until its expiry; replaces an earlier one.
    pub(super) fn set(&mut self, owner: &str, name: &K, end: u64, now: ServerTime) {
        let owner = owner.to_owned();
        let names = self.0.get_or_insert_default(&owner);
        names.remove_due(now.ms);
        names.set(name, end);
        let last = names.last();
        self.0.set_expiry(&owner, last);
    }

    pub(super) fn remove(&mut self, owner: &str, name: &K, now: ServerTime) {
        if let Some(names) = self.0.get_mut(&owner.to_owned(), now.ms) {
            names.remove(name);
        }
    }

    /// Returns the number of the owner's live names, and the first expiry.
    pub(super) fn count_with_first_expiry(&mut self, owner: &str, now: ServerTime) -> (u64, u64) {
        let Some(names) = self.0.get_mut(&owner.to_owned(), now.ms) else { return (0, 0) };
        names.remove_due(now.ms);
        (names.len() as u64, names.first().map_or(0, |(end, _)| end))
    }

    /// Removes and returns the name that expires first.
    pub(super) fn pop_first(&mut self, owner: &str, now: ServerTime) -> Option<K> {
        let names = self.0.get_mut(&owner.to_owned(), now.ms)?;
        let (_, name) = names.first()?;
        names.remove(&name);
        Some(name)
    }

    pub(super) fn sweep(&mut self, now: u64, most: usize) {
        self.0.sweep(now, most);
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
