//! State that the locks of a shard share: counts, indexes, the shard watch, and tombstones.

use std::{collections::HashMap, sync::Arc};

use super::{
    ended_job_index::{DEFAULT_RETAINED_BYTES, EndedJob, EndedJobIndex, MAX_DEAD_JOBS},
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

/// Number and bytes of some pending jobs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobTotals {
    pub(super) jobs: u64,
    pub(super) bytes: u64,
}

impl JobTotals {
    pub(super) fn add_job(&mut self, bytes: u64) {
        self.jobs += 1;
        self.bytes += bytes;
    }

    pub(super) fn remove_job(&mut self, bytes: u64) {
        self.jobs = self.jobs.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Lease of the worker that polls a shard.
struct ShardWatch {
    node: Arc<str>,
    ends_ms: u64,
}

/// Renewal or release of a worker's watch, as its heartbeat requests it.
pub(super) struct WatchUpdate {
    /// Renews the watch; otherwise it is released.
    pub(super) keeps_watch: bool,
    pub(super) ends_ms: u64,
    /// End of the time in which another worker is expected to take a released watch; `None` if
    /// there is none that could.
    pub(super) vacant_until_ms: Option<u64>,
}

/// Webhook of a job that the current operation has ended.
pub(super) struct PendingWebhook {
    pub(super) spec: WebhookJobSpec,
    /// Description of the end ([`JobRecord::end_event`]).
    pub(super) end_event: String,
    pub(super) owner: String,
}

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
    /// Watch of the worker that polls this shard.
    watch: Option<ShardWatch>,
    /// End of the time in which another worker is expected to take a released watch.
    vacant_until_ms: u64,
    /// Jobs outside of their lock's queue, by the time of their return.
    pub(super) delayed_jobs: TimeIndex<JobId>,
    /// Delayed jobs of each lock.
    pub(super) delayed_totals: HashMap<Key, JobTotals>,
    /// Jobs by deadline.
    pub(super) deadline_index: TimeIndex<JobId>,
    /// Queued and running jobs of each owner.
    pub(super) owner_totals: HashMap<String, JobTotals>,
    /// Latest job of each merge group of a lock.
    pub(super) latest_by_group: ExpiringMap<LockScopedName, JobId>,
    /// Tombstones of each owner.
    pub(super) owner_tombstones: RecordsPerOwner<JobId>,
    /// Idempotency records of each owner.
    pub(super) owner_records: RecordsPerOwner<LockScopedName>,
    /// Jobs that requests were merged into, by the id of the merged request.
    pub(super) merged_into: ExpiringMap<JobId, JobId>,
    /// Webhooks of the jobs that this operation has ended. Each becomes a job when the operation
    /// has left its lock.
    pub(super) pending_webhooks: Vec<PendingWebhook>,
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
        let current_watch = self.watch.as_ref().filter(|watch| now.ms < watch.ends_ms);
        current_watch.map(|watch| &watch.node)
    }

    /// Returns true if a worker watches the shard or is about to.
    pub(super) fn has_worker(&self, now: ServerTime) -> bool {
        self.watching_node(now).is_some() || now.ms < self.vacant_until_ms
    }

    /// Returns the end of the watch and the end of the vacancy.
    #[cfg(test)]
    pub(super) fn watch_deadlines(&self) -> [u64; 2] {
        [self.watch.as_ref().map_or(0, |watch| watch.ends_ms), self.vacant_until_ms]
    }

    /// `heartbeat_and_shard_assignment.lua`: renews the watch of this node, or releases it to other
    /// workers. Returns true if it was renewed, and `None` if the node has no watch.
    pub(super) fn renew_or_release_watch(
        &mut self,
        node: &str,
        update: &WatchUpdate,
        now: ServerTime,
    ) -> Option<bool> {
        if self.watching_node(now).is_none_or(|watcher| **watcher != *node) {
            return None;
        }
        let keeps_watch = update.keeps_watch;
        self.watch = keeps_watch.then(|| ShardWatch { node: node.into(), ends_ms: update.ends_ms });
        self.vacant_until_ms = update.vacant_until_ms.filter(|_| !keeps_watch).unwrap_or_default();
        Some(keeps_watch)
    }

    /// Takes the watch if no node has it. Returns true if taken.
    pub(super) fn take_watch_if_vacant(
        &mut self,
        node: &str,
        ends_ms: u64,
        now: ServerTime,
    ) -> bool {
        let is_vacant = self.watching_node(now).is_none();
        if is_vacant {
            self.watch = Some(ShardWatch { node: node.into(), ends_ms });
            self.vacant_until_ms = 0;
        }
        is_vacant
    }

    pub(super) fn end_watch(&mut self) {
        self.watch = None;
        self.vacant_until_ms = 0;
    }

    /// Adds a job to the counts of the shard and of its owner, if it has one.
    pub(super) fn count_job(&mut self, owner: &str, bytes: u64) {
        self.job_count += 1;
        self.job_bytes += bytes;
        if !owner.is_empty() {
            self.owner_totals.entry(owner.to_owned()).or_default().add_job(bytes);
        }
    }

    /// Removes a job from the counts.
    pub(super) fn uncount_job(&mut self, owner: &str, bytes: u64) {
        self.job_count = self.job_count.saturating_sub(1);
        self.job_bytes = self.job_bytes.saturating_sub(bytes);
        if let Some(totals) = self.owner_totals.get_mut(owner) {
            totals.remove_job(bytes);
            if totals.jobs == 0 {
                self.owner_totals.remove(owner);
            }
        }
    }

    /// Counts an ended job, and adds it to its index. Returns the jobs that are evicted for it.
    pub(super) fn index_ended_job(
        &mut self,
        state: JobState,
        job: &EndedJob<'_>,
        now: ServerTime,
    ) -> Vec<JobId> {
        let (index, max_jobs) = match state {
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
        index.insert(job);
        index.remove_expired(now.us);
        index.evict_excess(
            job.id,
            job.owner,
            max_jobs,
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
        let expires_ms = jobs.expiry_of(id).unwrap_or(0);
        let Some(job) = jobs.get_mut(id, now.ms).filter(|job| !job.state.is_pending()) else {
            return;
        };
        job.reduce_to_tombstone(now);
        let (owner, expires_ms) = (job.owner.clone(), expires_ms.max(job.duplicate_window_end()));
        jobs.set_expiry(id, Some(expires_ms));
        self.owner_tombstones.set(&owner, id, expires_ms, now);
        if self.owner_tombstones.count_live(&owner, now).count <= MAX_OWNER_TOMBSTONES {
            return;
        }
        let Some(first_expiring) = self.owner_tombstones.pop_first(&owner, now) else { return };
        let tombstone = jobs.get(&first_expiring, now.ms).filter(|job| job.is_tombstone);
        match tombstone.map(JobRecord::duplicate_window_end) {
            Some(window_end_ms) if window_end_ms > now.ms => {
                jobs.set_expiry(&first_expiring, Some(window_end_ms));
            }
            Some(_) => jobs.remove(&first_expiring),
            None => {}
        }
    }

    /// Returns the number of index entries that an operation has to remove.
    #[cfg(test)]
    pub(super) fn index_entry_count(&self) -> usize {
        let job_entries = self.delayed_jobs.iter().count()
            + self.delayed_totals.len()
            + self.deadline_index.iter().count();
        self.due_index.iter().count() + job_entries + self.owner_totals.len()
    }
}
