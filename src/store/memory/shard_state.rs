//! State that the locks of a shard share: counts, indexes, and the shard watch.

use std::{collections::HashMap, sync::Arc};

use super::{
    ended_job_index::{DEFAULT_RETAINED_BYTES, EndedJobIndex, MAX_DEAD_JOBS},
    expiring_map::{ExpiringMap, TimeIndex},
    job_record::JobRecord,
    lock_transaction::LockScopedName,
    memory_shard::ServerTime,
    records_per_owner::RecordsPerOwner,
};
use crate::{
    key::Key,
    store::backend::{JobId, JobState, WebhookJobSpec},
};

/// Maximum number of tombstones of one owner in a shard.
const MAX_OWNER_TOMBSTONES: u64 = 16_384;

/// State that the locks of a shard share.
#[derive(Default)]
pub(super) struct ShardState {
    /// Time at which a worker has to poll a lock with jobs.
    pub(super) due_index: TimeIndex<Key>,
    /// Highest fence given, including spare fences.
    pub(super) highest_fence: u64,
    pub(super) last_seq: u64,
    pub(super) job_count: u64,
    pub(super) job_bytes: u64,
    /// Node of the worker that watches this shard, and the end of the watch.
    watch: Option<(Arc<str>, u64)>,
    /// End of the time in which another worker is expected to take a released watch.
    vacant_until: u64,
    /// Jobs outside of their lock's queue, by the time of their return.
    pub(super) delayed_jobs: TimeIndex<JobId>,
    /// Number and bytes of the delayed jobs of each lock.
    pub(super) delayed_totals: HashMap<Key, (u64, u64)>,
    /// Jobs by deadline.
    pub(super) deadline_index: TimeIndex<JobId>,
    /// Number and bytes of each owner's queued and running jobs.
    pub(super) owner_totals: HashMap<String, (u64, u64)>,
    /// Latest job of each merge group of a lock.
    pub(super) latest_by_group: ExpiringMap<LockScopedName, JobId>,
    /// Tombstones of each owner.
    pub(super) owner_tombstones: RecordsPerOwner<JobId>,
    /// Idempotency records of each owner.
    pub(super) owner_records: RecordsPerOwner<LockScopedName>,
    /// Jobs that requests were merged into, by the id of the merged request.
    pub(super) merged_into: ExpiringMap<JobId, JobId>,
    /// Webhooks of the jobs that this operation has ended, each with the end and the owner. Each
    /// becomes a job when the operation has left its lock.
    pub(super) pending_webhooks: Vec<(WebhookJobSpec, String, String)>,
    /// Done jobs within their retention.
    pub(super) done_jobs: EndedJobIndex,
    /// Dead jobs within their retention.
    pub(super) dead_jobs: EndedJobIndex,
    /// Maximum bytes of `done_jobs`, and of `dead_jobs`, if a layer has set it.
    pub(super) max_retained_bytes: Option<u64>,
    pub(super) expired_count: u64,
    pub(super) cancelled_count: u64,
}

impl ShardState {
    pub(super) fn watching_node(&self, now: ServerTime) -> Option<&Arc<str>> {
        let live = self.watch.as_ref().filter(|(_, end)| now.ms < *end);
        live.map(|(node, _)| node)
    }

    /// Returns true if a worker watches the shard or is about to.
    pub(super) fn has_worker(&self, now: ServerTime) -> bool {
        self.watching_node(now).is_some() || now.ms < self.vacant_until
    }

    /// Returns the end of the watch and the end of the vacancy.
    #[cfg(test)]
    pub(super) fn watch_deadlines(&self) -> [u64; 2] {
        [self.watch.as_ref().map_or(0, |(_, end)| *end), self.vacant_until]
    }

    /// `heartbeat.lua`: renews the watch of this node, or releases it to other workers, which have
    /// until `left` to take it. Returns true if it was renewed, and `None` if the node has no
    /// watch.
    pub(super) fn renew_or_release_watch(
        &mut self,
        node: &str,
        keep: bool,
        (until, left): (u64, Option<u64>),
        now: ServerTime,
    ) -> Option<bool> {
        if self.watching_node(now).is_none_or(|watcher| **watcher != *node) {
            return None;
        }
        self.watch = keep.then(|| (node.into(), until));
        self.vacant_until = left.filter(|_| !keep).unwrap_or_default();
        Some(keep)
    }

    /// Takes the watch if no node has it. Returns true if taken.
    pub(super) fn take_watch_if_vacant(&mut self, node: &str, until: u64, now: ServerTime) -> bool {
        let free = self.watching_node(now).is_none();
        if free {
            self.watch = Some((node.into(), until));
            self.vacant_until = 0;
        }
        free
    }

    pub(super) fn end_watch(&mut self) {
        self.watch = None;
        self.vacant_until = 0;
    }

    /// Adds a job to the counts of the shard and of its owner, if it has one.
    pub(super) fn count_job(&mut self, owner: &str, bytes: u64) {
        self.job_count += 1;
        self.job_bytes += bytes;
        if !owner.is_empty() {
            let (jobs, used) = self.owner_totals.entry(owner.to_owned()).or_default();
            (*jobs, *used) = (*jobs + 1, *used + bytes);
        }
    }

    /// Removes a job from the counts.
    pub(super) fn uncount_job(&mut self, owner: &str, bytes: u64) {
        self.job_count = self.job_count.saturating_sub(1);
        self.job_bytes = self.job_bytes.saturating_sub(bytes);
        if let Some((jobs, used)) = self.owner_totals.get_mut(owner) {
            (*jobs, *used) = (jobs.saturating_sub(1), used.saturating_sub(bytes));
            if *jobs == 0 {
                self.owner_totals.remove(owner);
            }
        }
    }

    /// Counts an ended job, and adds it to its index with the bytes that stay stored. Returns the
    /// jobs that are evicted to make room.
    pub(super) fn index_ended_job(
        &mut self,
        state: JobState,
        (id, owner): (&JobId, &str),
        (until_us, bytes): (u64, u64),
        now: ServerTime,
    ) -> Vec<JobId> {
        let (index, most) = match state {
            JobState::Done => (&mut self.done_jobs, usize::MAX),
            JobState::Dead => (&mut self.dead_jobs, MAX_DEAD_JOBS),
            JobState::Expired => {
                self.expired_count += 1;
                return Vec::new();
            }
            _ => {
                self.cancelled_count += 1;
                return Vec::new();
            }
        };
        index.insert(id, owner, until_us, bytes);
        index.remove_expired(now.us);
        index.evict_excess(
            id,
            owner,
            most,
            self.max_retained_bytes.unwrap_or(DEFAULT_RETAINED_BYTES),
        )
    }

    /// Reduces an ended job to a tombstone for the rest of its retention. Without one, a client
    /// would take the request for one that was never accepted.
    pub(super) fn leave_tombstone(
        &mut self,
        jobs: &mut ExpiringMap<JobId, JobRecord>,
        id: &JobId,
        now: ServerTime,
    ) {
        let end = jobs.expiry_of(id).unwrap_or(0);
        let Some(job) = jobs.get_mut(id, now.ms).filter(|job| !job.state.is_pending()) else {
            return;
        };
        job.reduce_to_tombstone(now);
        let (owner, end) = (job.owner.clone(), end.max(job.duplicate_window_end()));
        jobs.set_expiry(id, Some(end));
        self.owner_tombstones.set(&owner, id, end, now);
        if self.owner_tombstones.count_with_first_expiry(&owner, now).0 <= MAX_OWNER_TOMBSTONES {
            return;
        }
        let Some(first) = self.owner_tombstones.pop_first(&owner, now) else { return };
        let tomb = jobs.get(&first, now.ms).filter(|job| job.is_tombstone);
        match tomb.map(JobRecord::duplicate_window_end) {
            Some(end) if end > now.ms => jobs.set_expiry(&first, Some(end)),
            Some(_) => jobs.remove(&first),
            None => {}
        }
    }

    /// Returns the number of index entries that an operation has to remove.
    #[cfg(test)]
    pub(super) fn index_entry_count(&self) -> usize {
        let jobs = self.delayed_jobs.iter().count()
            + self.delayed_totals.len()
            + self.deadline_index.iter().count();
        self.due_index.iter().count() + jobs + self.owner_totals.len()
    }
}
