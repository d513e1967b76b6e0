//! `WaitingTasks`: the waiting tasks of one queue, by due time.

use std::collections::HashMap;

use super::super::expiring_map::TimeIndex;
use crate::store::tasks::TaskId;

/// Waiting tasks by due time; those of the same time in their order of arrival. (The scripts give
/// each task a microsecond of its own instead; here the clock may stand still.)
#[derive(Default)]
pub(super) struct WaitingTasks {
    by_due: TimeIndex<(u64, TaskId)>,
    ranks: HashMap<TaskId, u64>,
    last_rank: u64,
}

impl WaitingTasks {
    pub(super) fn insert(&mut self, id: &TaskId, at: u64) {
        self.last_rank += 1;
        self.insert_with_rank(id, at, self.last_rank);
    }

    /// Inserts a task before all others of its due time.
    pub(super) fn insert_first(&mut self, id: &TaskId, at: u64) {
        self.insert_with_rank(id, at, 0);
    }

    fn insert_with_rank(&mut self, id: &TaskId, at: u64, place: u64) {
        self.remove(id);
        self.ranks.insert(id.clone(), place);
        self.by_due.set(&(place, id.clone()), at);
    }

    pub(super) fn remove(&mut self, id: &TaskId) {
        if let Some(place) = self.ranks.remove(id) {
            self.by_due.remove(&(place, id.clone()));
        }
    }

    pub(super) fn due_time(&self, id: &TaskId) -> Option<u64> {
        self.by_due.get(&(*self.ranks.get(id)?, id.clone()))
    }

    pub(super) fn first(&self) -> Option<(u64, TaskId)> {
        self.by_due.first().map(|(at, (_, id))| (at, id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &TaskId)> {
        self.by_due.iter().map(|(at, (_, id))| (at, id))
    }

    /// Returns the due time of the last task.
    pub(super) fn last_due(&self) -> Option<u64> {
        self.by_due.iter().last().map(|(at, _)| at)
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }
}
