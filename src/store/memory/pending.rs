//! What `jobs.lua` is on Redis, with `cancel.lua` and what `due.lua` does to jobs.

use std::time::Duration;

use bytes::Bytes;

use super::{ends::Index, facts::Facts, job::Job, line::Member, visit::Visit};
use crate::store::{
    backend::{WebhookJobSpec, JobId, JobState, Contenders},
    wakeups::WakeupMessage,
};

/// How long it is known of a job that it was superseded, or that its time was over.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

impl Visit<'_> {
    /// Sets when the watcher has to see to a job that is in one of the shard's indexes, and tells it if it must
    /// wake sooner for that.
    pub(super) fn remind(
        &mut self,
        at: u64,
        index: impl FnOnce(&mut Facts) -> &mut Index<JobId>,
        id: &JobId,
    ) {
        let index = index(self.facts);
        let first = index.iter().next().map(|(first, _)| first);
        index.set(id, at);
        let sooner = first.is_none_or(|first| at < first);
        if let Some(node) = self.facts.watcher(self.now).filter(|_| sooner).cloned() {
            self.tell(&node, WakeupMessage::ShardDue(self.key.shard()));
        }
    }

    /// Puts a job outside of its line until a time. What is kept of it in the line is the caller's.
    pub(super) fn put_late(&mut self, id: &JobId, at: u64, bytes: u64) {
        self.remind(at, |facts| &mut facts.late, id);
        let (jobs, used) = self.facts.lates.entry(self.key.clone()).or_default();
        (*jobs, *used) = (*jobs + 1, *used + bytes);
    }

    /// Takes a job out of those that wait outside, if it is one of them.
    fn take_late(&mut self, id: &JobId, bytes: u64) {
        if self.facts.late.get(id).is_none() {
            return;
        }
        self.facts.late.remove(id);
        if let Some((jobs, used)) = self.facts.lates.get_mut(self.key) {
            (*jobs, *used) = (jobs.saturating_sub(1), used.saturating_sub(bytes));
            if *jobs == 0 {
                self.facts.lates.remove(self.key);
            }
        }
    }

    /// Puts a job into the line at its sequence. If the lock is free, it is offered to whoever is first now.
    pub(super) fn stand(&mut self, seq: u64, id: &JobId, bytes: u64) {
        self.line.bytes += bytes;
        self.line.jobs.insert((seq, id.clone()));
        match self.held_until() {
            Some(last) => {
                self.tell_holders(Contenders::from_job(seq));
                if self.facts.due.get(self.key).is_none() {
                    self.arm(last);
                }
            }
            None => self.move_on(),
        }
    }

    /// A job has left the line: what was kept for it goes.
    pub(super) fn left_line(&mut self, id: &JobId, bytes: u64) {
        if self.line.jobs.is_empty() {
            self.facts.due.remove(self.key);
            (self.line.park, self.line.bytes) = (None, 0);
            self.line.back.clear();
            return;
        }
        self.line.bytes = self.line.bytes.saturating_sub(bytes);
        self.line.back.forget(id);
    }

    pub(super) fn uncount(&mut self, id: &JobId, bytes: u64) {
        let owner = self.jobs.get(id, self.now.ms).map_or("", |job| &job.owner);
        self.facts.uncount(owner, bytes);
    }

    /// Takes a job out of the line, or out of those that are late, for good. The job itself keeps what the
    /// status tells.
    pub(super) fn end_job(&mut self, seq: u64, id: &JobId, bytes: u64) {
        self.facts.exp.remove(id);
        self.uncount(id, bytes);
        if !self.line.jobs.remove(&(seq, id.clone())) {
            return self.take_late(id, bytes);
        }
        self.left_line(id, bytes);
        // It may have been its backoff that the lock is due at the end of.
        if !self.line.jobs.is_empty() {
            self.facts.due.set(self.key, self.now.ms);
        }
    }

    /// A job has ended: who is told of it is, also once more if it was put back and ends again.
    pub(super) fn call_back(&mut self, id: &JobId, may_be_put_back: bool) {
        let kept = self.jobs.end_of(id);
        self.remember_until(id, kept.unwrap_or(0));
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else {
            return;
        };
        let call = if may_be_put_back { job.call.clone() } else { job.call.take() };
        if let Some(call) = call {
            self.facts.calls.push((call, job.end(), job.owner.clone()));
        }
    }

    /// A call becomes a job, unless it is one already: then it tells of the last end, with all attempts to come.
    pub(super) fn stand_call(&mut self, call: WebhookJobSpec, end: String, owner: String) {
        let WebhookJobSpec { id, envelope, max_attempts, .. } = call;
        let waits = self.jobs.get_mut(&id, self.now.ms).filter(|job| job.state.is_pending());
        if let Some(job) = waits {
            (job.tells, job.attempts) = (Some(end), 0);
            return;
        }
        self.facts.done.take(&id);
        self.facts.dead.take(&id);
        let (seq, bytes) = (self.next_seq(), envelope.len() as u64);
        let (tells, again) = (Some(end), true);
        let job = Job::new(self.key, self.now);
        // It counts as the request did: who says whom to call is not to fill the queue for the others.
        self.facts.count(&owner, bytes);
        let job = Job { seq, bytes, envelope, max_attempts, again, tells, owner, ..job };
        self.jobs.put(&id, job, None);
        self.stand(seq, &id, bytes);
    }

    /// Ends a job that waits, for a reason if there is one.
    pub(super) fn drop_job(
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
        job.ends(state, if reason.is_empty() { job.reason } else { reason }, self.now.us);
        job.by = by;
        job.envelope = Bytes::new();
        let (seq, bytes) = (job.seq, job.bytes);
        self.jobs.end_at(id, Some(self.now.after(kept)));
        self.facts.ended(state, (id, ""), (0, 0), self.now);
        self.line.take(&Member::Job(id.clone()));
        self.end_job(seq, id, bytes);
        self.move_on();
        self.call_back(id, false);
        self.tell_all(id);
    }

    /// Ends a job that waits past its deadline.
    pub(super) fn expire_job(&mut self, id: &JobId) {
        self.drop_job(id, JobState::Expired, "deadline", KEPT, None);
    }

    pub(super) fn cancel(
        &mut self,
        id: &JobId,
        began_us: u64,
        retention: Duration,
    ) -> Option<JobState> {
        let job = self.jobs.get(id, self.now.ms)?;
        if job.state != JobState::Queued || job.began_us != began_us {
            return Some(job.state);
        }
        self.drop_job(id, JobState::Cancelled, "", retention, None);
        Some(JobState::Cancelled)
    }

    /// A late job is in time again.
    pub(super) fn come_back(&mut self, id: &JobId) {
        let now = self.now.ms;
        let Some(job) = self.jobs.get(id, now) else {
            return self.facts.late.remove(id);
        };
        let (seq, bytes, exp) = (job.seq, job.bytes, job.exp);
        if job.state != JobState::Queued {
            return self.take_late(id, bytes);
        }
        if exp.is_some_and(|exp| exp <= now) {
            return self.expire_job(id);
        }
        self.take_late(id, bytes);
        // An offer to the job that was first is nobody's yet.
        if let Some((other, first)) = self.line.first_job().cloned()
            && seq < other
        {
            self.line.take(&Member::Job(first));
        }
        self.stand(seq, id, bytes);
    }

    /// A job's deadline has passed. One that runs is left: if it has to run again, that is looked at then.
    pub(super) fn run_out(&mut self, id: &JobId) {
        self.facts.exp.remove(id);
        let job = self.jobs.get(id, self.now.ms);
        if job.is_some_and(|job| job.state == JobState::Queued) {
            self.expire_job(id);
        }
    }
}
