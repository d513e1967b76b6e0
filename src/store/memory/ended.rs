//! Ended jobs that are kept: the indexes done and dead, and what is counted of them.

use std::collections::{BTreeMap, HashMap};

use crate::store::backend::{ENDED_SIZE, JobId};

/// Most dead jobs that a shard keeps.
pub(super) const DEAD: usize = 10_000;

/// Most bytes that a shard keeps of done jobs, and of dead ones, where no layer has said it.
pub(super) const KEEP: u64 = 16 << 20;

/// Jobs that one step forgets at most to make room for another one.
const SHED: usize = 96;

/// One index: when each is forgotten, in microseconds, each of its own.
#[derive(Default)]
pub(super) struct Ended {
    jobs: BTreeMap<u64, JobId>,
    /// The bytes that are kept of each, and of all.
    sizes: HashMap<JobId, u64>,
    bytes: u64,
    /// Ever filed, and taken out again by hand.
    filed: u64,
    pub(super) out: u64,
}

impl Ended {
    pub(super) fn file(&mut self, id: &JobId, mut until: u64, bytes: u64) {
        while self.jobs.contains_key(&until) {
            until += 1;
        }
        self.jobs.insert(until, id.clone());
        self.sizes.insert(id.clone(), ENDED_SIZE + bytes);
        self.bytes += ENDED_SIZE + bytes;
        self.filed += 1;
    }

    /// Forgets those whose time is over.
    pub(super) fn trim(&mut self, now_us: u64) {
        while self.jobs.first_key_value().is_some_and(|(until, _)| *until <= now_us) {
            if let Some((_, id)) = self.jobs.pop_first() {
                self.uncount(&id);
            }
        }
    }

    /// Takes out the oldest until no more than so many, and so many bytes, are left; the newest stays in any case.
    pub(super) fn shed(&mut self, newest: &JobId, most: usize, most_bytes: u64) -> Vec<JobId> {
        let mut gone = Vec::new();
        while (self.jobs.len() > most || self.bytes > most_bytes) && gone.len() < SHED {
            let mut others = self.jobs.iter().filter(|(_, id)| *id != newest);
            let Some((until, id)) = others.next().map(|(until, id)| (*until, id.clone())) else {
                break;
            };
            self.jobs.remove(&until);
            self.uncount(&id);
            gone.push(id);
        }
        gone
    }

    fn uncount(&mut self, id: &JobId) {
        let size = self.sizes.remove(id).unwrap_or_default();
        self.bytes = self.bytes.saturating_sub(size);
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
        self.uncount(id);
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
