//! `DeadLetterIndex`: the dead letters of one queue, by expiry.

use std::collections::{BTreeMap, HashMap};

use crate::store::tasks::TaskId;

/// Dead letters by expiry in microseconds, unique for each: a page ends after an expiry, and
/// another letter with the same one would be on no page.
#[derive(Default)]
pub(super) struct DeadLetterIndex {
    expiries: HashMap<TaskId, u64>,
    by_expiry: BTreeMap<u64, TaskId>,
}

impl DeadLetterIndex {
    /// Inserts a letter at this expiry, or at the first later one that is free.
    pub(super) fn insert(&mut self, id: &TaskId, expires_us: u64) {
        self.remove(id);
        let taken = self
            .by_expiry
            .range(expires_us..)
            .zip(expires_us..)
            .take_while(|((taken_us, _), wanted_us)| **taken_us == *wanted_us);
        let expires_us = expires_us.saturating_add(taken.count() as u64);
        self.by_expiry.insert(expires_us, id.clone());
        self.expiries.insert(id.clone(), expires_us);
    }

    pub(super) fn remove(&mut self, id: &TaskId) {
        if let Some(expires_us) = self.expiries.remove(id) {
            self.by_expiry.remove(&expires_us);
        }
    }

    pub(super) fn contains(&self, id: &TaskId) -> bool {
        self.expiries.contains_key(id)
    }

    /// Iterates over letters that expire after a time, the oldest first.
    pub(super) fn iter_after(&self, after_us: u64) -> impl Iterator<Item = (u64, &TaskId)> {
        self.by_expiry.range(after_us.saturating_add(1)..).map(|(expires_us, id)| (*expires_us, id))
    }

    /// Iterates over all letters, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &TaskId)> {
        self.by_expiry.iter().map(|(expires_us, id)| (*expires_us, id))
    }

    /// Returns the oldest letter, and the newest only if there is no other: it may expire before
    /// the others.
    pub(super) fn oldest_except(&self, newest: Option<&TaskId>) -> Option<&TaskId> {
        let mut ids = self.by_expiry.values();
        let first = ids.next()?;
        if Some(first) == newest { ids.next().or(Some(first)) } else { Some(first) }
    }

    pub(super) fn len(&self) -> usize {
        self.by_expiry.len()
    }
}
