//! Jobs of one lock that are in backoff: mostly one, the first.

use crate::store::backend::JobId;

/// Maximum number of backoffs per lock; the latest failures stay.
const MAX_BACKOFFS: usize = 16;

/// End of each backoff, the latest failure first.
#[derive(Debug, Default)]
pub(super) struct JobBackoffs(Vec<(u64, JobId)>);

impl JobBackoffs {
    /// Adds a backoff, and removes those that have ended.
    pub(super) fn set(&mut self, id: &JobId, at: u64, now: u64) {
        self.0.retain(|(until, whose)| *until > now && whose != id);
        self.0.insert(0, (at, id.clone()));
        self.0.truncate(MAX_BACKOFFS);
    }

    /// Removes the backoff of a job that has ended.
    pub(super) fn remove(&mut self, id: &JobId) {
        self.0.retain(|(_, whose)| whose != id);
    }

    pub(super) fn end_of(&self, id: &JobId) -> Option<u64> {
        self.0.iter().find(|(_, whose)| whose == id).map(|(at, _)| *at)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, JobId)> {
        self.0.iter()
    }
}
