//! What a verdict makes of a run, and of those that stand behind it.

use super::{Truth, jobs::Accepted};
use crate::{
    clock::ceil_millis,
    store::backend::{
        JobId, JobState, JobView, LockToken, SettleCommand, SettleOutcome, Settlement,
    },
};

impl Truth {
    pub(in crate::store::tests) fn settled(&mut self, call: &SettleCommand, reply: &SettleOutcome) {
        let mine = self.is_held_by(&call.token);
        let job = self.job(&call.id).filter(|job| job.run.as_ref() == Some(&call.token));
        let Some(job) = job else {
            assert_eq!(*reply, SettleOutcome::RunLost, "not its run");
            return;
        };
        if job.view.state != JobState::Running {
            return self.settled_before(call, reply);
        }
        if !mine {
            assert_eq!(*reply, SettleOutcome::RunLost);
            return;
        }
        let expired = self.judged(&call.id, &call.settlement);
        self.take(&call.token);
        let next = call.next_claim.as_ref();
        if let Some(next) = next.filter(|_| !expired) {
            let begun = matches!(reply, SettleOutcome::Settled(Some(_)));
            self.pass_over(&call.token, begun, self.after(next.retention));
        }
        match (reply, next) {
            (SettleOutcome::Settled(Some(run)), Some(next)) => {
                let first = self.line().next().map(|job| job.id.clone());
                let first = first.expect("there is no next one");
                assert!(self.watched && self.in_backoff(&first).is_none(), "it is not in turn");
                self.begins(&first, &next.token, next.lease, run);
            }
            (SettleOutcome::Settled(None), Some(_)) => {
                let first = self.line().next();
                let hidden = expired || first.is_none_or(|job| self.in_backoff(&job.id).is_some());
                assert!(hidden || !self.watched || self.others_wait(&call.token), "it was in turn");
            }
            (reply, _) => assert_eq!(*reply, SettleOutcome::Settled(None)),
        }
    }

    /// Who looks for the next run ends those in turn that must not run. `gone`: when a dead one is forgotten.
    pub(super) fn pass_over(&mut self, me: &LockToken, begun: bool, gone: u64) {
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

    pub(super) fn ends_unfit(&mut self, id: &JobId, gone: u64) {
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
    fn settled_before(&mut self, call: &SettleCommand, reply: &SettleOutcome) {
        let next = call.next_claim.as_ref().filter(|next| self.is_held_by(&next.token));
        let runs = |job: &&Accepted| {
            let mine = job.run.as_ref() == next.map(|next| &next.token);
            mine && job.view.state == JobState::Running
        };
        let begun = self.pending().find(runs).map(|job| job.id.clone());
        match (reply, begun, next) {
            (SettleOutcome::Settled(Some(run)), Some(id), Some(next)) => {
                self.begins(&id, &next.token, next.lease, run);
            }
            (reply, begun, next) => {
                assert_eq!(*reply, SettleOutcome::Settled(None));
                assert!(begun.is_none() || next.is_none(), "its run goes on");
            }
        }
    }

    /// True if it has to run again, and its time is over.
    fn judged(&mut self, id: &JobId, verdict: &Settlement) -> bool {
        let now = self.now;
        let job = self.job(id).expect("it runs");
        match verdict {
            Settlement::Retry { reason, .. }
            | Settlement::Postpone { reason, .. }
            | Settlement::ReturnToQueue { reason, .. }
                if job.is_over(now) =>
            {
                job.has_run(now, reason);
                job.view.attempts -= u32::from(!matches!(verdict, Settlement::Retry { .. }));
                job.expire(now);
                return true;
            }
            Settlement::Retry { delay, reason } if job.skip => {
                job.has_run(now, reason);
                job.wait(reason);
                job.late = Some(now + ceil_millis(*delay));
            }
            Settlement::Postpone { delay, reason } if job.skip => {
                job.has_run(now, reason);
                job.wait(reason);
                job.view.attempts -= 1;
                job.view.history.busy_count += u32::from(*reason == "busy");
                job.late = Some(now + ceil_millis(*delay));
            }
            Settlement::Done { response, retention, .. }
            | Settlement::WebhookSettled { response: Some((response, _)), retention, .. } => {
                job.has_run(now, "done");
                job.view.response = Some(response.clone());
                job.end(JobState::Done, "", (now, now + ceil_millis(*retention)));
            }
            Settlement::Dead { reason, retention }
            | Settlement::WebhookSettled { reason, retention, .. } => {
                job.has_run(now, reason);
                job.end(JobState::Dead, reason, (now, now + ceil_millis(*retention)));
            }
            Settlement::Retry { delay, reason } => {
                job.has_run(now, reason);
                job.wait(reason);
                self.back.insert(id.clone(), now + ceil_millis(*delay));
            }
            Settlement::Postpone { delay, reason }
            | Settlement::ReturnToQueue { delay, reason } => {
                job.has_run(now, reason);
                job.wait(reason);
                job.view.attempts -= 1;
                job.view.history.busy_count += u32::from(*reason == "busy");
                self.back.insert(id.clone(), now + ceil_millis(*delay));
            }
        }
        false
    }
}
