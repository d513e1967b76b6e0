//! Index of dead letters.

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
    pub(super) fn insert(&mut self, id: &TaskId, at: u64) {
        self.remove(id);
        let taken =
            self.by_expiry.range(at..).zip(at..).take_while(|((known, _), at)| **known == *at);
        let at = at.saturating_add(taken.count() as u64);
        self.by_expiry.insert(at, id.clone());
        self.expiries.insert(id.clone(), at);
    }

    pub(super) fn remove(&mut self, id: &TaskId) {
        if let Some(at) = self.expiries.remove(id) {
            self.by_expiry.remove(&at);
        }
    }

    pub(super) fn contains(&self, id: &TaskId) -> bool {
        self.expiries.contains_key(id)
    }

    /// Iterates over letters that expire after a time, the oldest first.
    pub(super) fn iter_after(&self, at: u64) -> impl Iterator<Item = (u64, &TaskId)> {
        self.by_expiry.range(at.saturating_add(1)..).map(|(at, id)| (*at, id))
    }

    /// Iterates over all letters, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &TaskId)> {
        self.by_expiry.iter().map(|(at, id)| (*at, id))
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
