//! `AcceptedJob`: a job in the model.

use std::{sync::Arc, time::Duration};

use super::ReplyModel;
use crate::store::backend::{
    ClaimCommand, ClaimOutcome, ClaimedRun, JobHistory, JobId, JobState, JobView, LockMode,
    LockToken, OFFER_TIMEOUT,
};

pub(in crate::store::tests) struct AcceptedJob {
    pub(in crate::store::tests) id: JobId,
    pub(in crate::store::tests) view: JobView,
    pub(in crate::store::tests) envelope_bytes: u64,
    pub(super) accepted_us: u64,
    pub(super) retry_after_crash: bool,
    pub(super) max_attempts: u32,
    pub(super) run_token: Option<LockToken>,
    /// Records that last as long as the job: its own, and those of requests merged into it.
    pub(super) record_names: Vec<Arc<str>>,
    /// Time at which an ended job expires.
    pub(super) forgotten_ms: Option<u64>,
    /// Time at which a delayed job returns to the queue.
    pub(in crate::store::tests) delayed_until: Option<u64>,
    /// Deadline of the job.
    pub(super) deadline_ms: Option<u64>,
    /// True if other jobs may overtake this one while it waits for its retry.
    pub(super) skip_on_failure: bool,
}

impl ReplyModel {
    pub(in crate::store::tests) fn pending_jobs(&self) -> impl Iterator<Item = &AcceptedJob> {
        self.jobs.iter().filter(|job| job.view.state.is_pending())
    }

    /// Returns the jobs in the queue, without delayed ones.
    pub(in crate::store::tests) fn queued_jobs(&self) -> impl Iterator<Item = &AcceptedJob> {
        self.pending_jobs().filter(|job| job.delayed_until.is_none())
    }

    /// Looks up a job as a client may: not after its retention.
    pub(in crate::store::tests) fn find_job(&mut self, id: &JobId) -> Option<&mut AcceptedJob> {
        let now = self.now_ms;
        let mut kept_jobs = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        kept_jobs.find(|job| job.id == *id)
    }

    /// Returns the view that the store must report.
    pub(in crate::store::tests) fn expected_view(&self, id: &JobId) -> Option<JobView> {
        let mut kept_jobs = self.jobs.iter().filter(|job| job.is_kept(self.now_ms));
        let job = kept_jobs.find(|job| job.id == *id)?;
        let position = (1..).zip(self.queued_jobs()).find(|(_, job)| job.id == *id);
        let backoff_end = self.backoff_end(id).filter(|_| job.view.state == JobState::Queued);
        let delay_end = job.delayed_until.filter(|time| *time > self.now_ms);
        let due_in = backoff_end.or(delay_end).map(|time| self.time_left(time));
        Some(JobView {
            position: position.map(|(index, _)| index),
            is_watched: self.is_watched || self.is_between_workers,
            history: JobHistory { due_in, ..job.view.history.clone() },
            ..job.view.clone()
        })
    }

    /// Returns the outcome that the store must report, if it is certain.
    pub(super) fn expected_claim(&self, call: &ClaimCommand) -> Option<ClaimOutcome> {
        let Some(first) = self.queued_jobs().next() else {
            return Some(ClaimOutcome::QueueEmpty);
        };
        // The same run, even behind an older job that has returned to the queue.
        let is_same_run = |job: &AcceptedJob| {
            job.id == call.id
                && job.run_token.as_ref() == Some(&call.token)
                && job.view.state == JobState::Running
        };
        if self.is_held_by(&call.token) && self.queued_jobs().any(is_same_run) {
            return None;
        }
        if first.id != call.id {
            return Some(ClaimOutcome::NotFirst(first.id.clone()));
        }
        let is_repeated = first.run_token.as_ref() == Some(&call.token);
        if is_repeated {
            return Some(ClaimOutcome::Busy(OFFER_TIMEOUT));
        }
        if let Some(backoff_end) = self.backoff_end(&call.id) {
            return Some(ClaimOutcome::NotDue(self.time_left(backoff_end)));
        }
        if let Some(lease_end) = self.last_lease_end() {
            return Some(ClaimOutcome::Busy(self.time_left(lease_end)));
        }
        None
    }

    pub(in crate::store::tests) fn check_claim(
        &mut self,
        call: &ClaimCommand,
        reply: &ClaimOutcome,
    ) {
        if let Some(expected) = self.expected_claim(call) {
            assert_eq!(*reply, expected);
            return;
        }
        let (now, may_wait) = (self.now_ms, self.may_others_precede(&call.token));
        let is_holder = self.is_held_by(&call.token);
        let job = self.find_job(&call.id).expect("foretold otherwise");
        let unrunnable = if is_holder { None } else { job.unrunnable_state(now) };
        match reply {
            ClaimOutcome::Claimed(run) => {
                assert_eq!(unrunnable, None, "it must not run");
                self.begin_run(&call.id, &call.token, call.lease, run);
            }
            ClaimOutcome::Ended(id) => {
                assert!(unrunnable.is_some(), "a runnable job was ended");
                assert_eq!(*id, call.id);
                self.end_unrunnable_job(id, self.deadline_after(call.retention));
            }
            ClaimOutcome::Busy(remaining) => {
                assert!(may_wait, "the lock is free and no entry precedes the job");
                assert!(*remaining <= OFFER_TIMEOUT, "{remaining:?} for an offer");
            }
            other => panic!("{other:?} of the first job"),
        }
    }

    /// Starts a run, or continues it under the same token.
    pub(super) fn begin_run(
        &mut self,
        id: &JobId,
        token: &LockToken,
        lease: Duration,
        run: &ClaimedRun,
    ) {
        let (now, is_holder) = (self.now_ms, self.is_held_by(token));
        let job = self.find_job(id).expect("it is pending");
        if !is_holder {
            if job.view.state == JobState::Running {
                job.add_crash(now);
            }
            job.view.attempts += 1;
            job.view.history.started_us = now * 1000;
        }
        assert_eq!((run.attempt, run.accepted_us), (job.view.attempts, job.accepted_us));
        assert_eq!((&run.id, run.envelope.len() as u64), (id, job.envelope_bytes));
        job.view.state = JobState::Running;
        job.view.reason = None;
        job.run_token = Some(token.clone());
        self.clear_backoff(id);
        self.record_grant(token, LockMode::Exclusive, lease, run.fence);
    }

    pub(super) fn backoff_end(&self, id: &JobId) -> Option<u64> {
        self.backoffs.get(id).copied().filter(|at| *at > self.now_ms)
    }

    pub(super) fn clear_backoff(&mut self, id: &JobId) {
        self.backoffs.remove(id);
    }
}

impl AcceptedJob {
    pub(super) fn is_kept(&self, now: u64) -> bool {
        self.forgotten_ms.is_none_or(|forgotten_ms| forgotten_ms >= now)
    }

    pub(super) fn add_run(&mut self, now: u64, outcome: &str) {
        let JobHistory { started_us: run_start_us, recent_runs: runs, .. } = &mut self.view.history;
        runs.push(format!("{} {run_start_us} {} {outcome}", self.view.attempts, now * 1000));
        if runs.len() > 20 {
            runs.remove(0);
        }
    }

    pub(super) fn add_crash(&mut self, now: u64) {
        self.add_run(now, "crashed");
        self.view.history.crash_count += 1;
    }

    /// Returns the final state of a job that cannot run.
    pub(super) fn unrunnable_state(&self, now: u64) -> Option<JobState> {
        let is_exhausted = !self.retry_after_crash || self.view.attempts >= self.max_attempts;
        let is_crashed = self.view.state == JobState::Running && is_exhausted;
        let expired_state = self.is_past_deadline(now).then_some(JobState::Expired);
        if is_crashed { Some(JobState::Dead) } else { expired_state }
    }

    pub(super) fn is_past_deadline(&self, now: u64) -> bool {
        self.deadline_ms.is_some_and(|deadline| deadline <= now)
    }

    pub(super) fn finish_as(
        &mut self,
        state: JobState,
        reason: &str,
        (now, forgotten_ms): (u64, u64),
    ) {
        assert!(self.view.state.is_pending(), "it ends twice");
        self.view.state = state;
        self.view.history.ended_us = now * 1000;
        self.view.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self.forgotten_ms = Some(forgotten_ms);
        self.delayed_until = None;
    }

    /// Reduces the job to a tombstone.
    pub(super) fn make_tombstone(&mut self) {
        let JobHistory { lock, accepted_us, ended_us, .. } = self.view.history.clone();
        let history = JobHistory { lock, accepted_us, ended_us, ..JobHistory::default() };
        let (attempts, response, is_tombstone) = (0, None, true);
        self.view = JobView { attempts, response, is_tombstone, history, ..self.view.clone() };
        self.run_token = None;
    }

    pub(super) fn requeue(&mut self, reason: &str) {
        self.view.state = JobState::Queued;
        self.view.reason = Some(reason.to_owned());
    }
}
