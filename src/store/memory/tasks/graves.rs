//! Dead letters.

use std::collections::{BTreeMap, HashMap};

use crate::store::tasks::TaskId;

/// Letters by the time at which they are thrown away. Each has a microsecond of its own: a page ends behind one, and
/// another of the same would be on none.
#[derive(Default)]
pub(super) struct Graves {
    at: HashMap<TaskId, u64>,
    order: BTreeMap<u64, TaskId>,
}

impl Graves {
    /// At this time, or at the first one after it that is no other letter's.
    pub(super) fn bury(&mut self, id: &TaskId, at: u64) {
        self.remove(id);
        let taken = self.order.range(at..).zip(at..).take_while(|((known, _), at)| **known == *at);
        let at = at.saturating_add(taken.count() as u64);
        self.order.insert(at, id.clone());
        self.at.insert(id.clone(), at);
    }

    pub(super) fn remove(&mut self, id: &TaskId) {
        if let Some(at) = self.at.remove(id) {
            self.order.remove(&at);
        }
    }

    pub(super) fn has(&self, id: &TaskId) -> bool {
        self.at.contains_key(id)
    }

    /// Those that are thrown away after this time, the oldest first.
    pub(super) fn after(&self, at: u64) -> impl Iterator<Item = (u64, &TaskId)> {
        self.order.range(at.saturating_add(1)..).map(|(at, id)| (*at, id))
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &TaskId)> {
        self.order.iter().map(|(at, id)| (*at, id))
    }

    /// The oldest, but the newest only where there is no other: its time may end before theirs.
    pub(super) fn first_but(&self, newest: Option<&TaskId>) -> Option<&TaskId> {
        let mut ids = self.order.values();
        let first = ids.next()?;
        if Some(first) == newest { ids.next().or(Some(first)) } else { Some(first) }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}
