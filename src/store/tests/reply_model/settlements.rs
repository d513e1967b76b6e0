//! Checks of settlements: the effect on the run, and on the jobs behind it.

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
        let is_holder = self.is_held_by(&call.token);
        let job = self.find_job(&call.id).filter(|job| job.run_token.as_ref() == Some(&call.token));
        let Some(job) = job else {
            assert_eq!(*reply, SettleOutcome::RunLost, "not its run");
            return;
        };
        if job.view.state != JobState::Running {
            return self.check_repeated_settle(call, reply);
        }
        if !is_holder {
            assert_eq!(*reply, SettleOutcome::RunLost);
            return;
        }
        let ends_chain = self.apply_settlement(&call.id, &call.settlement);
        self.remove_holder(&call.token);
        let next = call.next_claim.as_ref();
        if let Some(next) = next.filter(|_| !ends_chain) {
            let has_next_run = matches!(reply, SettleOutcome::Settled(Some(_)));
            self.end_unrunnable_heads(
                &call.token,
                has_next_run,
                self.deadline_after(next.retention),
            );
        }
        match (reply, next) {
            (SettleOutcome::Settled(Some(run)), Some(next)) => {
                let first = self.queued_jobs().next().map(|job| job.id.clone());
                let first = first.expect("the queue has a next job");
                assert!(
                    self.is_watched && self.backoff_end(&first).is_none(),
                    "the next job could not be claimed"
                );
                self.begin_run(&first, &next.token, next.lease, run);
            }
            (SettleOutcome::Settled(None), Some(_)) => {
                let first = self.queued_jobs().next();
                let has_no_due_job =
                    ends_chain || first.is_none_or(|job| self.backoff_end(&job.id).is_some());
                assert!(
                    has_no_due_job || !self.is_watched || self.may_others_precede(&call.token),
                    "a claimable job was not claimed"
                );
            }
            (reply, _) => assert_eq!(*reply, SettleOutcome::Settled(None)),
        }
    }

    /// Ends the jobs at the head that must not run, as a claim of the next run does. Dead ones
    /// expire at `forgotten_ms`.
    pub(super) fn end_unrunnable_heads(
        &mut self,
        token: &LockToken,
        has_next_run: bool,
        forgotten_ms: u64,
    ) {
        for _ in 0..8 {
            let Some(first) = self.queued_jobs().next() else { return };
            let id = first.id.clone();
            let is_due = self.is_watched && self.backoff_end(&id).is_none();
            if first.unrunnable_state(self.now_ms).is_none() || !is_due {
                return;
            }
            if !has_next_run && self.may_others_precede(token) {
                // Only the store knows whether a waiter precedes the job.
                self.uncertain_endings = Some((self.now_ms, forgotten_ms));
                return;
            }
            self.end_unrunnable_job(&id, forgotten_ms);
        }
    }

    pub(super) fn end_unrunnable_job(&mut self, id: &JobId, forgotten_ms: u64) {
        let now = self.now_ms;
        let Some(job) = self.find_job(id) else { return };
        let Some(state) = job.unrunnable_state(now) else { return };
        if job.view.state == JobState::Running {
            job.add_crash(now);
        }
        job.run_token = None;
        match state {
            JobState::Dead => job.finish_as(state, "crashed, may have run", (now, forgotten_ms)),
            _ => job.expire(now),
        }
        self.clear_backoff(id);
    }

    /// Takes over the store's state of a job where the model cannot predict it.
    pub(in crate::store::tests) fn adopt_uncertain_ending(
        &mut self,
        id: &JobId,
        observed: Option<&JobView>,
    ) {
        let (now, observed) = (self.now_ms, observed.map(|view| view.state));
        if let Some((_, forgotten_ms)) =
            self.uncertain_endings.filter(|(ended_at, _)| *ended_at == now)
        {
            // The lock is free, so a running job has crashed.
            let is_unrunnable = |job: &mut AcceptedJob| {
                job.view.state.is_pending() && job.unrunnable_state(now) == observed
            };
            if observed.is_some() && self.find_job(id).is_some_and(is_unrunnable) {
                self.end_unrunnable_job(id, forgotten_ms);
            }
        }
    }

    /// The settlement stands. The next run that began with it is reported again while it lasts.
    fn check_repeated_settle(&mut self, call: &SettleCommand, reply: &SettleOutcome) {
        let next = call.next_claim.as_ref().filter(|next| self.is_held_by(&next.token));
        let is_next_run = |job: &&AcceptedJob| {
            let has_token = job.run_token.as_ref() == next.map(|next| &next.token);
            has_token && job.view.state == JobState::Running
        };
        let next_id = self.pending_jobs().find(is_next_run).map(|job| job.id.clone());
        match (reply, next_id, next) {
            (SettleOutcome::Settled(Some(run)), Some(id), Some(next)) => {
                self.begin_run(&id, &next.token, next.lease, run);
            }
            (reply, next_id, next) => {
                assert_eq!(*reply, SettleOutcome::Settled(None));
                assert!(next_id.is_none() || next.is_none(), "its run goes on");
            }
        }
    }

    /// Applies a settlement. Returns true if no next run may start with it: the job is cancelled,
    /// or would run again but is past its deadline.
    fn apply_settlement(&mut self, id: &JobId, settlement: &Settlement) -> bool {
        let now = self.now_ms;
        let job = self.find_job(id).expect("it runs");
        match settlement {
            Settlement::Retry { reason, .. }
            | Settlement::Postpone { reason, .. }
            | Settlement::ReturnToQueue { reason, .. }
                if job.is_past_deadline(now) =>
            {
                job.add_run(now, reason);
                job.view.attempts -= u32::from(!matches!(settlement, Settlement::Retry { .. }));
                job.expire(now);
                return true;
            }
            Settlement::Cancelled { retention } => {
                job.add_run(now, "cancelled");
                job.finish_as(JobState::Cancelled, "", (now, now + ceil_millis(*retention)));
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
