//! Ended jobs that are kept: the indexes done and dead, and what is counted of them.

use std::collections::BTreeMap;

use crate::store::backend::JobId;

/// Most dead jobs that a shard keeps.
pub(super) const DEAD: usize = 10_000;

/// One index: when each is forgotten, in microseconds, each of its own.
#[derive(Default)]
pub(super) struct Ended {
    jobs: BTreeMap<u64, JobId>,
    /// Ever filed, and taken out again by hand.
    filed: u64,
    pub(super) out: u64,
}

impl Ended {
    pub(super) fn file(&mut self, id: &JobId, mut until: u64) {
        while self.jobs.contains_key(&until) {
            until += 1;
        }
        self.jobs.insert(until, id.clone());
        self.filed += 1;
    }

    /// Forgets those whose time is over; what is beyond `most`, the oldest first, is returned.
    pub(super) fn trim(&mut self, now_us: u64, most: usize) -> Option<JobId> {
        while self.jobs.first_key_value().is_some_and(|(until, _)| *until <= now_us) {
            self.jobs.pop_first();
        }
        (self.jobs.len() > most).then(|| self.jobs.pop_first()).flatten().map(|(_, id)| id)
    }

    /// From a mark on.
    pub(super) fn from(&self, mark: u64, now_us: u64) -> impl Iterator<Item = (u64, &JobId)> {
        let live = self.jobs.range(mark.max(now_us + 1)..);
        live.map(|(until, id)| (*until, id))
    }

    /// Taken out by hand.
    pub(super) fn take(&mut self, id: &JobId) {
        let before = self.jobs.len();
        self.jobs.retain(|_, other| other != id);
        self.out += (before - self.jobs.len()) as u64;
    }

    /// How many are kept, and how many are kept no more.
    pub(super) fn count(&self, now_us: u64) -> (u64, u64) {
        let kept = self.from(0, now_us).count() as u64;
        (kept, self.filed.saturating_sub(self.out + kept))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }
}
