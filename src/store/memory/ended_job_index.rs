//! Indexes of ended jobs, done and dead, with their totals (`ended_job_bookkeeping.lua`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::store::backend::{ENDED_JOB_OVERHEAD, JobId};

/// Maximum number of dead jobs in a shard.
pub(super) const MAX_DEAD_JOBS: usize = 10_000;

/// Default limit of the bytes of done jobs in a shard, and of dead ones; a layer may set another.
pub(super) const DEFAULT_RETAINED_BYTES: u64 = 16 << 20;

/// Maximum number of jobs that one operation evicts for another one.
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

/// Ended job that is added to an index.
pub(super) struct EndedJob<'a> {
    pub(super) id: &'a JobId,
    /// Empty for the common owner.
    pub(super) owner: &'a str,
    pub(super) expires_us: u64,
    /// Bytes that stay stored.
    pub(super) bytes: u64,
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
    pub(super) fn insert(&mut self, job: &EndedJob<'_>) {
        let EndedJob { id, owner, mut expires_us, bytes } = *job;
        self.remove(id);
        // Entries of one moment keep their order, even if one of them was removed.
        if self.last_expiry_us.checked_sub(expires_us).is_some_and(|lead_us| lead_us < 1000) {
            expires_us = self.last_expiry_us + 1;
        }
        while self.by_expiry.contains_key(&expires_us) {
            expires_us += 1;
        }
        self.last_expiry_us = expires_us;
        let (bytes, owner) = (ENDED_JOB_OVERHEAD + bytes, owner.to_owned());
        self.by_expiry.insert(expires_us, id.clone());
        self.update_owner(&owner, |usage| {
            usage.bytes += bytes;
            usage.by_expiry.insert(expires_us, id.clone());
        });
        self.entries.insert(id.clone(), EndedJobEntry { expires_us, bytes, owner });
        self.total_bytes += bytes;
        self.inserted_count += 1;
    }

    fn update_owner(&mut self, owner: &str, change: impl FnOnce(&mut OwnerUsage)) {
        let usage = self.owners.entry(owner.to_owned()).or_default();
        let bytes_before = usage.bytes;
        change(usage);
        let (bytes_after, is_unused) = (usage.bytes, usage.by_expiry.is_empty());
        if !owner.is_empty() {
            self.owners_by_bytes.remove(&(bytes_before, owner.to_owned()));
            if !is_unused {
                self.owners_by_bytes.insert((bytes_after, owner.to_owned()));
            }
        }
        if is_unused {
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

    /// Evicts jobs until at most `max_jobs` jobs and `max_bytes` bytes are left, within
    /// `MAX_EVICTIONS_PER_STEP`. The newest job, of this owner, always stays.
    pub(super) fn evict_excess(
        &mut self,
        newest: &JobId,
        owner: &str,
        max_jobs: usize,
        max_bytes: u64,
    ) -> Vec<JobId> {
        let mut evicted = Vec::new();
        let mut evict = |ended: &mut Self, max_bytes: u64| {
            let id = ended.choose_eviction(newest, owner, max_bytes)?;
            ended.remove(&id);
            evicted.push(id);
            Some(())
        };
        if self.by_expiry.len() > max_jobs {
            evict(self, self.total_bytes);
        }
        for _ in 0..MAX_EVICTIONS_PER_STEP {
            if self.total_bytes <= max_bytes || evict(self, max_bytes).is_none() {
                break;
            }
        }
        evicted
    }

    /// Returns the job to evict for the newest, which stays: the first one of the chosen owner, or
    /// the first of all if that owner has no other.
    fn choose_eviction(&self, newest: &JobId, owner: &str, max_bytes: u64) -> Option<JobId> {
        let largest = self.owners.get(self.owner_to_evict_from(owner, max_bytes));
        let ids_of_largest = largest.into_iter().flat_map(|usage| usage.by_expiry.values());
        let mut candidates = ids_of_largest.take(2).chain(self.by_expiry.values().take(2));
        candidates.find(|id| *id != newest).cloned()
    }

    /// Returns the owner to evict from: the owner of the newest if it has more than an equal share
    /// of `max_bytes`, else the one with the most bytes. So no owner evicts other owners' jobs with
    /// its own.
    fn owner_to_evict_from<'a>(&'a self, owner: &'a str, max_bytes: u64) -> &'a str {
        let bytes = |owner: &str| self.owners.get(owner).map_or(0, |usage| usage.bytes);
        if bytes(owner).saturating_mul(self.owners.len() as u64) > max_bytes {
            return owner;
        }
        match self.owners_by_bytes.last() {
            Some((largest_bytes, largest)) if *largest_bytes > bytes("") => largest,
            _ => "",
        }
    }

    fn remove(&mut self, id: &JobId) -> bool {
        let Some(EndedJobEntry { expires_us, bytes, owner }) = self.entries.remove(id) else {
            return false;
        };
        self.by_expiry.remove(&expires_us);
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
        self.update_owner(&owner, |usage| {
            usage.bytes = usage.bytes.saturating_sub(bytes);
            usage.by_expiry.remove(&expires_us);
        });
        true
    }

    /// Iterates over entries from an expiry on that have not expired.
    pub(super) fn iter_from(
        &self,
        from_us: u64,
        now_us: u64,
    ) -> impl Iterator<Item = (u64, &JobId)> {
        let live = self.by_expiry.range(from_us.max(now_us + 1)..);
        live.map(|(expires_us, id)| (*expires_us, id))
    }

    /// Removes an entry by hand.
    pub(super) fn remove_manually(&mut self, id: &JobId) {
        self.removed_count += u64::from(self.remove(id));
    }

    /// Returns the number of stored entries, and of those that have expired or were evicted.
    pub(super) fn count_retained_and_trimmed(&self, now_us: u64) -> (u64, u64) {
        let retained = self.iter_from(0, now_us).count() as u64;
        (retained, self.inserted_count.saturating_sub(self.removed_count + retained))
    }

    /// Returns true if the totals match the entries.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn is_consistent(&self) -> bool {
        let entry_bytes = self.entries.values().map(|entry| entry.bytes).sum::<u64>();
        let owned_jobs = self.owners.values().map(|usage| usage.by_expiry.len()).sum::<usize>();
        let mut bytes_by_owner = HashMap::<&str, u64>::new();
        for EndedJobEntry { bytes, owner, .. } in self.entries.values() {
            *bytes_by_owner.entry(owner).or_default() += bytes;
        }
        let (jobs, entries) = (self.by_expiry.len(), self.entries.len());
        (self.total_bytes, jobs, owned_jobs) == (entry_bytes, entries, entries)
            && self
                .owners
                .iter()
                .all(|(owner, usage)| bytes_by_owner.get(&**owner) == Some(&usage.bytes))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_expiry.len()
    }
}
