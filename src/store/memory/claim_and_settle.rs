//! `claim_job.lua` and `settle_job.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{
    lock_state::HolderEntry,
    lock_transaction::{LockTransaction, SCAN_LIMIT},
};
use crate::{
    clock::ceil_millis,
    store::backend::{
        ClaimCommand, ClaimOutcome, ClaimedRun, JobId, JobState, LockMode, LockToken, NextClaim,
        OFFER_TIMEOUT, SettleCommand, SettleOutcome, Settlement,
    },
};

/// Maximum number of jobs at the queue head that one settlement may end.
const MAX_ENDED_HEADS: usize = 8;

/// Longest time between two polls of a worker, with or without wake-ups.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);

impl LockTransaction<'_> {
    pub(super) fn claim(&mut self, call: &ClaimCommand) -> ClaimOutcome {
        self.lock.job_offer_deadline = None;
        let Some((seq, first)) = self.lock.first_job().cloned() else {
            self.shard.due_index.remove(self.key);
            self.lock.backoffs.clear();
            return ClaimOutcome::QueueEmpty;
        };
        if first != call.id {
            // An older job has returned in front of a running one. A repeated claim still belongs
            // to that run, which no worker would execute otherwise.
            let begun = self.renew_active_run(&call.id, &call.token, call.lease);
            return begun.map_or(ClaimOutcome::NotFirst(first), ClaimOutcome::Claimed);
        }
        let job = self.jobs.get(&first, self.now.ms);
        if job.is_some_and(|job| job.run_token.as_ref() == Some(&call.token)) {
            // A token starts one run. This call is a late copy, after the run was settled, returned
            // or lost: no worker would execute another run.
            let again = self.renew_active_run(&first, &call.token, call.lease);
            return again.map_or(ClaimOutcome::Busy(OFFER_TIMEOUT), ClaimOutcome::Claimed);
        }
        if let Some(not_now) = self.claim_obstacle(seq, &first) {
            return not_now;
        }
        self.lock.backoffs.remove(&first);
        let next =
            NextClaim { token: call.token.clone(), lease: call.lease, retention: call.retention };
        match self.start_run(&first, &next) {
            Some(run) => ClaimOutcome::Claimed(run),
            None => {
                self.offer_next();
                ClaimOutcome::Ended(first)
            }
        }
    }

    /// Returns the reason why the first job cannot start now: its backoff, a holder, or a live
    /// waiter before it.
    fn claim_obstacle(&mut self, seq: u64, id: &JobId) -> Option<ClaimOutcome> {
        let last = self.expire_holders();
        if let Some(back) = self.backoff_end(id) {
            self.shard.due_index.set(self.key, back);
            self.offer_next();
            return Some(ClaimOutcome::NotDue(Duration::from_millis(back - self.now.ms)));
        }
        let offered = self.lock.deadline_of(&HolderEntry::JobOffer(id.clone())).is_some();
        match last {
            Some(last) if !offered => {
                self.shard.due_index.set(self.key, last);
                return Some(ClaimOutcome::Busy(Duration::from_millis(last - self.now.ms)));
            }
            // A live waiter precedes the job: the worker's claim advances the queue for it too.
            None if self.first_live_waiter().is_some_and(|place| place.seq < seq) => {
                // The due time must move, or the lock would be due at once again.
                self.shard.due_index.set(self.key, self.offer_deadline());
                self.offer_next();
                return Some(ClaimOutcome::Busy(OFFER_TIMEOUT));
            }
            _ => {}
        }
        self.lock.remove_holder(&HolderEntry::JobOffer(id.clone()));
        None
    }

    /// Renews and returns the run that this token has started, if it continues.
    fn renew_active_run(
        &mut self,
        id: &JobId,
        me: &LockToken,
        lease: Duration,
    ) -> Option<ClaimedRun> {
        let holds = HolderEntry::holder(LockMode::Exclusive, me);
        let held = self.lock.deadline_of(&holds).is_some_and(|end| end > self.now.ms);
        let job = self.jobs.get(id, self.now.ms)?;
        if !held || job.state != JobState::Running || job.run_token.as_ref() != Some(me) {
            return None;
        }
        let run = ClaimedRun {
            id: id.clone(),
            fence: 0,
            attempt: job.attempts,
            envelope: job.envelope.clone(),
            accepted_us: job.accepted_us,
            has_next: self.lock.jobs.len() > 1,
        };
        Some(ClaimedRun { fence: self.grant(me, LockMode::Exclusive, lease), ..run })
    }

    /// Starts a run of the first job, or ends the job if it must not run.
    fn start_run(&mut self, id: &JobId, next: &NextClaim) -> Option<ClaimedRun> {
        let now = self.now;
        let job = self.jobs.get_mut(id, now.ms)?;
        if job.state == JobState::Running {
            job.crash_count += 1;
            job.record_run(now.us, "crashed");
        }
        if let Some((state, reason)) = job.unrunnable_outcome(now.ms) {
            self.end_unrunnable_job(id, state, reason, next.retention);
            return None;
        }
        job.state = JobState::Running;
        job.run_token = Some(next.token.clone());
        job.attempts += 1;
        job.started_us = now.us;
        job.reason = "";
        // As in claim_job.lua: a later end needs no wake-up, because a heartbeat comes first.
        match next.lease < MAX_POLL_INTERVAL {
            true => self.schedule(now.deadline_after(next.lease)),
            false => self.shard.due_index.set(self.key, now.deadline_after(next.lease)),
        }
        self.publish_job_change(id);
        let holds = HolderEntry::holder(LockMode::Exclusive, &next.token);
        self.lock.insert_holder(holds, now.deadline_after(next.lease));
        let run = self.renew_active_run(id, &next.token, next.lease)?;
        self.jobs.get_mut(id, now.ms)?.first_fence = run.fence;
        Some(run)
    }

    fn end_unrunnable_job(
        &mut self,
        id: &JobId,
        state: JobState,
        reason: &'static str,
        retention: Duration,
    ) {
        self.lock.remove_holder(&HolderEntry::JobOffer(id.clone()));
        let (mut seq, mut bytes, now) = (0, 0, self.now);
        let mut end = now.deadline_after(retention);
        if let Some(job) = self.jobs.get_mut(id, now.ms) {
            job.set_ended(state, reason, now.us);
            // The last run may still be alive in some process, and must learn that its settlement
            // is void.
            job.run_token = None;
            if state == JobState::Expired {
                end = now.deadline_after(super::pending_jobs::DROPPED_JOB_RETENTION);
                // An expired job never runs again.
                job.envelope = Bytes::new();
            }
            (seq, bytes) = (job.seq, job.bytes);
        }
        self.finish_job(seq, id, bytes, state, end);
    }

    /// Removes an ended job from the queue for good. Its callers schedule the rest of the queue.
    fn finish_job(&mut self, seq: u64, id: &JobId, bytes: u64, state: JobState, end: u64) {
        self.jobs.set_expiry(id, Some(end));
        self.shard.deadline_index.remove(id);
        self.uncount_job(id, bytes);
        let after = Duration::from_millis(end - self.now.ms);
        let until = self.now.us + 1000 * ceil_millis(after);
        let job = self.jobs.get(id, self.now.ms);
        let response = job.and_then(|job| job.response.as_ref());
        let kept = response.map_or(bytes, |response| response.len() as u64);
        let owner = job.map_or("", |job| &job.owner);
        for oldest in self.shard.index_ended_job(state, (id, owner), (until, kept), self.now) {
            self.shard.leave_tombstone(self.jobs, &oldest, self.now);
        }
        self.lock.jobs.remove(&(seq, id.clone()));
        self.clean_up_after_dequeue(id, bytes);
        self.schedule_webhook(id, state == JobState::Dead);
        self.publish_job_change(id);
    }

    pub(super) fn settle(&mut self, call: SettleCommand) -> SettleOutcome {
        let SettleCommand { id, token: me, settlement: verdict, next_claim: next, .. } = call;
        let run = self.jobs.get(&id, self.now.ms).and_then(|job| job.run_token.as_ref());
        if run != Some(&me) {
            return SettleOutcome::RunLost;
        }
        if self.jobs.get(&id, self.now.ms).is_some_and(|job| job.state != JobState::Running) {
            return SettleOutcome::Settled(next.and_then(|next| self.find_repeated_claim(&next)));
        }
        let holds = HolderEntry::holder(LockMode::Exclusive, &me);
        let held = self.lock.deadline_of(&holds).is_some_and(|end| end > self.now.ms);
        if !held {
            return SettleOutcome::RunLost;
        }
        self.lock.remove_holder(&holds);
        if !self.apply_settlement(&id, verdict) {
            return SettleOutcome::Settled(None);
        }
        let begun = next.as_ref().and_then(|next| self.start_next_run(next));
        if begun.is_none() {
            // The lock is free: the next offer sets the time of the next poll.
            self.offer_next();
        }
        SettleOutcome::Settled(begun)
    }

    /// Applies the settlement. Returns false if that has advanced the queue already.
    fn apply_settlement(&mut self, id: &JobId, verdict: Settlement) -> bool {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(id, now.ms) else {
            return true;
        };
        let (seq, bytes) = (job.seq, job.bytes);
        let (state, reason, retention) = match job.resolve_settlement(verdict) {
            Settlement::Done { response, status, retention } => {
                job.record_run(now.us, "done");
                job.response_status = status;
                job.response = Some(response);
                job.envelope = Bytes::new();
                (JobState::Done, "", retention)
            }
            Settlement::Dead { reason, retention }
            | Settlement::WebhookSettled { reason, retention, .. } => {
                job.record_run(now.us, reason);
                (JobState::Dead, reason, retention)
            }
            Settlement::Retry { delay, reason } => {
                return self.schedule_retry(id, delay, reason, (true, true));
            }
            Settlement::Postpone { delay, reason } => {
                return self.schedule_retry(id, delay, reason, (false, true));
            }
            Settlement::ReturnToQueue { delay, reason } => {
                return self.schedule_retry(id, delay, reason, (false, false));
            }
        };
        job.set_ended(state, reason, now.us);
        self.finish_job(seq, id, bytes, state, now.deadline_after(retention));
        true
    }

    /// Schedules another run after a delay. The job keeps its place and later jobs wait; they may
    /// overtake it if the job allows that and `passed` is set.
    fn schedule_retry(
        &mut self,
        id: &JobId,
        delay: Duration,
        reason: &'static str,
        (charged, passed): (bool, bool),
    ) -> bool {
        let (now, at) = (self.now, self.now.deadline_after(delay));
        let Some(job) = self.jobs.get_mut(id, now.ms) else {
            return true;
        };
        job.record_run(now.us, reason);
        if job.deadline_ms.is_some_and(|exp| exp <= now.ms) {
            job.return_to_queue(reason, charged);
            self.expire_job(id);
            return false;
        }
        job.return_to_queue(reason, charged);
        job.busy_count += u32::from(!charged && reason == "busy");
        let (seq, bytes, skip) = (job.seq, job.bytes, job.allows_overtaking && passed);
        self.publish_job_change(id);
        if skip {
            self.lock.jobs.remove(&(seq, id.clone()));
            self.delay_job(id, at, bytes);
            self.clean_up_after_dequeue(id, bytes);
        } else {
            self.lock.backoffs.set(id, at, now.ms);
        }
        true
    }

    /// Starts the next job that may run, if it is first.
    fn start_next_run(&mut self, next: &NextClaim) -> Option<ClaimedRun> {
        for _ in 0..MAX_ENDED_HEADS {
            let (seq, first) = self.lock.first_job().cloned()?;
            let before = self.first_live_waiter().is_some_and(|place| place.seq < seq);
            let watched = self.shard.watching_node(self.now).is_some();
            if before || !watched || self.backoff_end(&first).is_some() {
                return None;
            }
            // A dead one is left to a claim, which reports it.
            let job = self.jobs.get(&first, self.now.ms)?;
            if job.unrunnable_outcome(self.now.ms).is_some_and(|(state, _)| state == JobState::Dead)
            {
                return None;
            }
            let run = self.start_run(&first, next);
            if run.is_some() {
                return run;
            }
        }
        None
    }

    /// Returns the job of this queue that runs under this token. A running job is at the front:
    /// only jobs that return to an older place can precede it.
    fn find_job_by_run(&self, me: &LockToken) -> Option<JobId> {
        let mut jobs = self.lock.jobs.iter().take(SCAN_LIMIT).map(|(_, id)| id);
        jobs.find(|id| self.is_run_by(id, me)).cloned()
    }

    fn is_run_by(&self, id: &JobId, me: &LockToken) -> bool {
        self.jobs.get(id, self.now.ms).is_some_and(|job| job.run_token.as_ref() == Some(me))
    }

    /// Returns the run that a call with this token has started before. Starts none: this may be a
    /// late call without a caller.
    fn find_repeated_claim(&mut self, next: &NextClaim) -> Option<ClaimedRun> {
        let id = self.find_job_by_run(&next.token)?;
        self.renew_active_run(&id, &next.token, next.lease)
    }

    /// Undoes a claim, for any job of this lock.
    pub(super) fn unclaim(&mut self, me: &LockToken, id: Option<JobId>) -> bool {
        let now = self.now.ms;
        let Some(id) = id.filter(|id| self.is_run_by(id, me)).or_else(|| self.find_job_by_run(me))
        else {
            return false;
        };
        let Some(job) = self.jobs.get_mut(&id, now) else {
            return false;
        };
        if job.state != JobState::Running {
            return false;
        }
        let holds = HolderEntry::holder(LockMode::Exclusive, me);
        if self.lock.deadline_of(&holds).is_none_or(|end| end <= now) {
            return false;
        }
        self.lock.remove_holder(&holds);
        // A run that never began is not counted as an attempt.
        if job.deadline_ms.is_some_and(|exp| exp <= now) {
            job.attempts = job.attempts.saturating_sub(1);
            self.expire_job(&id);
            return true;
        }
        job.return_to_queue("not started", false);
        self.lock.backoffs.set(&id, now + 1, now);
        self.publish_job_change(&id);
        self.offer_next();
        true
    }
}
