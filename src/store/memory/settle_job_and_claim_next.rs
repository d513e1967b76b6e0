//! Settlement of a run, and the claim of the lock's next job: `settle_job_and_claim_next.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{lock_holders_and_queue::HolderEntry, lock_transaction::LockTransaction};
use crate::store::backend::{
    ClaimedRun, JobId, JobState, LockMode, NextClaim, SettleCommand, SettleOutcome, Settlement,
};

/// Maximum number of jobs at the queue head that one settlement may end.
const MAX_ENDED_HEADS: usize = 8;

/// Effect of a retry on the job's attempts and on the order of its queue.
#[derive(Clone, Copy)]
struct RetryRules {
    /// The run counts as an attempt.
    is_charged: bool,
    /// Later jobs may overtake the job while it waits, if the job allows that.
    may_be_overtaken: bool,
}

impl LockTransaction<'_> {
    pub(super) fn settle(&mut self, command: SettleCommand) -> SettleOutcome {
        let SettleCommand { id, token, settlement, next_claim, .. } = command;
        let run_token = self.jobs.get(&id, self.now.ms).and_then(|job| job.run_token.as_ref());
        if run_token != Some(&token) {
            return SettleOutcome::RunLost;
        }
        if self.jobs.get(&id, self.now.ms).is_some_and(|job| job.state != JobState::Running) {
            return SettleOutcome::Settled(
                next_claim.and_then(|claim| self.find_repeated_claim(&claim)),
            );
        }
        let holder = HolderEntry::holder(LockMode::Exclusive, &token);
        let is_held = self.lock.deadline_of(&holder).is_some_and(|end_ms| end_ms > self.now.ms);
        if !is_held {
            return SettleOutcome::RunLost;
        }
        self.lock.remove_holder(&holder);
        if !self.apply_settlement(&id, settlement) {
            return SettleOutcome::Settled(None);
        }
        let next_run = next_claim.as_ref().and_then(|claim| self.start_next_run(claim));
        if next_run.is_none() {
            // The lock is free: the next offer sets the time of the next poll.
            self.offer_next();
        }
        SettleOutcome::Settled(next_run)
    }

    /// Applies the settlement. Returns false if that has advanced the queue already.
    fn apply_settlement(&mut self, id: &JobId, settlement: Settlement) -> bool {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(id, now.ms) else {
            return true;
        };
        let (seq, bytes) = (job.seq, job.bytes);
        let (state, reason, retention) = match job.resolve_settlement(settlement) {
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
            Settlement::Cancelled { retention } => {
                job.record_run(now.us, "cancelled");
                self.end_pending_job(id, JobState::Cancelled, "", retention, None);
                return false;
            }
            Settlement::Retry { delay, reason } => {
                let rules = RetryRules { is_charged: true, may_be_overtaken: true };
                return self.schedule_retry(id, delay, reason, rules);
            }
            Settlement::Postpone { delay, reason } => {
                let rules = RetryRules { is_charged: false, may_be_overtaken: true };
                return self.schedule_retry(id, delay, reason, rules);
            }
            Settlement::ReturnToQueue { delay, reason } => {
                let rules = RetryRules { is_charged: false, may_be_overtaken: false };
                return self.schedule_retry(id, delay, reason, rules);
            }
        };
        job.set_ended(state, reason, now.us);
        self.finish_job(seq, id, bytes, state, now.deadline_after(retention));
        true
    }

    /// Schedules another run after a delay. The job keeps its position and later jobs wait, unless
    /// they may overtake it.
    fn schedule_retry(
        &mut self,
        id: &JobId,
        delay: Duration,
        reason: &'static str,
        rules: RetryRules,
    ) -> bool {
        let RetryRules { is_charged, may_be_overtaken } = rules;
        let (now, retry_ms) = (self.now, self.now.deadline_after(delay));
        let Some(job) = self.jobs.get_mut(id, now.ms) else {
            return true;
        };
        job.record_run(now.us, reason);
        if job.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now.ms) {
            job.return_to_queue(reason, is_charged);
            self.expire_job(id);
            return false;
        }
        job.return_to_queue(reason, is_charged);
        job.busy_count += u32::from(!is_charged && reason == "busy");
        let (seq, bytes) = (job.seq, job.bytes);
        let is_delayed = job.allows_overtaking && may_be_overtaken;
        self.publish_job_change(id);
        if is_delayed {
            self.lock.jobs.remove(&(seq, id.clone()));
            self.delay_job(id, retry_ms, bytes);
            self.clean_up_after_dequeue(id, bytes);
        } else {
            self.lock.backoffs.set(id, retry_ms, now.ms);
        }
        true
    }

    /// Starts the next job that may run, if it is first.
    fn start_next_run(&mut self, claim: &NextClaim) -> Option<ClaimedRun> {
        for _ in 0..MAX_ENDED_HEADS {
            let (seq, id) = self.lock.first_job().cloned()?;
            let has_earlier_waiter =
                self.first_live_waiter().is_some_and(|waiter| waiter.seq < seq);
            let is_watched = self.shard.watching_node(self.now).is_some();
            if has_earlier_waiter || !is_watched || self.backoff_end(&id).is_some() {
                return None;
            }
            // A dead one is left to a claim, which reports it.
            let job = self.jobs.get(&id, self.now.ms)?;
            if job.unrunnable_outcome(self.now.ms).is_some_and(|(state, _)| state == JobState::Dead)
            {
                return None;
            }
            let run = self.start_run(&id, claim);
            if run.is_some() {
                return run;
            }
        }
        None
    }

    /// Returns the run that a call with this token has started before. Starts none: this may be a
    /// late call without a caller.
    fn find_repeated_claim(&mut self, claim: &NextClaim) -> Option<ClaimedRun> {
        let id = self.find_job_by_run(&claim.token)?;
        self.renew_active_run(&id, &claim.token, claim.lease)
    }
}
