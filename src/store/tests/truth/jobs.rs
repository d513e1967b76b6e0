//! What the replies about jobs mean.

use std::{sync::Arc, time::Duration};

use super::Truth;
use crate::store::backend::{
    ClaimCommand, ClaimOutcome, ClaimedRun, JobHistory, JobId, JobState, JobView, LockMode,
    LockToken, OFFER_TIMEOUT,
};

pub(in crate::store::tests) struct Accepted {
    pub(in crate::store::tests) id: JobId,
    pub(in crate::store::tests) view: JobView,
    pub(in crate::store::tests) bytes: u64,
    pub(super) accepted_us: u64,
    pub(super) again: bool,
    pub(super) max_attempts: u32,
    pub(super) run: Option<LockToken>,
    /// The records that are known for as long as it is: the one that it was accepted under, and those of what was merged
    /// into it.
    pub(super) records: Vec<Arc<str>>,
    /// When an ended one is forgotten.
    pub(super) gone: Option<u64>,
    /// When it comes back, if it waits outside of the line.
    pub(in crate::store::tests) late: Option<u64>,
    /// Its deadline.
    pub(super) exp: Option<u64>,
    /// Others may pass it while it waits for its retry.
    pub(super) skip: bool,
}

impl Truth {
    pub(in crate::store::tests) fn pending(&self) -> impl Iterator<Item = &Accepted> {
        self.jobs.iter().filter(|job| job.view.state.is_pending())
    }

    /// Those that stand in the line.
    pub(in crate::store::tests) fn line(&self) -> impl Iterator<Item = &Accepted> {
        self.pending().filter(|job| job.late.is_none())
    }

    /// Looks a job up, as a client may: not after its retention.
    pub(in crate::store::tests) fn job(&mut self, id: &JobId) -> Option<&mut Accepted> {
        let now = self.now;
        let mut known = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        known.find(|job| job.id == *id)
    }

    /// What its status must be.
    pub(in crate::store::tests) fn view(&self, id: &JobId) -> Option<JobView> {
        let mut known = self.jobs.iter().filter(|job| job.is_kept(self.now));
        let job = known.find(|job| job.id == *id)?;
        let position = (1..).zip(self.line()).find(|(_, job)| job.id == *id);
        let back = self.in_backoff(id).filter(|_| job.view.state == JobState::Queued);
        let late = job.late.filter(|at| *at > self.now);
        let due_in = back.or(late).map(|at| self.left(at));
        Some(JobView {
            position: position.map(|(at, _)| at),
            is_watched: self.watched || self.left,
            history: JobHistory { due_in, ..job.view.history.clone() },
            ..job.view.clone()
        })
    }

    /// What must be answered, if that can be known.
    pub(super) fn foretold(&self, call: &ClaimCommand) -> Option<ClaimOutcome> {
        let Some(first) = self.line().next() else {
            return Some(ClaimOutcome::QueueEmpty);
        };
        // It is the same run, also behind an older job that has come back in front of it.
        let begun = |job: &Accepted| {
            job.id == call.id
                && job.run.as_ref() == Some(&call.token)
                && job.view.state == JobState::Running
        };
        if self.is_held_by(&call.token) && self.line().any(begun) {
            return None;
        }
        if first.id != call.id {
            return Some(ClaimOutcome::NotFirst(first.id.clone()));
        }
        let again = first.run.as_ref() == Some(&call.token);
        if again {
            return Some(ClaimOutcome::Busy(OFFER_TIMEOUT));
        }
        if let Some(back) = self.in_backoff(&call.id) {
            return Some(ClaimOutcome::NotDue(self.left(back)));
        }
        if let Some(until) = self.held_until() {
            return Some(ClaimOutcome::Busy(self.left(until)));
        }
        None
    }

    pub(in crate::store::tests) fn claimed(&mut self, call: &ClaimCommand, reply: &ClaimOutcome) {
        if let Some(expected) = self.foretold(call) {
            assert_eq!(*reply, expected);
            return;
        }
        let (now, wait) = (self.now, self.others_wait(&call.token));
        let mine = self.is_held_by(&call.token);
        let job = self.job(&call.id).expect("foretold otherwise");
        let unfit = if mine { None } else { job.unfit(now) };
        match reply {
            ClaimOutcome::Claimed(run) => {
                assert_eq!(unfit, None, "it must not run");
                self.begins(&call.id, &call.token, call.lease, run);
            }
            ClaimOutcome::Ended(id) => {
                assert!(unfit.is_some(), "nothing keeps it from running");
                assert_eq!(*id, call.id);
                self.ends_unfit(id, self.after(call.retention));
            }
            ClaimOutcome::Busy(left) => {
                assert!(wait, "it is free, and nobody stands before the job");
                assert!(*left <= OFFER_TIMEOUT, "{left:?} for an offer");
            }
            other => panic!("{other:?} of the first job"),
        }
    }

    /// A run begins, or goes on by the same token.
    pub(super) fn begins(&mut self, id: &JobId, me: &LockToken, lease: Duration, run: &ClaimedRun) {
        let (now, mine) = (self.now, self.is_held_by(me));
        let job = self.job(id).expect("it is pending");
        if !mine {
            if job.view.state == JobState::Running {
                job.has_crashed(now);
            }
            job.view.attempts += 1;
            job.view.history.started_us = now * 1000;
        }
        assert_eq!((run.attempt, run.accepted_us), (job.view.attempts, job.accepted_us));
        assert_eq!((&run.id, run.envelope.len() as u64), (id, job.bytes));
        job.view.state = JobState::Running;
        job.view.reason = None;
        job.run = Some(me.clone());
        self.forget_backoff(id);
        self.granted(me, LockMode::Exclusive, lease, run.fence);
    }

    pub(super) fn in_backoff(&self, id: &JobId) -> Option<u64> {
        self.back.get(id).copied().filter(|at| *at > self.now)
    }

    pub(super) fn forget_backoff(&mut self, id: &JobId) {
        self.back.remove(id);
    }
}

impl Accepted {
    pub(super) fn is_kept(&self, now: u64) -> bool {
        self.gone.is_none_or(|gone| gone >= now)
    }

    pub(super) fn has_run(&mut self, now: u64, outcome: &str) {
        let JobHistory { started_us: began_us, recent_runs: runs, .. } = &mut self.view.history;
        runs.push(format!("{} {began_us} {} {outcome}", self.view.attempts, now * 1000));
        if runs.len() > 20 {
            runs.remove(0);
        }
    }

    pub(super) fn has_crashed(&mut self, now: u64) {
        self.has_run(now, "crashed");
        self.view.history.crash_count += 1;
    }

    /// What becomes of it instead of a run, if nobody runs it.
    pub(super) fn unfit(&self, now: u64) -> Option<JobState> {
        let spent = !self.again || self.view.attempts >= self.max_attempts;
        let crashed = self.view.state == JobState::Running && spent;
        let over = self.is_over(now).then_some(JobState::Expired);
        if crashed { Some(JobState::Dead) } else { over }
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        self.exp.is_some_and(|exp| exp <= now)
    }

    pub(super) fn end(&mut self, state: JobState, reason: &str, (now, gone): (u64, u64)) {
        assert!(self.view.state.is_pending(), "it ends twice");
        self.view.state = state;
        self.view.history.ended_us = now * 1000;
        self.view.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self.gone = Some(gone);
        self.late = None;
    }

    /// A tombstone is all that is left of it.
    pub(super) fn entomb(&mut self) {
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
        self.run = None;
    }

    pub(super) fn wait(&mut self, reason: &str) {
        self.view.state = JobState::Queued;
        self.view.reason = Some(reason.to_owned());
    }
}
