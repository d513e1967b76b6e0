//! Jobs of one lock that are in backoff: mostly one, the first.

use crate::store::backend::JobId;

/// Maximum number of backoffs per lock; the latest failures stay.
const MAX_BACKOFFS: usize = 16;

/// End of each backoff, the latest failure first.
#[derive(Debug, Default)]
pub(super) struct LockJobBackoffs(Vec<(u64, JobId)>);

impl LockJobBackoffs {
    /// Adds a backoff, and removes those that have ended.
    pub(super) fn set(&mut self, id: &JobId, end_ms: u64, now: u64) {
        self.0.retain(|(end_ms, job)| *end_ms > now && job != id);
        self.0.insert(0, (end_ms, id.clone()));
        self.0.truncate(MAX_BACKOFFS);
    }

    /// Removes the backoff of a job that has ended.
    pub(super) fn remove(&mut self, id: &JobId) {
        self.0.retain(|(_, job)| job != id);
    }

    pub(super) fn end_of(&self, id: &JobId) -> Option<u64> {
        self.0.iter().find(|(_, job)| job == id).map(|(end_ms, _)| *end_ms)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, JobId)> {
        self.0.iter()
    }
}
