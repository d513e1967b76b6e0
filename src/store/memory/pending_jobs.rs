//! What `jobs.lua` is on Redis, with `cancel.lua` and what `due.lua` does to jobs.

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

/// How long it is known of a job that it was superseded, or that its time was over.
pub(super) const DROPPED_JOB_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

impl LockTransaction<'_> {
    /// Sets when the watcher has to see to a job that is in one of the shard's indexes, and tells it if it must
    /// wake sooner for that.
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

    /// Puts a job outside of its line until a time. What is kept of it in the line is the caller's.
    pub(super) fn delay_job(&mut self, id: &JobId, at: u64, bytes: u64) {
        self.schedule_job(at, |facts| &mut facts.delayed_jobs, id);
        let (jobs, used) = self.shard.delayed_totals.entry(self.key.clone()).or_default();
        (*jobs, *used) = (*jobs + 1, *used + bytes);
    }

    /// Takes a job out of those that wait outside, if it is one of them.
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

    /// Puts a job into the line at its sequence. If the lock is free, it is offered to whoever is first now.
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

    /// A job has left the line: what was kept for it goes.
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

    /// Takes a job out of the line, or out of those that are late, for good. The job itself keeps what the
    /// status tells.
    pub(super) fn remove_pending_job(&mut self, seq: u64, id: &JobId, bytes: u64) {
        self.shard.deadline_index.remove(id);
        self.uncount_job(id, bytes);
        if !self.lock.jobs.remove(&(seq, id.clone())) {
            return self.remove_delayed_job(id, bytes);
        }
        self.clean_up_after_dequeue(id, bytes);
        // It may have been its backoff that the lock is due at the end of.
        if !self.lock.jobs.is_empty() {
            self.shard.due_index.set(self.key, self.now.ms);
        }
    }

    /// A job has ended: who is told of it is, also once more if it was put back and ends again.
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

    /// A call becomes a job, unless it is one already: then it tells of the last end, with all attempts to come.
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
        // It counts as the request did: who says whom to call is not to fill the queue for the others.
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

    /// Ends a job that waits, for a reason if there is one.
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

    /// Ends a job that waits past its deadline.
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

    /// A late job is in time again.
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
        // An offer to the job that was first is nobody's yet.
        if let Some((other, first)) = self.lock.first_job().cloned()
            && seq < other
        {
            self.lock.remove_holder(&HolderEntry::JobOffer(first));
        }
        self.insert_into_queue(seq, id, bytes);
    }

    /// A job's deadline has passed. One that runs is left: if it has to run again, that is looked at then.
    pub(super) fn expire_if_queued(&mut self, id: &JobId) {
        self.shard.deadline_index.remove(id);
        let job = self.jobs.get(id, self.now.ms);
        if job.is_some_and(|job| job.state == JobState::Queued) {
            self.expire_job(id);
        }
    }
}
