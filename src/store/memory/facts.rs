//! What the lines of a shard share: its counts, its indexes and its watch.

use std::{collections::HashMap, sync::Arc};

use super::{
    ended::{DEAD, Ended, KEEP},
    ends::{Expiring, Index},
    job::Job,
    owned::Owned,
    shard::Now,
    visit::RecordName,
};
use crate::{
    key::Key,
    store::backend::{WebhookJobSpec, JobId, JobState},
};

/// Most tombstones of one owner in a shard.
const TOMBS: u64 = 16_384;

/// What the lines of a shard share.
#[derive(Default)]
pub(super) struct Facts {
    /// When a worker should look at a lock that has jobs.
    pub(super) due: Index<Key>,
    /// The highest fence given, with the spare ones.
    pub(super) fence: u64,
    pub(super) seq: u64,
    pub(super) jobs: u64,
    pub(super) bytes: u64,
    /// The node whose worker watches this shard, and until when.
    watch: Option<(Arc<str>, u64)>,
    /// Left to the other workers, one of which will have taken it by then.
    left: u64,
    /// Jobs that wait outside of any line, and when they come back.
    pub(super) late: Index<JobId>,
    /// Number and bytes of those, of each lock that has any.
    pub(super) lates: HashMap<Key, (u64, u64)>,
    /// Jobs that have a deadline.
    pub(super) exp: Index<JobId>,
    /// Number and bytes of the jobs of each owner that wait or run.
    pub(super) owned: HashMap<String, (u64, u64)>,
    /// The latest job of each group of a lock.
    pub(super) groups: Expiring<RecordName, JobId>,
    /// Tombstones, and idempotency records, of each owner.
    pub(super) tombs: Owned<JobId>,
    pub(super) records: Owned<RecordName>,
    /// What requests were merged into.
    pub(super) merged: Expiring<JobId, JobId>,
    /// Calls about jobs that this step has ended; each becomes a job when the step has left its line.
    pub(super) calls: Vec<(WebhookJobSpec, String, String)>,
    /// Ended jobs that are kept.
    pub(super) done: Ended,
    pub(super) dead: Ended,
    /// Most bytes of each, if a layer has said it.
    pub(super) keep: Option<u64>,
    pub(super) expired: u64,
    pub(super) cancelled: u64,
}

impl Facts {
    pub(super) fn watcher(&self, now: Now) -> Option<&Arc<str>> {
        let live = self.watch.as_ref().filter(|(_, end)| now.ms < *end);
        live.map(|(node, _)| node)
    }

    /// Whether a worker watches the shard, or is about to.
    pub(super) fn is_manned(&self, now: Now) -> bool {
        self.watcher(now).is_some() || now.ms < self.left
    }

    /// When its watch ends, and until when it is left to others.
    #[cfg(test)]
    pub(super) fn watch_ends(&self) -> [u64; 2] {
        [self.watch.as_ref().map_or(0, |(_, end)| *end), self.left]
    }

    /// `beat.lua`: keeps the watch of this node, or gives it up, to those who have until `left` to take it;
    /// `None` if it has none. True if kept.
    pub(super) fn keep_watch(
        &mut self,
        node: &str,
        keep: bool,
        (until, left): (u64, Option<u64>),
        now: Now,
    ) -> Option<bool> {
        if self.watcher(now).is_none_or(|watcher| **watcher != *node) {
            return None;
        }
        self.watch = keep.then(|| (node.into(), until));
        self.left = left.filter(|_| !keep).unwrap_or_default();
        Some(keep)
    }

    /// Takes a watch that nobody has. True if taken.
    pub(super) fn take_watch(&mut self, node: &str, until: u64, now: Now) -> bool {
        let free = self.watcher(now).is_none();
        if free {
            self.watch = Some((node.into(), until));
            self.left = 0;
        }
        free
    }

    pub(super) fn end_watch(&mut self) {
        self.watch = None;
        self.left = 0;
    }

    /// One job more of the shard, and of its owner if it has one.
    pub(super) fn count(&mut self, owner: &str, bytes: u64) {
        self.jobs += 1;
        self.bytes += bytes;
        if !owner.is_empty() {
            let (jobs, used) = self.owned.entry(owner.to_owned()).or_default();
            (*jobs, *used) = (*jobs + 1, *used + bytes);
        }
    }

    /// One job less.
    pub(super) fn uncount(&mut self, owner: &str, bytes: u64) {
        self.jobs = self.jobs.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some((jobs, used)) = self.owned.get_mut(owner) {
            (*jobs, *used) = (jobs.saturating_sub(1), used.saturating_sub(bytes));
            if *jobs == 0 {
                self.owned.remove(owner);
            }
        }
    }

    /// Counts a job that has ended, and puts it into its index, with the bytes that are kept of it. Returns those
    /// that are evicted for it.
    pub(super) fn ended(
        &mut self,
        state: JobState,
        (id, owner): (&JobId, &str),
        (until_us, bytes): (u64, u64),
        now: Now,
    ) -> Vec<JobId> {
        let (index, most) = match state {
            JobState::Done => (&mut self.done, usize::MAX),
            JobState::Dead => (&mut self.dead, DEAD),
            JobState::Expired => {
                self.expired += 1;
                return Vec::new();
            }
            _ => {
                self.cancelled += 1;
                return Vec::new();
            }
        };
        index.file(id, owner, until_us, bytes);
        index.trim(now.us);
        index.shed(id, owner, most, self.keep.unwrap_or(KEEP))
    }

    /// Leaves a tombstone of an ended job, for the rest of its time: a client that finds nothing would take the request for
    /// one that was never accepted.
    pub(super) fn entomb(&mut self, jobs: &mut Expiring<JobId, Job>, id: &JobId, now: Now) {
        let end = jobs.end_of(id).unwrap_or(0);
        let Some(job) = jobs.get_mut(id, now.ms).filter(|job| !job.state.is_pending()) else {
            return;
        };
        job.entomb(now);
        let (owner, end) = (job.owner.clone(), end.max(job.known_until()));
        jobs.end_at(id, Some(end));
        self.tombs.set(&owner, id, end, now);
        if self.tombs.count(&owner, now).0 <= TOMBS {
            return;
        }
        let Some(first) = self.tombs.pop(&owner, now) else { return };
        let tomb = jobs.get(&first, now.ms).filter(|job| job.gone);
        match tomb.map(Job::known_until) {
            Some(end) if end > now.ms => jobs.end_at(&first, Some(end)),
            Some(_) => jobs.remove(&first),
            None => {}
        }
    }

    /// Entries that somebody has to take out.
    #[cfg(test)]
    pub(super) fn indexed(&self) -> usize {
        let jobs = self.late.iter().count() + self.lates.len() + self.exp.iter().count();
        self.due.iter().count() + jobs + self.owned.len()
    }
}
