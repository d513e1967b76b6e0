//! `claim.lua` and `settle.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{
    line::Member,
    visit::{SCAN, Visit},
};
use crate::{
    clock::millis,
    store::backend::{
        OFFER_TIMEOUT, ClaimCommand, ClaimOutcome, JobId, JobState, LockMode, NextClaim, ClaimedRun, SettleCommand, SettleOutcome,
        LockToken, Settlement,
    },
};

/// Heads of a line that one settlement may find to have ended.
const HEADS: usize = 8;

/// Longest time between two looks of a worker, whatever it hears.
const BEAT: Duration = Duration::from_secs(10);

impl Visit<'_> {
    pub(super) fn claim(&mut self, call: &ClaimCommand) -> ClaimOutcome {
        self.line.park = None;
        let Some((seq, first)) = self.line.first_job().cloned() else {
            self.facts.due.remove(self.key);
            self.line.back.clear();
            return ClaimOutcome::QueueEmpty;
        };
        if first != call.id {
            // An older job has come back in front of a run that goes on: a repeated claim is that run's all the
            // same, or it would be nobody's.
            let begun = self.again(&call.id, &call.token, call.lease);
            return begun.map_or(ClaimOutcome::NotFirst(first), ClaimOutcome::Claimed);
        }
        let job = self.jobs.get(&first, self.now.ms);
        if job.is_some_and(|job| job.run.as_ref() == Some(&call.token)) {
            // A token starts one run. It comes again, late, after that run was settled, given back or
            // lost: nobody would execute another one.
            let again = self.again(&first, &call.token, call.lease);
            return again.map_or(ClaimOutcome::Busy(OFFER_TIMEOUT), ClaimOutcome::Claimed);
        }
        if let Some(not_now) = self.in_its_way(seq, &first) {
            return not_now;
        }
        self.line.back.forget(&first);
        let next = NextClaim { token: call.token.clone(), lease: call.lease, retention: call.retention };
        match self.begin(&first, &next) {
            Some(run) => ClaimOutcome::Claimed(run),
            None => {
                self.move_on();
                ClaimOutcome::Ended(first)
            }
        }
    }

    /// Why the first job can not start now: its backoff, a holder, or a live place before it.
    fn in_its_way(&mut self, seq: u64, id: &JobId) -> Option<ClaimOutcome> {
        let last = self.held_until();
        if let Some(back) = self.backoff(id) {
            self.facts.due.set(self.key, back);
            self.move_on();
            return Some(ClaimOutcome::NotDue(Duration::from_millis(back - self.now.ms)));
        }
        let offered = self.line.deadline(&Member::Job(id.clone())).is_some();
        match last {
            Some(last) if !offered => {
                self.facts.due.set(self.key, last);
                return Some(ClaimOutcome::Busy(Duration::from_millis(last - self.now.ms)));
            }
            // A live place stands before the job: a worker's visit moves the line on for it too.
            None if self.live_head().is_some_and(|place| place.seq < seq) => {
                // A visit has to move what is due, or it would be due at once again.
                self.facts.due.set(self.key, self.accept_until());
                self.move_on();
                return Some(ClaimOutcome::Busy(OFFER_TIMEOUT));
            }
            _ => {}
        }
        self.line.take(&Member::Job(id.clone()));
        None
    }

    /// The run that this token has begun, if it goes on.
    fn again(&mut self, id: &JobId, me: &LockToken, lease: Duration) -> Option<ClaimedRun> {
        let holds = Member::holds(LockMode::Exclusive, me);
        let held = self.line.deadline(&holds).is_some_and(|end| end > self.now.ms);
        let job = self.jobs.get(id, self.now.ms)?;
        if !held || job.state != JobState::Running || job.run.as_ref() != Some(me) {
            return None;
        }
        let run = ClaimedRun {
            id: id.clone(),
            fence: 0,
            attempt: job.attempts,
            envelope: job.envelope.clone(),
            accepted_us: job.accepted_us,
            has_next: self.line.jobs.len() > 1,
        };
        Some(ClaimedRun { fence: self.grant(me, LockMode::Exclusive, lease), ..run })
    }

    /// Starts a run of the first job, or ends the job if it may have none.
    fn begin(&mut self, id: &JobId, next: &NextClaim) -> Option<ClaimedRun> {
        let now = self.now;
        let job = self.jobs.get_mut(id, now.ms)?;
        if job.state == JobState::Running {
            job.crashes += 1;
            job.has_run(now.us, "crashed");
        }
        if let Some((state, reason)) = job.unfit(now.ms) {
            self.bury(id, state, reason, next.retention);
            return None;
        }
        job.state = JobState::Running;
        job.run = Some(next.token.clone());
        job.attempts += 1;
        job.began_us = now.us;
        job.reason = "";
        // As in claim.lua: a beat comes before what is further away.
        match next.lease < BEAT {
            true => self.arm(now.after(next.lease)),
            false => self.facts.due.set(self.key, now.after(next.lease)),
        }
        self.tell_all(id);
        let holds = Member::holds(LockMode::Exclusive, &next.token);
        self.line.put(holds, now.after(next.lease));
        let run = self.again(id, &next.token, next.lease)?;
        self.jobs.get_mut(id, now.ms)?.fence = run.fence;
        Some(run)
    }

    fn bury(&mut self, id: &JobId, state: JobState, reason: &'static str, retention: Duration) {
        self.line.take(&Member::Job(id.clone()));
        let (mut seq, mut bytes, now) = (0, 0, self.now);
        let mut end = now.after(retention);
        if let Some(job) = self.jobs.get_mut(id, now.ms) {
            job.ends(state, reason, now.us);
            // Its last run may still be alive somewhere: it must learn that its verdict is void.
            job.run = None;
            if state == JobState::Expired {
                end = now.after(super::pending::KEPT);
                // Nobody runs it again.
                job.envelope = Bytes::new();
            }
            (seq, bytes) = (job.seq, job.bytes);
        }
        self.finish(seq, id, bytes, state, end);
    }

    /// Takes a job that has ended with its turn out of the line for good; `due` is for those who see what comes
    /// next.
    fn finish(&mut self, seq: u64, id: &JobId, bytes: u64, state: JobState, end: u64) {
        self.jobs.end_at(id, Some(end));
        self.facts.exp.remove(id);
        self.uncount(id, bytes);
        let after = Duration::from_millis(end - self.now.ms);
        let until = self.now.us + 1000 * millis(after);
        let job = self.jobs.get(id, self.now.ms);
        let response = job.and_then(|job| job.response.as_ref());
        let kept = response.map_or(bytes, |response| response.len() as u64);
        let owner = job.map_or("", |job| &job.owner);
        for oldest in self.facts.ended(state, (id, owner), (until, kept), self.now) {
            self.facts.entomb(self.jobs, &oldest, self.now);
        }
        self.line.jobs.remove(&(seq, id.clone()));
        self.left_line(id, bytes);
        self.call_back(id, state == JobState::Dead);
        self.tell_all(id);
    }

    pub(super) fn settle(&mut self, call: SettleCommand) -> SettleOutcome {
        let SettleCommand { id, token: me, settlement: verdict, next_claim: next, .. } = call;
        let run = self.jobs.get(&id, self.now.ms).and_then(|job| job.run.as_ref());
        if run != Some(&me) {
            return SettleOutcome::RunLost;
        }
        if self.jobs.get(&id, self.now.ms).is_some_and(|job| job.state != JobState::Running) {
            return SettleOutcome::Settled(next.and_then(|next| self.repeated(&next)));
        }
        let holds = Member::holds(LockMode::Exclusive, &me);
        let held = self.line.deadline(&holds).is_some_and(|end| end > self.now.ms);
        if !held {
            return SettleOutcome::RunLost;
        }
        self.line.take(&holds);
        if !self.judged(&id, verdict) {
            return SettleOutcome::Settled(None);
        }
        let begun = next.as_ref().and_then(|next| self.begin_next(next));
        if begun.is_none() {
            // The lock is free: moving on says when a worker should look again.
            self.move_on();
        }
        SettleOutcome::Settled(begun)
    }

    /// Writes the verdict down. False if that has moved the line on.
    fn judged(&mut self, id: &JobId, verdict: Settlement) -> bool {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(id, now.ms) else {
            return true;
        };
        let (seq, bytes) = (job.seq, job.bytes);
        let (state, reason, retention) = match job.told(verdict) {
            Settlement::Done { response, status, retention } => {
                job.has_run(now.us, "done");
                job.status = status;
                job.response = Some(response);
                job.envelope = Bytes::new();
                (JobState::Done, "", retention)
            }
            Settlement::Dead { reason, retention } | Settlement::WebhookSettled { reason, retention, .. } => {
                job.has_run(now.us, reason);
                (JobState::Dead, reason, retention)
            }
            Settlement::Retry { delay, reason } => return self.waits(id, delay, reason, (true, true)),
            Settlement::Postpone { delay, reason } => return self.waits(id, delay, reason, (false, true)),
            Settlement::ReturnToQueue { delay, reason } => {
                return self.waits(id, delay, reason, (false, false));
            }
        };
        job.ends(state, reason, now.us);
        self.finish(seq, id, bytes, state, now.after(retention));
        true
    }

    /// The job runs again after a while: at its place, and the others wait, or they pass it meanwhile, if they may and
    /// it is `passed`.
    fn waits(
        &mut self,
        id: &JobId,
        delay: Duration,
        reason: &'static str,
        (charged, passed): (bool, bool),
    ) -> bool {
        let (now, at) = (self.now, self.now.after(delay));
        let Some(job) = self.jobs.get_mut(id, now.ms) else {
            return true;
        };
        job.has_run(now.us, reason);
        if job.exp.is_some_and(|exp| exp <= now.ms) {
            job.waits(reason, charged);
            self.expire_job(id);
            return false;
        }
        job.waits(reason, charged);
        job.busy += u32::from(!charged && reason == "busy");
        let (seq, bytes, skip) = (job.seq, job.bytes, job.skip && passed);
        self.tell_all(id);
        if skip {
            self.line.jobs.remove(&(seq, id.clone()));
            self.put_late(id, at, bytes);
            self.left_line(id, bytes);
        } else {
            self.line.back.set(id, at, now.ms);
        }
        true
    }

    /// The run of the next job that may have one, if it is in turn.
    fn begin_next(&mut self, next: &NextClaim) -> Option<ClaimedRun> {
        for _ in 0..HEADS {
            let (seq, first) = self.line.first_job().cloned()?;
            let before = self.live_head().is_some_and(|place| place.seq < seq);
            let watched = self.facts.watcher(self.now).is_some();
            if before || !watched || self.backoff(&first).is_some() {
                return None;
            }
            // A dead one is left to a visit, which tells of it.
            let job = self.jobs.get(&first, self.now.ms)?;
            if job.unfit(self.now.ms).is_some_and(|(state, _)| state == JobState::Dead) {
                return None;
            }
            let run = self.begin(&first, next);
            if run.is_some() {
                return run;
            }
        }
        None
    }

    /// The job in this line whose run has this token. A running one stands at the front: only those that come
    /// back to an older place can be before it.
    fn of_run(&self, me: &LockToken) -> Option<JobId> {
        let mut jobs = self.line.jobs.iter().take(SCAN).map(|(_, id)| id);
        jobs.find(|id| self.runs_by(id, me)).cloned()
    }

    fn runs_by(&self, id: &JobId, me: &LockToken) -> bool {
        self.jobs.get(id, self.now.ms).is_some_and(|job| job.run.as_ref() == Some(me))
    }

    /// What a call with these tokens has begun before. It begins nothing: it may be a late one, whose caller
    /// has gone.
    fn repeated(&mut self, next: &NextClaim) -> Option<ClaimedRun> {
        let id = self.of_run(&next.token)?;
        self.again(&id, &next.token, next.lease)
    }

    /// The undo of a claim, whichever job it was about.
    pub(super) fn unclaim(&mut self, me: &LockToken, id: Option<JobId>) -> bool {
        let now = self.now.ms;
        let Some(id) = id.filter(|id| self.runs_by(id, me)).or_else(|| self.of_run(me)) else {
            return false;
        };
        let Some(job) = self.jobs.get_mut(&id, now) else {
            return false;
        };
        if job.state != JobState::Running {
            return false;
        }
        let holds = Member::holds(LockMode::Exclusive, me);
        if self.line.deadline(&holds).is_none_or(|end| end <= now) {
            return false;
        }
        self.line.take(&holds);
        // What never began was no run.
        if job.exp.is_some_and(|exp| exp <= now) {
            job.attempts = job.attempts.saturating_sub(1);
            self.expire_job(&id);
            return true;
        }
        job.waits("not started", false);
        self.line.back.set(&id, now + 1, now);
        self.tell_all(&id);
        self.move_on();
        true
    }
}
