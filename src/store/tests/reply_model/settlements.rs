//! What a verdict makes of a run, and of those that stand behind it.

use super::{ReplyModel, accepted_job::AcceptedJob};
use crate::{
    durations::ceil_millis,
    store::backend::{
        JobId, JobState, JobView, LockToken, SettleCommand, SettleOutcome, Settlement,
    },
};

impl ReplyModel {
    pub(in crate::store::tests) fn check_settle(
        &mut self,
        call: &SettleCommand,
        reply: &SettleOutcome,
    ) {
        let mine = self.is_held_by(&call.token);
        let job = self.find_job(&call.id).filter(|job| job.run_token.as_ref() == Some(&call.token));
        let Some(job) = job else {
            assert_eq!(*reply, SettleOutcome::RunLost, "not its run");
            return;
        };
        if job.view.state != JobState::Running {
            return self.check_repeated_settle(call, reply);
        }
        if !mine {
            assert_eq!(*reply, SettleOutcome::RunLost);
            return;
        }
        let expired = self.apply_settlement(&call.id, &call.settlement);
        self.remove_holder(&call.token);
        let next = call.next_claim.as_ref();
        if let Some(next) = next.filter(|_| !expired) {
            let begun = matches!(reply, SettleOutcome::Settled(Some(_)));
            self.end_unrunnable_heads(&call.token, begun, self.deadline_after(next.retention));
        }
        match (reply, next) {
            (SettleOutcome::Settled(Some(run)), Some(next)) => {
                let first = self.queued_jobs().next().map(|job| job.id.clone());
                let first = first.expect("there is no next one");
                assert!(self.is_watched && self.backoff_end(&first).is_none(), "it is not in turn");
                self.begin_run(&first, &next.token, next.lease, run);
            }
            (SettleOutcome::Settled(None), Some(_)) => {
                let first = self.queued_jobs().next();
                let hidden = expired || first.is_none_or(|job| self.backoff_end(&job.id).is_some());
                assert!(
                    hidden || !self.is_watched || self.may_others_precede(&call.token),
                    "it was in turn"
                );
            }
            (reply, _) => assert_eq!(*reply, SettleOutcome::Settled(None)),
        }
    }

    /// Who looks for the next run ends those in turn that must not run. `gone`: when a dead one is forgotten.
    pub(super) fn end_unrunnable_heads(&mut self, me: &LockToken, begun: bool, gone: u64) {
        for _ in 0..8 {
            let Some(first) = self.queued_jobs().next() else { return };
            let id = first.id.clone();
            let goes_on = self.is_watched && self.backoff_end(&id).is_none();
            if first.unrunnable_state(self.now_ms).is_none() || !goes_on {
                return;
            }
            if !begun && self.may_others_precede(me) {
                // Whether one of them stands before it is known by the store alone.
                self.uncertain_endings = Some((self.now_ms, gone));
                return;
            }
            self.end_unrunnable_job(&id, gone);
        }
    }

    pub(super) fn end_unrunnable_job(&mut self, id: &JobId, gone: u64) {
        let now = self.now_ms;
        let Some(job) = self.find_job(id) else { return };
        let Some(state) = job.unrunnable_state(now) else { return };
        if job.view.state == JobState::Running {
            job.add_crash(now);
        }
        job.run_token = None;
        match state {
            JobState::Dead => job.finish_as(state, "crashed, may have run", (now, gone)),
            _ => job.expire(now),
        }
        self.clear_backoff(id);
    }

    /// What the store says of a job is so, where it can't be known otherwise.
    pub(in crate::store::tests) fn adopt_uncertain_ending(
        &mut self,
        id: &JobId,
        told: Option<&JobView>,
    ) {
        let (now, told) = (self.now_ms, told.map(|told| told.state));
        if let Some((_, gone)) = self.uncertain_endings.filter(|(at, _)| *at == now) {
            // The lock is not held: one that runs has crashed.
            let unfit = |job: &mut AcceptedJob| {
                job.view.state.is_pending() && job.unrunnable_state(now) == told
            };
            if told.is_some() && self.find_job(id).is_some_and(unfit) {
                self.end_unrunnable_job(id, gone);
            }
        }
    }

    /// The verdict stands, and what began with it is told again, for as long as it runs.
    fn check_repeated_settle(&mut self, call: &SettleCommand, reply: &SettleOutcome) {
        let next = call.next_claim.as_ref().filter(|next| self.is_held_by(&next.token));
        let runs = |job: &&AcceptedJob| {
            let mine = job.run_token.as_ref() == next.map(|next| &next.token);
            mine && job.view.state == JobState::Running
        };
        let begun = self.pending_jobs().find(runs).map(|job| job.id.clone());
        match (reply, begun, next) {
            (SettleOutcome::Settled(Some(run)), Some(id), Some(next)) => {
                self.begin_run(&id, &next.token, next.lease, run);
            }
            (reply, begun, next) => {
                assert_eq!(*reply, SettleOutcome::Settled(None));
                assert!(begun.is_none() || next.is_none(), "its run goes on");
            }
        }
    }

    /// True if it has to run again, and its time is over.
    fn apply_settlement(&mut self, id: &JobId, verdict: &Settlement) -> bool {
        let now = self.now_ms;
        let job = self.find_job(id).expect("it runs");
        match verdict {
            Settlement::Retry { reason, .. }
            | Settlement::Postpone { reason, .. }
            | Settlement::ReturnToQueue { reason, .. }
                if job.is_past_deadline(now) =>
            {
                job.add_run(now, reason);
                job.view.attempts -= u32::from(!matches!(verdict, Settlement::Retry { .. }));
                job.expire(now);
                return true;
            }
            Settlement::Retry { delay, reason } if job.skip_on_failure => {
                job.add_run(now, reason);
                job.requeue(reason);
                job.delayed_until = Some(now + ceil_millis(*delay));
            }
            Settlement::Postpone { delay, reason } if job.skip_on_failure => {
                job.add_run(now, reason);
                job.requeue(reason);
                job.view.attempts -= 1;
                job.view.history.busy_count += u32::from(*reason == "busy");
                job.delayed_until = Some(now + ceil_millis(*delay));
            }
            Settlement::Done { response, retention, .. }
            | Settlement::WebhookSettled { response: Some((response, _)), retention, .. } => {
                job.add_run(now, "done");
                job.view.response = Some(response.clone());
                job.finish_as(JobState::Done, "", (now, now + ceil_millis(*retention)));
            }
            Settlement::Dead { reason, retention }
            | Settlement::WebhookSettled { reason, retention, .. } => {
                job.add_run(now, reason);
                job.finish_as(JobState::Dead, reason, (now, now + ceil_millis(*retention)));
            }
            Settlement::Retry { delay, reason } => {
                job.add_run(now, reason);
                job.requeue(reason);
                self.backoffs.insert(id.clone(), now + ceil_millis(*delay));
            }
            Settlement::Postpone { delay, reason }
            | Settlement::ReturnToQueue { delay, reason } => {
                job.add_run(now, reason);
                job.requeue(reason);
                job.view.attempts -= 1;
                job.view.history.busy_count += u32::from(*reason == "busy");
                self.backoffs.insert(id.clone(), now + ceil_millis(*delay));
            }
        }
        false
    }
}
