//! What the replies about jobs mean.

use std::{sync::Arc, time::Duration};

use super::Truth;
use crate::{
    clock::millis,
    store::backend::{
        ACCEPT_WINDOW, Claim, Claimed, JobId, JobState, JobView, Mode, Past, Run, Settle,
        SettledRun, Token, Verdict,
    },
};

pub(in crate::store::tests) struct Accepted {
    pub(in crate::store::tests) id: JobId,
    pub(in crate::store::tests) view: JobView,
    pub(in crate::store::tests) bytes: u64,
    pub(super) accepted_us: u64,
    pub(super) again: bool,
    pub(super) max_attempts: u32,
    pub(super) run: Option<Token>,
    /// The record it was accepted under.
    pub(super) record: Option<Arc<str>>,
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
        let back = self.back.as_ref().filter(|(at, whose)| *at > self.now && whose == id);
        let back = back.filter(|_| job.view.state == JobState::Queued);
        let late = job.late.filter(|at| *at > self.now);
        let due_in = back.map(|(at, _)| *at).or(late).map(|at| self.left(at));
        Some(JobView {
            position: position.map(|(at, _)| at),
            watched: self.watched || self.left,
            past: Past { due_in, ..job.view.past.clone() },
            ..job.view.clone()
        })
    }

    /// What must be answered, if that can be known.
    fn foretold(&self, call: &Claim) -> Option<Claimed> {
        let Some(first) = self.line().next() else {
            return Some(Claimed::Empty);
        };
        // It is the same run, also behind an older job that has come back in front of it.
        let begun = |job: &Accepted| {
            job.id == call.id
                && job.run.as_ref() == Some(&call.me)
                && job.view.state == JobState::Running
        };
        if self.is_held_by(&call.me) && self.line().any(begun) {
            return None;
        }
        if first.id != call.id {
            return Some(Claimed::Moved(first.id.clone()));
        }
        let again = first.run.as_ref() == Some(&call.me);
        if again {
            return Some(Claimed::Busy(ACCEPT_WINDOW));
        }
        if let Some(back) = self.in_backoff(&call.id) {
            return Some(Claimed::Later(self.left(back)));
        }
        if let Some(until) = self.held_until() {
            return Some(Claimed::Busy(self.left(until)));
        }
        None
    }

    pub(in crate::store::tests) fn claimed(&mut self, call: &Claim, reply: &Claimed) {
        if let Some(expected) = self.foretold(call) {
            assert_eq!(*reply, expected);
            return;
        }
        let (now, wait) = (self.now, self.others_wait(&call.me));
        let mine = self.is_held_by(&call.me);
        let job = self.job(&call.id).expect("foretold otherwise");
        let unfit = if mine { None } else { job.unfit(now) };
        match reply {
            Claimed::Claimed(run) => {
                assert_eq!(unfit, None, "it must not run");
                self.begins(&call.id, &call.me, call.lease, run);
            }
            Claimed::Dead(id) => {
                assert!(unfit.is_some(), "nothing keeps it from running");
                assert_eq!(*id, call.id);
                self.ends_unfit(id, self.after(call.retention));
            }
            Claimed::Busy(left) => {
                assert!(wait, "it is free, and nobody stands before the job");
                assert!(*left <= ACCEPT_WINDOW, "{left:?} for an offer");
            }
            other => panic!("{other:?} of the first job"),
        }
    }

    /// A run begins, or goes on by the same token.
    fn begins(&mut self, id: &JobId, me: &Token, lease: Duration, run: &Run) {
        let (now, mine) = (self.now, self.is_held_by(me));
        let job = self.job(id).expect("it is pending");
        if !mine {
            if job.view.state == JobState::Running {
                job.has_crashed(now);
            }
            job.view.attempts += 1;
            job.view.past.began_us = now * 1000;
        }
        assert_eq!((run.attempt, run.accepted_us), (job.view.attempts, job.accepted_us));
        assert_eq!((&run.id, run.envelope.len() as u64), (id, job.bytes));
        job.view.state = JobState::Running;
        job.view.reason = None;
        job.run = Some(me.clone());
        self.forget_backoff(id);
        self.granted(me, Mode::Exclusive, lease, run.fence);
    }

    pub(super) fn in_backoff(&self, id: &JobId) -> Option<u64> {
        let (at, whose) = self.back.as_ref()?;
        (whose == id && *at > self.now).then_some(*at)
    }

    pub(super) fn forget_backoff(&mut self, id: &JobId) {
        self.back.take_if(|(_, whose)| whose == id);
    }

    pub(in crate::store::tests) fn settled(&mut self, call: &Settle, reply: &SettledRun) {
        let mine = self.is_held_by(&call.me);
        let job = self.job(&call.id).filter(|job| job.run.as_ref() == Some(&call.me));
        let Some(job) = job else {
            assert_eq!(*reply, SettledRun::Lost, "not its run");
            return;
        };
        if job.view.state != JobState::Running {
            return self.settled_before(call, reply);
        }
        if !mine {
            assert_eq!(*reply, SettledRun::Lost);
            return;
        }
        let expired = self.judged(&call.id, &call.verdict);
        self.take(&call.me);
        let next = call.next.as_ref();
        if let Some(next) = next.filter(|_| !expired) {
            let begun = matches!(reply, SettledRun::Stands(Some(_)));
            self.pass_over(&call.me, begun, self.after(next.retention));
        }
        match (reply, next) {
            (SettledRun::Stands(Some(run)), Some(next)) => {
                let first = self.line().next().map(|job| job.id.clone());
                let first = first.expect("there is no next one");
                assert!(self.watched && self.in_backoff(&first).is_none(), "it is not in turn");
                self.begins(&first, &next.me, next.lease, run);
            }
            (SettledRun::Stands(None), Some(_)) => {
                let first = self.line().next();
                let hidden = expired || first.is_none_or(|job| self.in_backoff(&job.id).is_some());
                assert!(hidden || !self.watched || self.others_wait(&call.me), "it was in turn");
            }
            (reply, _) => assert_eq!(*reply, SettledRun::Stands(None)),
        }
    }

    /// Who looks for the next run ends those in turn that must not run. `gone`: when a dead one is forgotten.
    fn pass_over(&mut self, me: &Token, begun: bool, gone: u64) {
        for _ in 0..8 {
            let Some(first) = self.line().next() else { return };
            let id = first.id.clone();
            let goes_on = self.watched && self.in_backoff(&id).is_none();
            if first.unfit(self.now).is_none() || !goes_on {
                return;
            }
            if !begun && self.others_wait(me) {
                // Whether one of them stands before it is known by the store alone.
                self.unsure = Some((self.now, gone));
                return;
            }
            self.ends_unfit(&id, gone);
        }
    }

    fn ends_unfit(&mut self, id: &JobId, gone: u64) {
        let now = self.now;
        let Some(job) = self.job(id) else { return };
        let Some(state) = job.unfit(now) else { return };
        if job.view.state == JobState::Running {
            job.has_crashed(now);
        }
        job.run = None;
        match state {
            JobState::Dead => job.end(state, "crashed, may have run", (now, gone)),
            _ => job.expire(now),
        }
        self.forget_backoff(id);
    }

    /// What the store says of a job is so, where it can't be known otherwise.
    pub(in crate::store::tests) fn learns(&mut self, id: &JobId, told: Option<&JobView>) {
        let (now, told) = (self.now, told.map(|told| told.state));
        if let Some((_, gone)) = self.unsure.filter(|(at, _)| *at == now) {
            // The lock is not held: one that runs has crashed.
            let unfit = |job: &mut Accepted| job.view.state.is_pending() && job.unfit(now) == told;
            if told.is_some() && self.job(id).is_some_and(unfit) {
                self.ends_unfit(id, gone);
            }
        }
    }

    /// The verdict stands, and what began with it is told again, for as long as it runs.
    fn settled_before(&mut self, call: &Settle, reply: &SettledRun) {
        let next = call.next.as_ref().filter(|next| self.is_held_by(&next.me));
        let runs = |job: &&Accepted| {
            let mine = job.run.as_ref() == next.map(|next| &next.me);
            mine && job.view.state == JobState::Running
        };
        let begun = self.pending().find(runs).map(|job| job.id.clone());
        match (reply, begun, next) {
            (SettledRun::Stands(Some(run)), Some(id), Some(next)) => {
                self.begins(&id, &next.me, next.lease, run);
            }
            (reply, begun, next) => {
                assert_eq!(*reply, SettledRun::Stands(None));
                assert!(begun.is_none() || next.is_none(), "its run goes on");
            }
        }
    }

    /// True if it has to run again, and its time is over.
    fn judged(&mut self, id: &JobId, verdict: &Verdict) -> bool {
        let now = self.now;
        let job = self.job(id).expect("it runs");
        match verdict {
            Verdict::Retry { reason, .. }
            | Verdict::Back { reason, .. }
            | Verdict::Hand { reason, .. }
                if job.is_over(now) =>
            {
                job.has_run(now, reason);
                job.expire(now);
                return true;
            }
            Verdict::Retry { delay, reason } if job.skip => {
                job.has_run(now, reason);
                job.wait(reason);
                job.late = Some(now + millis(*delay));
            }
            Verdict::Back { delay, reason } if job.skip => {
                job.has_run(now, reason);
                job.wait(reason);
                job.view.attempts -= 1;
                job.view.past.busy += u32::from(*reason == "busy");
                job.late = Some(now + millis(*delay));
            }
            Verdict::Done { response, retention } => {
                job.has_run(now, "done");
                job.view.response = Some(response.clone());
                job.end(JobState::Done, "", (now, now + millis(*retention)));
            }
            Verdict::Dead { reason, retention } => {
                job.has_run(now, reason);
                job.end(JobState::Dead, reason, (now, now + millis(*retention)));
            }
            Verdict::Retry { delay, reason } => {
                job.has_run(now, reason);
                job.wait(reason);
                self.back = Some((now + millis(*delay), id.clone()));
            }
            Verdict::Back { delay, reason } | Verdict::Hand { delay, reason } => {
                job.has_run(now, reason);
                job.wait(reason);
                job.view.attempts -= 1;
                job.view.past.busy += u32::from(*reason == "busy");
                self.back = Some((now + millis(*delay), id.clone()));
            }
        }
        false
    }

    pub(in crate::store::tests) fn unclaimed(
        &mut self,
        me: &Token,
        id: Option<&JobId>,
        reply: bool,
    ) {
        let (now, held) = (self.now, self.is_held_by(me));
        // Without a name it is looked for in the line: one that waits outside of it was settled.
        let stands = |job: &Accepted| job.view.state.is_pending() && job.late.is_none();
        let named = |job: &&mut Accepted| id == Some(&job.id) || stands(job);
        let mut known = self.jobs.iter_mut().filter(|job| job.is_kept(now));
        let job = known.find(|job| job.run.as_ref() == Some(me) && named(job));
        let Some(job) = job else {
            assert!(!reply, "nothing runs by this token");
            return;
        };
        if job.view.state != JobState::Running {
            assert!(reply, "it was settled, or undone before");
            return;
        }
        assert_eq!(reply, held);
        if held && job.is_over(now) {
            job.view.attempts -= 1;
            job.expire(now);
            self.take(me);
        } else if held {
            job.wait("not started");
            job.view.attempts -= 1;
            self.back = Some((now + 1, job.id.clone()));
            self.take(me);
        }
    }

    pub(in crate::store::tests) fn redriven(&mut self, id: &JobId, reply: Option<JobState>) {
        let now = self.now;
        let dead =
            |job: &Accepted| job.id == *id && job.is_kept(now) && job.view.state == JobState::Dead;
        let Some(at) = self.jobs.iter().position(dead) else {
            assert_eq!(reply, self.job(id).map(|job| job.view.state));
            return;
        };
        assert_eq!(reply, Some(JobState::Queued));
        let mut job = self.jobs.remove(at);
        job.wait("");
        job.view.reason = None;
        job.view.attempts = 0;
        job.view.past.ended_us = 0;
        (job.run, job.gone, job.exp) = (None, None, None);
        self.jobs.push(job);
    }

    pub(in crate::store::tests) fn purged(&mut self, id: &JobId, reply: bool) {
        let now = self.now;
        let ended =
            |job: &Accepted| job.id == *id && job.is_kept(now) && !job.view.state.is_pending();
        let at = self.jobs.iter().position(ended);
        assert_eq!(reply, at.is_some());
        if let Some(at) = at {
            let record = self.jobs.remove(at).record;
            // The record that it was accepted under, and no other that leads to it.
            self.records.retain(|name, (whose, ..)| Some(name) != record.as_ref() || whose != id);
        }
    }

    pub(in crate::store::tests) fn cancelled(
        &mut self,
        id: &JobId,
        retention: Duration,
        reply: Option<JobState>,
    ) {
        let (now, gone) = (self.now, self.after(retention));
        let Some(job) = self.job(id) else {
            assert_eq!(reply, None);
            return;
        };
        if job.view.state != JobState::Queued {
            assert_eq!(reply, Some(job.view.state));
            return;
        }
        assert_eq!(reply, Some(JobState::Cancelled));
        let reason = job.view.reason.clone().unwrap_or_default();
        job.end(JobState::Cancelled, &reason, (now, gone));
        self.forget_backoff(id);
    }
}

impl Accepted {
    pub(super) fn is_kept(&self, now: u64) -> bool {
        self.gone.is_none_or(|gone| gone >= now)
    }

    fn has_run(&mut self, now: u64, outcome: &str) {
        let Past { began_us, runs, .. } = &mut self.view.past;
        runs.push(format!("{} {began_us} {} {outcome}", self.view.attempts, now * 1000));
        if runs.len() > 20 {
            runs.remove(0);
        }
    }

    fn has_crashed(&mut self, now: u64) {
        self.has_run(now, "crashed");
        self.view.past.crashes += 1;
    }

    /// What becomes of it instead of a run, if nobody runs it.
    fn unfit(&self, now: u64) -> Option<JobState> {
        let spent = !self.again || self.view.attempts >= self.max_attempts;
        let crashed = self.view.state == JobState::Running && spent;
        let over = self.is_over(now).then_some(JobState::Expired);
        if crashed { Some(JobState::Dead) } else { over }
    }

    fn is_over(&self, now: u64) -> bool {
        self.exp.is_some_and(|exp| exp <= now)
    }

    pub(super) fn end(&mut self, state: JobState, reason: &str, (now, gone): (u64, u64)) {
        assert!(self.view.state.is_pending(), "it ends twice");
        self.view.state = state;
        self.view.past.ended_us = now * 1000;
        self.view.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self.gone = Some(gone);
        self.late = None;
    }

    fn wait(&mut self, reason: &str) {
        self.view.state = JobState::Queued;
        self.view.reason = Some(reason.to_owned());
    }
}
