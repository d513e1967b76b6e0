//! What the replies about jobs mean.

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
    /// The records that are known for as long as it is: the one that it was accepted under, and those of what was merged
    /// into it.
    pub(super) record_names: Vec<Arc<str>>,
    /// When an ended one is forgotten.
    pub(super) forgotten_ms: Option<u64>,
    /// When it comes back, if it waits outside of the line.
    pub(in crate::store::tests) delayed_until: Option<u64>,
    /// Its deadline.
    pub(super) deadline_ms: Option<u64>,
    /// Others may pass it while it waits for its retry.
    pub(super) skip_on_failure: bool,
}

impl ReplyModel {
    pub(in crate::store::tests) fn pending_jobs(&self) -> impl Iterator<Item = &AcceptedJob> {
        self.jobs.iter().filter(|job| job.view.state.is_pending())
    }

    /// Those that stand in the line.
    pub(in crate::store::tests) fn queued_jobs(&self) -> impl Iterator<Item = &AcceptedJob> {
        self.pending_jobs().filter(|job| job.delayed_until.is_none())
    }

    /// Looks a job up, as a client may: not after its retention.
    pub(in crate::store::tests) fn find_job(&mut self, id: &JobId) -> Option<&mut AcceptedJob> {
        let now = self.now_ms;
        let mut known = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        known.find(|job| job.id == *id)
    }

    /// What its status must be.
    pub(in crate::store::tests) fn expected_view(&self, id: &JobId) -> Option<JobView> {
        let mut known = self.jobs.iter().filter(|job| job.is_kept(self.now_ms));
        let job = known.find(|job| job.id == *id)?;
        let position = (1..).zip(self.queued_jobs()).find(|(_, job)| job.id == *id);
        let back = self.backoff_end(id).filter(|_| job.view.state == JobState::Queued);
        let late = job.delayed_until.filter(|at| *at > self.now_ms);
        let due_in = back.or(late).map(|at| self.time_left(at));
        Some(JobView {
            position: position.map(|(at, _)| at),
            is_watched: self.is_watched || self.is_between_workers,
            history: JobHistory { due_in, ..job.view.history.clone() },
            ..job.view.clone()
        })
    }

    /// What must be answered, if that can be known.
    pub(super) fn expected_claim(&self, call: &ClaimCommand) -> Option<ClaimOutcome> {
        let Some(first) = self.queued_jobs().next() else {
            return Some(ClaimOutcome::QueueEmpty);
        };
        // It is the same run, also behind an older job that has come back in front of it.
        let begun = |job: &AcceptedJob| {
            job.id == call.id
                && job.run_token.as_ref() == Some(&call.token)
                && job.view.state == JobState::Running
        };
        if self.is_held_by(&call.token) && self.queued_jobs().any(begun) {
            return None;
        }
        if first.id != call.id {
            return Some(ClaimOutcome::NotFirst(first.id.clone()));
        }
        let again = first.run_token.as_ref() == Some(&call.token);
        if again {
            return Some(ClaimOutcome::Busy(OFFER_TIMEOUT));
        }
        if let Some(back) = self.backoff_end(&call.id) {
            return Some(ClaimOutcome::NotDue(self.time_left(back)));
        }
        if let Some(until) = self.last_lease_end() {
            return Some(ClaimOutcome::Busy(self.time_left(until)));
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
        let (now, wait) = (self.now_ms, self.may_others_precede(&call.token));
        let mine = self.is_held_by(&call.token);
        let job = self.find_job(&call.id).expect("foretold otherwise");
        let unfit = if mine { None } else { job.unrunnable_state(now) };
        match reply {
            ClaimOutcome::Claimed(run) => {
                assert_eq!(unfit, None, "it must not run");
                self.begin_run(&call.id, &call.token, call.lease, run);
            }
            ClaimOutcome::Ended(id) => {
                assert!(unfit.is_some(), "nothing keeps it from running");
                assert_eq!(*id, call.id);
                self.end_unrunnable_job(id, self.deadline_after(call.retention));
            }
            ClaimOutcome::Busy(left) => {
                assert!(wait, "it is free, and nobody stands before the job");
                assert!(*left <= OFFER_TIMEOUT, "{left:?} for an offer");
            }
            other => panic!("{other:?} of the first job"),
        }
    }

    /// A run begins, or goes on by the same token.
    pub(super) fn begin_run(
        &mut self,
        id: &JobId,
        me: &LockToken,
        lease: Duration,
        run: &ClaimedRun,
    ) {
        let (now, mine) = (self.now_ms, self.is_held_by(me));
        let job = self.find_job(id).expect("it is pending");
        if !mine {
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
        job.run_token = Some(me.clone());
        self.clear_backoff(id);
        self.record_grant(me, LockMode::Exclusive, lease, run.fence);
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
        self.forgotten_ms.is_none_or(|gone| gone >= now)
    }

    pub(super) fn add_run(&mut self, now: u64, outcome: &str) {
        let JobHistory { started_us: began_us, recent_runs: runs, .. } = &mut self.view.history;
        runs.push(format!("{} {began_us} {} {outcome}", self.view.attempts, now * 1000));
        if runs.len() > 20 {
            runs.remove(0);
        }
    }

    pub(super) fn add_crash(&mut self, now: u64) {
        self.add_run(now, "crashed");
        self.view.history.crash_count += 1;
    }

    /// What becomes of it instead of a run, if nobody runs it.
    pub(super) fn unrunnable_state(&self, now: u64) -> Option<JobState> {
        let spent = !self.retry_after_crash || self.view.attempts >= self.max_attempts;
        let crashed = self.view.state == JobState::Running && spent;
        let over = self.is_past_deadline(now).then_some(JobState::Expired);
        if crashed { Some(JobState::Dead) } else { over }
    }

    pub(super) fn is_past_deadline(&self, now: u64) -> bool {
        self.deadline_ms.is_some_and(|exp| exp <= now)
    }

    pub(super) fn finish_as(&mut self, state: JobState, reason: &str, (now, gone): (u64, u64)) {
        assert!(self.view.state.is_pending(), "it ends twice");
        self.view.state = state;
        self.view.history.ended_us = now * 1000;
        self.view.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self.forgotten_ms = Some(gone);
        self.delayed_until = None;
    }

    /// A tombstone is all that is left of it.
    pub(super) fn make_tombstone(&mut self) {
        let JobHistory { lock, accepted_us, ended_us, .. } = self.view.history.clone();
        let past = JobHistory { lock, accepted_us, ended_us, ..JobHistory::default() };
        let (attempts, response, tombstone) = (0, None, true);
        self.view = JobView {
            attempts,
            response,
            is_tombstone: tombstone,
            history: past,
            ..self.view.clone()
        };
        self.run_token = None;
    }

    pub(super) fn requeue(&mut self, reason: &str) {
        self.view.state = JobState::Queued;
        self.view.reason = Some(reason.to_owned());
    }
}
