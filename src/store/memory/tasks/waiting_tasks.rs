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
    pub(super) fn insert(&mut self, id: &TaskId, due_us: u64) {
        self.last_rank += 1;
        self.insert_with_rank(id, due_us, self.last_rank);
    }

    /// Inserts a task before all others of its due time.
    pub(super) fn insert_first(&mut self, id: &TaskId, due_us: u64) {
        self.insert_with_rank(id, due_us, 0);
    }

    fn insert_with_rank(&mut self, id: &TaskId, due_us: u64, rank: u64) {
        self.remove(id);
        self.ranks.insert(id.clone(), rank);
        self.by_due.set(&(rank, id.clone()), due_us);
    }

    pub(super) fn remove(&mut self, id: &TaskId) {
        if let Some(rank) = self.ranks.remove(id) {
            self.by_due.remove(&(rank, id.clone()));
        }
    }

    pub(super) fn due_time(&self, id: &TaskId) -> Option<u64> {
        self.by_due.get(&(*self.ranks.get(id)?, id.clone()))
    }

    pub(super) fn first(&self) -> Option<(u64, TaskId)> {
        self.by_due.first().map(|(due_us, (_, id))| (due_us, id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &TaskId)> {
        self.by_due.iter().map(|(due_us, (_, id))| (due_us, id))
    }

    /// Returns the due time of the last task.
    pub(super) fn last_due(&self) -> Option<u64> {
        self.by_due.iter().last().map(|(due_us, _)| due_us)
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }
}
