//! Claims of a lock's first job, and their undo: `claim_lock_and_job.lua` and the part of
//! `settle_job_and_claim_next.lua` that undoes a claim.

use std::time::Duration;

use bytes::Bytes;

use super::{
    lock_holders_and_queue::HolderEntry,
    lock_transaction::{LockTransaction, SCAN_LIMIT},
    pending_job_transitions::DROPPED_JOB_RETENTION,
};
use crate::store::backend::{
    ClaimCommand, ClaimOutcome, ClaimedRun, JobId, JobState, LockMode, LockToken, NextClaim,
    OFFER_TIMEOUT,
};

/// Longest time between two polls of a worker, with or without wake-ups.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);

impl LockTransaction<'_> {
    pub(super) fn claim(&mut self, command: &ClaimCommand) -> ClaimOutcome {
        let was_offered = self.lock.job_offer_deadline.take().is_some();
        let Some((seq, first_id)) = self.lock.first_job().cloned() else {
            self.shard.due_index.remove(self.key);
            self.lock.backoffs.clear();
            return ClaimOutcome::QueueEmpty;
        };
        if first_id != command.id {
            // An older job has returned in front of a running one. A repeated claim still belongs
            // to that run, which no worker would execute otherwise.
            let active_run = self.renew_active_run(&command.id, &command.token, command.lease);
            return active_run.map_or(ClaimOutcome::NotFirst(first_id), ClaimOutcome::Claimed);
        }
        let job = self.jobs.get(&first_id, self.now.ms);
        if job.is_some_and(|job| job.run_token.as_ref() == Some(&command.token)) {
            // A token starts one run. This call is a late copy, after the run was settled, returned
            // or lost: no worker would execute another run.
            let active_run = self.renew_active_run(&first_id, &command.token, command.lease);
            return active_run.map_or(ClaimOutcome::Busy(OFFER_TIMEOUT), ClaimOutcome::Claimed);
        }
        let job_state = job.map(|job| job.state);
        let crashed_run = job.filter(|job| job.state == JobState::Running);
        let crashed_run_age = crashed_run
            .map(|job| Duration::from_micros(self.now.us.saturating_sub(job.started_us).max(1)));
        if let Some(obstacle) = self.claim_obstacle(seq, &first_id) {
            return obstacle;
        }
        let is_queued = job_state == Some(JobState::Queued);
        let was_not_offered =
            !was_offered && is_queued && self.lock.backoffs.end_of(&first_id).is_none();
        self.lock.backoffs.remove(&first_id);
        let claim = NextClaim {
            token: command.token.clone(),
            lease: command.lease,
            retention: command.retention,
        };
        match self.start_run(&first_id, &claim) {
            Some(run) => {
                ClaimOutcome::Claimed(ClaimedRun { was_not_offered, crashed_run_age, ..run })
            }
            None => {
                self.offer_next();
                ClaimOutcome::Ended(first_id)
            }
        }
    }

    /// Returns the reason why the first job cannot start now: its backoff, a holder, or a live
    /// waiter before it.
    fn claim_obstacle(&mut self, seq: u64, id: &JobId) -> Option<ClaimOutcome> {
        let held_until_ms = self.expire_holders();
        if let Some(backoff_end_ms) = self.backoff_end(id) {
            self.shard.due_index.set(self.key, backoff_end_ms);
            self.offer_next();
            let wait = Duration::from_millis(backoff_end_ms - self.now.ms);
            return Some(ClaimOutcome::NotDue(wait));
        }
        let has_job_offer = self.lock.deadline_of(&HolderEntry::JobOffer(id.clone())).is_some();
        match held_until_ms {
            Some(held_until_ms) if !has_job_offer => {
                self.shard.due_index.set(self.key, held_until_ms);
                let wait = Duration::from_millis(held_until_ms - self.now.ms);
                return Some(ClaimOutcome::Busy(wait));
            }
            // A live waiter precedes the job: the worker's claim advances the queue for it too.
            None if self.first_live_waiter().is_some_and(|waiter| waiter.seq < seq) => {
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
    pub(super) fn renew_active_run(
        &mut self,
        id: &JobId,
        token: &LockToken,
        lease: Duration,
    ) -> Option<ClaimedRun> {
        let holder = HolderEntry::holder(LockMode::Exclusive, token);
        let is_held = self.lock.deadline_of(&holder).is_some_and(|end_ms| end_ms > self.now.ms);
        let job = self.jobs.get(id, self.now.ms)?;
        if !is_held || job.state != JobState::Running || job.run_token.as_ref() != Some(token) {
            return None;
        }
        let run = ClaimedRun {
            id: id.clone(),
            fence: 0,
            attempt: job.attempts,
            envelope: job.envelope.clone(),
            accepted_us: job.accepted_us,
            has_next: self.lock.jobs.len() > 1,
            was_not_offered: false,
            crashed_run_age: None,
        };
        Some(ClaimedRun { fence: self.grant(token, LockMode::Exclusive, lease), ..run })
    }

    /// Starts a run of the first job, or ends the job if it must not run.
    pub(super) fn start_run(&mut self, id: &JobId, claim: &NextClaim) -> Option<ClaimedRun> {
        let now = self.now;
        let job = self.jobs.get_mut(id, now.ms)?;
        if job.state == JobState::Running {
            job.crash_count += 1;
            job.record_run(now.us, "crashed");
        }
        if let Some((state, reason)) = job.unrunnable_outcome(now.ms) {
            self.end_unrunnable_job(id, state, reason, claim.retention);
            return None;
        }
        job.state = JobState::Running;
        job.run_token = Some(claim.token.clone());
        job.attempts += 1;
        job.started_us = now.us;
        job.reason = "";
        // As in claim_lock_and_job.lua: a later end needs no wake-up, because a heartbeat comes
        // first.
        match claim.lease < MAX_POLL_INTERVAL {
            true => self.schedule(now.deadline_after(claim.lease)),
            false => self.shard.due_index.set(self.key, now.deadline_after(claim.lease)),
        }
        self.publish_job_change(id);
        let holder = HolderEntry::holder(LockMode::Exclusive, &claim.token);
        self.lock.insert_holder(holder, now.deadline_after(claim.lease));
        let run = self.renew_active_run(id, &claim.token, claim.lease)?;
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
        let mut expires_ms = now.deadline_after(retention);
        if let Some(job) = self.jobs.get_mut(id, now.ms) {
            job.set_ended(state, reason, now.us);
            // The last run may still be alive in some process, and must learn that its settlement
            // is void.
            job.run_token = None;
            if state == JobState::Expired {
                expires_ms = now.deadline_after(DROPPED_JOB_RETENTION);
                // An expired job never runs again.
                job.envelope = Bytes::new();
            }
            (seq, bytes) = (job.seq, job.bytes);
        }
        self.finish_job(seq, id, bytes, state, expires_ms);
    }

    /// Returns the job of this queue that runs under this token. A running job is at the front:
    /// only jobs that return to an older position can precede it.
    pub(super) fn find_job_by_run(&self, token: &LockToken) -> Option<JobId> {
        let mut jobs = self.lock.jobs.iter().take(SCAN_LIMIT).map(|(_, id)| id);
        jobs.find(|id| self.is_run_by(id, token)).cloned()
    }

    fn is_run_by(&self, id: &JobId, token: &LockToken) -> bool {
        self.jobs.get(id, self.now.ms).is_some_and(|job| job.run_token.as_ref() == Some(token))
    }

    /// Undoes a claim, for any job of this lock.
    pub(super) fn unclaim(&mut self, token: &LockToken, id: Option<JobId>) -> bool {
        let now = self.now.ms;
        let Some(id) =
            id.filter(|id| self.is_run_by(id, token)).or_else(|| self.find_job_by_run(token))
        else {
            return false;
        };
        let Some(job) = self.jobs.get_mut(&id, now) else {
            return false;
        };
        if job.state != JobState::Running {
            return false;
        }
        let holder = HolderEntry::holder(LockMode::Exclusive, token);
        if self.lock.deadline_of(&holder).is_none_or(|end_ms| end_ms <= now) {
            return false;
        }
        self.lock.remove_holder(&holder);
        // A run that never began is not counted as an attempt.
        if job.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now) {
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
