//! Jobs of one line that are in backoff: mostly one, the first.

use crate::store::backend::JobId;

/// Most that are known of a line: those that have failed last.
const MAX_BACKOFFS: usize = 16;

/// Until when each of them is, the one that has failed last first.
#[derive(Debug, Default)]
pub(super) struct JobBackoffs(Vec<(u64, JobId)>);

impl JobBackoffs {
    /// Those that are over at this time are forgotten.
    pub(super) fn set(&mut self, id: &JobId, at: u64, now: u64) {
        self.0.retain(|(until, whose)| *until > now && whose != id);
        self.0.insert(0, (at, id.clone()));
        self.0.truncate(MAX_BACKOFFS);
    }

    /// A backoff is a job's own and ends with it.
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
