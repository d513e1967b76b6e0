//! Indexes of ended jobs, done and dead, with their totals (`ended_jobs.lua`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::store::backend::{ENDED_JOB_OVERHEAD, JobId};

/// Maximum number of dead jobs in a shard.
pub(super) const MAX_DEAD_JOBS: usize = 10_000;

/// Default limit of the bytes of done jobs in a shard, and of dead ones; a layer may set another.
pub(super) const DEFAULT_RETAINED_BYTES: u64 = 16 << 20;

/// Maximum number of jobs that one operation evicts to make room for another one.
const MAX_EVICTIONS_PER_STEP: usize = 96;

/// Index of ended jobs by expiry in microseconds, which is unique in it.
#[derive(Default)]
pub(super) struct EndedJobIndex {
    by_expiry: BTreeMap<u64, JobId>,
    /// Expiry of the entry inserted last.
    last_expiry_us: u64,
    entries: HashMap<JobId, EndedJobEntry>,
    total_bytes: u64,
    owners: HashMap<String, OwnerUsage>,
    /// Owners by their bytes, without the common owner, which has an empty name.
    owners_by_bytes: BTreeSet<(u64, String)>,
    /// Number of entries ever inserted.
    inserted_count: u64,
    /// Number of entries removed by hand.
    pub(super) removed_count: u64,
}

struct EndedJobEntry {
    expires_us: u64,
    bytes: u64,
    owner: String,
}

/// Usage of one owner.
#[derive(Default)]
struct OwnerUsage {
    bytes: u64,
    by_expiry: BTreeMap<u64, JobId>,
}

impl EndedJobIndex {
    pub(super) fn insert(&mut self, id: &JobId, owner: &str, mut until: u64, bytes: u64) {
        self.remove(id);
        // Entries of one moment keep their order, even if one of them was removed.
        if self.last_expiry_us.checked_sub(until).is_some_and(|ahead| ahead < 1000) {
            until = self.last_expiry_us + 1;
        }
        while self.by_expiry.contains_key(&until) {
            until += 1;
        }
        self.last_expiry_us = until;
        let (size, owner) = (ENDED_JOB_OVERHEAD + bytes, owner.to_owned());
        self.by_expiry.insert(until, id.clone());
        self.update_owner(&owner, |share| {
            share.bytes += size;
            share.by_expiry.insert(until, id.clone());
        });
        self.entries.insert(id.clone(), EndedJobEntry { expires_us: until, bytes: size, owner });
        self.total_bytes += size;
        self.inserted_count += 1;
    }

    fn update_owner(&mut self, owner: &str, change: impl FnOnce(&mut OwnerUsage)) {
        let share = self.owners.entry(owner.to_owned()).or_default();
        let before = share.bytes;
        change(share);
        let (after, is_gone) = (share.bytes, share.by_expiry.is_empty());
        if !owner.is_empty() {
            self.owners_by_bytes.remove(&(before, owner.to_owned()));
            if !is_gone {
                self.owners_by_bytes.insert((after, owner.to_owned()));
            }
        }
        if is_gone {
            self.owners.remove(owner);
        }
    }

    /// Removes expired entries.
    pub(super) fn remove_expired(&mut self, now_us: u64) {
        while let Some((_, id)) = self.by_expiry.first_key_value().filter(|(at, _)| **at <= now_us)
        {
            let id = id.clone();
            self.remove(&id);
        }
    }

    /// Evicts jobs until at most `most` jobs and `most_bytes` bytes are left, within
    /// `MAX_EVICTIONS_PER_STEP`. The newest job, of this owner, always stays.
    pub(super) fn evict_excess(
        &mut self,
        newest: &JobId,
        owner: &str,
        most: usize,
        most_bytes: u64,
    ) -> Vec<JobId> {
        let mut gone = Vec::new();
        let mut evict = |ended: &mut Self, most_bytes: u64| {
            let id = ended.choose_eviction(newest, owner, most_bytes)?;
            ended.remove(&id);
            gone.push(id);
            Some(())
        };
        if self.by_expiry.len() > most {
            evict(self, self.total_bytes);
        }
        for _ in 0..MAX_EVICTIONS_PER_STEP {
            if self.total_bytes <= most_bytes || evict(self, most_bytes).is_none() {
                break;
            }
        }
        gone
    }

    /// Returns the job to evict for the newest, which stays: the first one of the chosen owner, or
    /// the first of all if that owner has no other.
    fn choose_eviction(&self, newest: &JobId, owner: &str, most: u64) -> Option<JobId> {
        let largest = self.owners.get(self.owner_to_evict_from(owner, most));
        let of_largest = largest.into_iter().flat_map(|share| share.by_expiry.values());
        let mut all = of_largest.take(2).chain(self.by_expiry.values().take(2));
        all.find(|id| *id != newest).cloned()
    }

    /// Returns the owner to evict from: the owner of the newest if it has more than an equal share
    /// of `most`, else the one with the most bytes. So no owner evicts others' jobs with its own.
    fn owner_to_evict_from<'a>(&'a self, owner: &'a str, most: u64) -> &'a str {
        let bytes = |owner: &str| self.owners.get(owner).map_or(0, |share| share.bytes);
        if bytes(owner).saturating_mul(self.owners.len() as u64) > most {
            return owner;
        }
        match self.owners_by_bytes.last() {
            Some((top, largest)) if *top > bytes("") => largest,
            _ => "",
        }
    }

    fn remove(&mut self, id: &JobId) -> bool {
        let Some(EndedJobEntry { expires_us: until, bytes: size, owner }) = self.entries.remove(id)
        else {
            return false;
        };
        self.by_expiry.remove(&until);
        self.total_bytes = self.total_bytes.saturating_sub(size);
        self.update_owner(&owner, |share| {
            share.bytes = share.bytes.saturating_sub(size);
            share.by_expiry.remove(&until);
        });
        true
    }

    /// Iterates from a mark.
    pub(super) fn iter_from(&self, mark: u64, now_us: u64) -> impl Iterator<Item = (u64, &JobId)> {
        let live = self.by_expiry.range(mark.max(now_us + 1)..);
        live.map(|(until, id)| (*until, id))
    }

    /// Removes an entry by hand.
    pub(super) fn remove_manually(&mut self, id: &JobId) {
        self.removed_count += u64::from(self.remove(id));
    }

    /// Returns the number of stored entries, and of those that have expired or were evicted.
    pub(super) fn count_retained_and_trimmed(&self, now_us: u64) -> (u64, u64) {
        let kept = self.iter_from(0, now_us).count() as u64;
        (kept, self.inserted_count.saturating_sub(self.removed_count + kept))
    }

    /// Returns true if the totals match the entries.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn is_consistent(&self) -> bool {
        let all = self.entries.values().map(|entry| entry.bytes).sum::<u64>();
        let listed = self.owners.values().map(|share| share.by_expiry.len()).sum::<usize>();
        let mut owned = HashMap::<&str, u64>::new();
        for EndedJobEntry { bytes: size, owner, .. } in self.entries.values() {
            *owned.entry(owner).or_default() += size;
        }
        let (jobs, entries) = (self.by_expiry.len(), self.entries.len());
        (self.total_bytes, jobs, listed) == (all, entries, entries)
            && self.owners.iter().all(|(owner, share)| owned.get(&**owner) == Some(&share.bytes))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_expiry.len()
    }
}
