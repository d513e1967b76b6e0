//! Transitions of pending jobs: into and out of their queue, the delayed jobs and the index of
//! deadlines, and to their end (cancelled, superseded, expired).
//!
//! `pending_job_bookkeeping.lua` of the embedded store, with `cancel_job.lua`, `end_job_delay.lua`
//! and the job part of `poll_due_locks_and_jobs.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{
    ended_job_index::EndedJob, expiring_map::TimeIndex, lock_holders_and_queue::HolderEntry,
    lock_transaction::LockTransaction, shard_state::ShardState,
};
use crate::{
    durations::ceil_millis,
    store::{
        backend::{Contenders, JobId, JobState},
        wakeup_message::WakeupMessage,
    },
};

/// Retention of a superseded or expired job.
pub(super) const DROPPED_JOB_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

impl LockTransaction<'_> {
    /// Adds a job to one of the shard's time indexes, and wakes the watching node if it is the
    /// earliest entry.
    pub(super) fn schedule_job(
        &mut self,
        at: u64,
        index: impl FnOnce(&mut ShardState) -> &mut TimeIndex<JobId>,
        id: &JobId,
    ) {
        let index = index(self.shard);
        let old_earliest = index.iter().next().map(|(earliest, _)| earliest);
        index.set(id, at);
        let is_earliest = old_earliest.is_none_or(|earliest| at < earliest);
        if let Some(node) = self.shard.watching_node(self.now).filter(|_| is_earliest).cloned() {
            self.send_wakeup(&node, WakeupMessage::ShardDue(self.key.shard()));
        }
    }

    /// Moves a job outside of its lock's queue until a time. The caller removes its state in the
    /// queue.
    pub(super) fn delay_job(&mut self, id: &JobId, at: u64, bytes: u64) {
        self.schedule_job(at, |state| &mut state.delayed_jobs, id);
        self.shard.delayed_totals.entry(self.key.clone()).or_default().add_job(bytes);
    }

    /// Removes a job from the delayed jobs, if it is one.
    fn remove_delayed_job(&mut self, id: &JobId, bytes: u64) {
        if self.shard.delayed_jobs.get(id).is_none() {
            return;
        }
        self.shard.delayed_jobs.remove(id);
        if let Some(totals) = self.shard.delayed_totals.get_mut(self.key) {
            totals.remove_job(bytes);
            if totals.jobs == 0 {
                self.shard.delayed_totals.remove(self.key);
            }
        }
    }

    /// Inserts a job into the queue at its sequence. A free lock is offered to the queue head.
    pub(super) fn insert_into_queue(&mut self, seq: u64, id: &JobId, bytes: u64) {
        self.lock.job_bytes += bytes;
        self.lock.jobs.insert((seq, id.clone()));
        match self.expire_holders() {
            Some(held_until) => {
                self.announce_join(Contenders::from_job(seq));
                if self.shard.due_index.get(self.key).is_none() {
                    self.schedule(held_until);
                }
            }
            None => self.offer_next(),
        }
    }

    /// Cleans up the queue's state of a job that has left it.
    pub(super) fn clean_up_after_dequeue(&mut self, id: &JobId, bytes: u64) {
        if self.lock.jobs.is_empty() {
            self.shard.due_index.remove(self.key);
            (self.lock.job_offer_deadline, self.lock.job_bytes) = (None, 0);
            self.lock.backoffs.clear();
            return;
        }
        self.lock.job_bytes = self.lock.job_bytes.saturating_sub(bytes);
        self.lock.backoffs.remove(id);
    }

    pub(super) fn uncount_job(&mut self, id: &JobId, bytes: u64) {
        let owner = self.jobs.get(id, self.now.ms).map_or("", |job| &job.owner);
        self.shard.uncount_job(owner, bytes);
    }

    /// Removes a job from the queue or from the delayed jobs, for good. The job itself keeps the
    /// data of its status.
    pub(super) fn remove_pending_job(&mut self, seq: u64, id: &JobId, bytes: u64) {
        self.shard.deadline_index.remove(id);
        self.uncount_job(id, bytes);
        if !self.lock.jobs.remove(&(seq, id.clone())) {
            return self.remove_delayed_job(id, bytes);
        }
        self.clean_up_after_dequeue(id, bytes);
        // The lock may be due at the end of this job's backoff.
        if !self.lock.jobs.is_empty() {
            self.shard.due_index.set(self.key, self.now.ms);
        }
    }

    /// Ends a pending job, with a new reason if there is one.
    pub(super) fn end_pending_job(
        &mut self,
        id: &JobId,
        state: JobState,
        reason: &'static str,
        retention: Duration,
        superseded_by: Option<JobId>,
    ) {
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else {
            return;
        };
        job.set_ended(state, if reason.is_empty() { job.reason } else { reason }, self.now.us);
        job.superseded_by = superseded_by;
        job.envelope = Bytes::new();
        let (seq, bytes) = (job.seq, job.bytes);
        self.jobs.set_expiry(id, Some(self.now.deadline_after(retention)));
        let ended = EndedJob { id, owner: "", expires_us: 0, bytes: 0 };
        self.shard.index_ended_job(state, &ended, self.now);
        self.lock.remove_holder(&HolderEntry::JobOffer(id.clone()));
        self.remove_pending_job(seq, id, bytes);
        self.offer_next();
        self.schedule_webhook(id, false);
        self.publish_job_change(id);
    }

    /// Removes a job that has ended with its last run, or instead of a run, from the queue for
    /// good. The callers schedule the next jobs of the queue.
    pub(super) fn finish_job(
        &mut self,
        seq: u64,
        id: &JobId,
        bytes: u64,
        state: JobState,
        expires_ms: u64,
    ) {
        self.jobs.set_expiry(id, Some(expires_ms));
        self.shard.deadline_index.remove(id);
        self.uncount_job(id, bytes);
        let retention = Duration::from_millis(expires_ms - self.now.ms);
        let expires_us = self.now.us + 1000 * ceil_millis(retention);
        let job = self.jobs.get(id, self.now.ms);
        let response = job.and_then(|job| job.response.as_ref());
        let stored_bytes = response.map_or(bytes, |response| response.len() as u64);
        let owner = job.map_or("", |job| &job.owner);
        let ended = EndedJob { id, owner, expires_us, bytes: stored_bytes };
        for evicted in self.shard.index_ended_job(state, &ended, self.now) {
            self.shard.leave_tombstone(self.jobs, &evicted, self.now);
        }
        self.lock.jobs.remove(&(seq, id.clone()));
        self.clean_up_after_dequeue(id, bytes);
        self.schedule_webhook(id, state == JobState::Dead);
        self.publish_job_change(id);
    }

    /// Ends a pending job past its deadline.
    pub(super) fn expire_job(&mut self, id: &JobId) {
        self.end_pending_job(id, JobState::Expired, "deadline", DROPPED_JOB_RETENTION, None);
    }

    pub(super) fn cancel_job(
        &mut self,
        id: &JobId,
        began_us: u64,
        retention: Duration,
    ) -> Option<JobState> {
        let job = self.jobs.get(id, self.now.ms)?;
        if job.state != JobState::Queued || job.started_us != began_us {
            return Some(job.state);
        }
        self.end_pending_job(id, JobState::Cancelled, "", retention, None);
        Some(JobState::Cancelled)
    }

    pub(super) fn end_job_delay(&mut self, id: &JobId, began_us: u64) -> Option<JobState> {
        let job = self.jobs.get(id, self.now.ms)?;
        if job.state != JobState::Queued || job.started_us != began_us {
            return Some(job.state);
        }
        let now_ms = self.now.ms;
        if let Some(due_ms) = self.shard.delayed_jobs.get(id) {
            if due_ms > now_ms {
                self.schedule_job(now_ms, |state| &mut state.delayed_jobs, id);
            }
        } else if self.backoff_end(id).is_some() {
            self.lock.backoffs.remove(id);
            // The lock may be due at the end of the backoff only.
            match self.expire_holders() {
                Some(held_until) => self.schedule_no_later(held_until),
                None => self.offer_next(),
            }
        }
        Some(JobState::Queued)
    }

    /// Returns a delayed job to its queue.
    pub(super) fn requeue_delayed_job(&mut self, id: &JobId) {
        let now = self.now.ms;
        let Some(job) = self.jobs.get(id, now) else {
            return self.shard.delayed_jobs.remove(id);
        };
        let (seq, bytes, deadline_ms) = (job.seq, job.bytes, job.deadline_ms);
        if job.state != JobState::Queued {
            return self.remove_delayed_job(id, bytes);
        }
        if deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now) {
            return self.expire_job(id);
        }
        self.remove_delayed_job(id, bytes);
        // An offer to the former first job is unclaimed, so it can be withdrawn.
        if let Some((first_seq, first)) = self.lock.first_job().cloned()
            && seq < first_seq
        {
            self.lock.remove_holder(&HolderEntry::JobOffer(first));
        }
        self.insert_into_queue(seq, id, bytes);
    }

    /// Handles the deadline of a job. A running job continues; the deadline is checked again if it
    /// has to run again.
    pub(super) fn expire_if_queued(&mut self, id: &JobId) {
        self.shard.deadline_index.remove(id);
        let job = self.jobs.get(id, self.now.ms);
        if job.is_some_and(|job| job.state == JobState::Queued) {
            self.expire_job(id);
        }
    }
}
