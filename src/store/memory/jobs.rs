//! `claim.lua` and `settle.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{line::Member, shard::Job, visit::Visit};
use crate::store::backend::{
    ACCEPT_WINDOW, Claim, Claimed, JobId, JobState, Mode, Run, Settle, SettledRun, Verdict,
};

impl Visit<'_> {
    pub(super) fn claim(&mut self, call: &Claim) -> Claimed {
        self.line.park = None;
        let Some((seq, first)) = self.line.first_job().cloned() else {
            self.facts.due.remove(self.key);
            return Claimed::Empty;
        };
        if first != call.id {
            return Claimed::Moved(first);
        }
        let last = self.held_until();
        if let Some(state) = self.began(call) {
            let holds = Member::holds(Mode::Exclusive, &call.me);
            return match self.line.deadline(&holds) {
                Some(_) if state == JobState::Running => self.run(call, false),
                // A token starts one run. It comes again, late, after that run was settled, given
                // back or lost: nobody would execute another one.
                _ => Claimed::Busy(ACCEPT_WINDOW),
            };
        }
        if let Some(not_now) = self.in_its_way(seq, &first, last) {
            return not_now;
        }
        if self.has_crashed(&first) {
            return self.bury(seq, first, call.retention);
        }
        self.line.take(&Member::Job(first));
        self.line.back = None;
        self.facts.due.set(self.key, self.now.after(call.lease));
        self.run(call, true)
    }

    /// Why the first job can not start now: its backoff, a holder, or a live place before it.
    fn in_its_way(&mut self, seq: u64, id: &JobId, last: Option<u64>) -> Option<Claimed> {
        if let Some(back) = self.line.back.filter(|back| *back > self.now.ms) {
            self.facts.due.set(self.key, back);
            self.move_on();
            return Some(Claimed::Later(Duration::from_millis(back - self.now.ms)));
        }
        let offered = self.line.deadline(&Member::Job(id.clone())).is_some();
        match last {
            Some(last) if !offered => {
                self.facts.due.set(self.key, last);
                return Some(Claimed::Busy(Duration::from_millis(last - self.now.ms)));
            }
            // A live place stands before the job: a worker's visit moves the line on for it too.
            None if self.live_head().is_some_and(|place| place.seq < seq) => {
                // A visit has to move what is due, or it would be due at once again.
                self.facts.due.set(self.key, self.accept_until());
                self.move_on();
                return Some(Claimed::Busy(ACCEPT_WINDOW));
            }
            _ => {}
        }
        None
    }

    /// The job's state, if its latest run began with this token.
    fn began(&self, call: &Claim) -> Option<JobState> {
        let job = self.jobs.get(&call.id, self.now.ms);
        let began = job.filter(|job| job.run.as_ref() == Some(&call.me));
        began.map(|job| job.state)
    }

    /// It was running and its token is gone from h: its worker died or was paused past its lease.
    /// False if it may run again.
    fn has_crashed(&self, id: &JobId) -> bool {
        let job = self.jobs.get(id, self.now.ms);
        job.is_none_or(|job| {
            let spent = !job.again || job.attempts >= job.max_attempts;
            job.state == JobState::Running && spent
        })
    }

    /// Grants the lock to the job's run; a fresh one is a new attempt.
    fn run(&mut self, call: &Claim, fresh: bool) -> Claimed {
        let Some(job) = self.jobs.get_mut(&call.id, self.now.ms) else {
            // `has_crashed` or `began` has found it in this same step.
            return Claimed::Empty;
        };
        if fresh {
            job.state = JobState::Running;
            job.run = Some(call.me.clone());
            job.attempts += 1;
            job.reason = "";
        }
        let (attempt, accepted_us) = (job.attempts, job.accepted_us);
        let envelope = job.envelope.clone();
        let fence = self.grant(&call.me, Mode::Exclusive, call.lease);
        if fresh {
            self.tell_all(&call.id);
        }
        Claimed::Claimed(Run { id: call.id.clone(), fence, attempt, envelope, accepted_us })
    }

    fn bury(&mut self, seq: u64, id: JobId, retention: Duration) -> Claimed {
        self.line.take(&Member::Job(id.clone()));
        let mut bytes = 0;
        if let Some(job) = self.jobs.get_mut(&id, self.now.ms) {
            job.state = JobState::Dead;
            job.reason = "crashed, may have run";
            // Its last run may still be alive somewhere: it must learn that its verdict is void.
            job.run = None;
            bytes = job.bytes;
        }
        self.jobs.end_at(&id, Some(self.now.after(retention)));
        self.end_job(seq, &id, bytes);
        self.move_on();
        self.tell_all(&id);
        Claimed::Dead(id)
    }

    pub(super) fn settle(&mut self, call: Settle) -> SettledRun {
        let Settle { id, me, verdict, .. } = call;
        let now = self.now.ms;
        let Some(job) = self.jobs.get_mut(&id, now).filter(|job| job.run.as_ref() == Some(&me))
        else {
            return SettledRun::Lost;
        };
        if job.state != JobState::Running {
            return SettledRun::Stands(None);
        }
        let holds = Member::holds(Mode::Exclusive, &me);
        if self.line.deadline(&holds).is_none_or(|deadline| deadline <= now) {
            return SettledRun::Lost;
        }
        self.line.take(&holds);
        let (seq, bytes) = (job.seq, job.bytes);
        match decide(job, verdict) {
            After::Ended(retention) => {
                self.jobs.end_at(&id, Some(self.now.after(retention)));
                self.end_job(seq, &id, bytes);
            }
            After::Waits(delay) => {
                let at = self.now.after(delay);
                self.line.back = Some(at);
                self.facts.due.set(self.key, at);
            }
        }
        self.move_on();
        self.tell_all(&id);
        SettledRun::Stands(None)
    }
}

/// What a verdict makes of the job, and for how long.
enum After {
    Ended(Duration),
    Waits(Duration),
}

fn decide(job: &mut Job, verdict: Verdict) -> After {
    match verdict {
        Verdict::Done { response, retention } => {
            job.state = JobState::Done;
            job.reason = "";
            job.response = Some(response);
            job.envelope = Bytes::new();
            After::Ended(retention)
        }
        Verdict::Dead { reason, retention } => {
            job.state = JobState::Dead;
            job.reason = reason;
            After::Ended(retention)
        }
        Verdict::Retry { delay, reason } => {
            job.state = JobState::Queued;
            job.reason = reason;
            After::Waits(delay)
        }
        Verdict::Back { delay, reason } => {
            job.state = JobState::Queued;
            job.reason = reason;
            job.attempts = job.attempts.saturating_sub(1);
            After::Waits(delay)
        }
    }
}
