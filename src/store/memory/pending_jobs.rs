//! Pending jobs: `job_common.lua` of the embedded store, with `cancel_job.lua` and the job part of
//! `poll_due.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{
    expiring_map::TimeIndex, job_record::JobRecord, lock_state::HolderEntry,
    lock_transaction::LockTransaction, shard_state::ShardState,
};
use crate::store::{
    backend::{Contenders, JobId, JobState, WebhookJobSpec},
    wakeups::WakeupMessage,
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
        let first = index.iter().next().map(|(first, _)| first);
        index.set(id, at);
        let sooner = first.is_none_or(|first| at < first);
        if let Some(node) = self.shard.watching_node(self.now).filter(|_| sooner).cloned() {
            self.send_wakeup(&node, WakeupMessage::ShardDue(self.key.shard()));
        }
    }

    /// Moves a job outside of its lock's queue until a time. The caller removes its state in the
    /// queue.
    pub(super) fn delay_job(&mut self, id: &JobId, at: u64, bytes: u64) {
        self.schedule_job(at, |facts| &mut facts.delayed_jobs, id);
        let (jobs, used) = self.shard.delayed_totals.entry(self.key.clone()).or_default();
        (*jobs, *used) = (*jobs + 1, *used + bytes);
    }

    /// Removes a job from the delayed jobs, if it is one.
    fn remove_delayed_job(&mut self, id: &JobId, bytes: u64) {
        if self.shard.delayed_jobs.get(id).is_none() {
            return;
        }
        self.shard.delayed_jobs.remove(id);
        if let Some((jobs, used)) = self.shard.delayed_totals.get_mut(self.key) {
            (*jobs, *used) = (jobs.saturating_sub(1), used.saturating_sub(bytes));
            if *jobs == 0 {
                self.shard.delayed_totals.remove(self.key);
            }
        }
    }

    /// Inserts a job into the queue at its sequence. A free lock is offered to the queue head.
    pub(super) fn insert_into_queue(&mut self, seq: u64, id: &JobId, bytes: u64) {
        self.lock.job_bytes += bytes;
        self.lock.jobs.insert((seq, id.clone()));
        match self.expire_holders() {
            Some(last) => {
                self.announce_join(Contenders::from_job(seq));
                if self.shard.due_index.get(self.key).is_none() {
                    self.schedule(last);
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

    /// Schedules the webhook of an ended job, also once more if it is redriven and ends again.
    pub(super) fn schedule_webhook(&mut self, id: &JobId, may_be_put_back: bool) {
        let kept = self.jobs.expiry_of(id);
        self.extend_job_records(id, kept.unwrap_or(0));
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else {
            return;
        };
        let call = if may_be_put_back { job.webhook.clone() } else { job.webhook.take() };
        if let Some(call) = call {
            self.shard.pending_webhooks.push((call, job.end_event(), job.owner.clone()));
        }
    }

    /// Enqueues a webhook job. If it is pending already, it reports the latest end, with all its
    /// attempts left.
    pub(super) fn enqueue_webhook(&mut self, call: WebhookJobSpec, end: String, owner: String) {
        let WebhookJobSpec { id, envelope, max_attempts, .. } = call;
        let waits = self.jobs.get_mut(&id, self.now.ms).filter(|job| job.state.is_pending());
        if let Some(job) = waits {
            (job.webhook_event, job.attempts) = (Some(end), 0);
            return;
        }
        self.shard.done_jobs.remove_manually(&id);
        self.shard.dead_jobs.remove_manually(&id);
        let (seq, bytes) = (self.next_seq(), envelope.len() as u64);
        let (tells, again) = (Some(end), true);
        let job = JobRecord::new(self.key, self.now);
        // Counts against the owner of the request, which chose the receiver: its webhooks must not
        // fill the queue for others.
        self.shard.count_job(&owner, bytes);
        let job = JobRecord {
            seq,
            bytes,
            envelope,
            max_attempts,
            retry_after_crash: again,
            webhook_event: tells,
            owner,
            ..job
        };
        self.jobs.insert(&id, job, None);
        self.insert_into_queue(seq, &id, bytes);
    }

    /// Ends a pending job, with a new reason if there is one.
    pub(super) fn end_pending_job(
        &mut self,
        id: &JobId,
        state: JobState,
        reason: &'static str,
        kept: Duration,
        by: Option<JobId>,
    ) {
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else {
            return;
        };
        job.set_ended(state, if reason.is_empty() { job.reason } else { reason }, self.now.us);
        job.superseded_by = by;
        job.envelope = Bytes::new();
        let (seq, bytes) = (job.seq, job.bytes);
        self.jobs.set_expiry(id, Some(self.now.deadline_after(kept)));
        self.shard.index_ended_job(state, (id, ""), (0, 0), self.now);
        self.lock.remove_holder(&HolderEntry::JobOffer(id.clone()));
        self.remove_pending_job(seq, id, bytes);
        self.offer_next();
        self.schedule_webhook(id, false);
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

    /// Returns a delayed job to its queue.
    pub(super) fn requeue_delayed_job(&mut self, id: &JobId) {
        let now = self.now.ms;
        let Some(job) = self.jobs.get(id, now) else {
            return self.shard.delayed_jobs.remove(id);
        };
        let (seq, bytes, exp) = (job.seq, job.bytes, job.deadline_ms);
        if job.state != JobState::Queued {
            return self.remove_delayed_job(id, bytes);
        }
        if exp.is_some_and(|exp| exp <= now) {
            return self.expire_job(id);
        }
        self.remove_delayed_job(id, bytes);
        // An offer to the former first job is unclaimed, so it can be withdrawn.
        if let Some((other, first)) = self.lock.first_job().cloned()
            && seq < other
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
