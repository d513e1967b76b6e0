//! `enqueue.lua`, `claim.lua`, `settle.lua` and `cancel.lua`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{line::Member, shard::Job, visit::Visit};
use crate::store::backend::{
    ACCEPT_WINDOW, Claim, Claimed, Enqueue, Enqueued, JobId, JobState, Mode, Run, Settle,
    SettledRun, Verdict,
};

impl Visit<'_> {
    pub(super) fn enqueue(&mut self, call: Enqueue) -> Enqueued {
        let id = call.id.clone();
        if let Some(job) = self.jobs.get(&id, self.now.ms) {
            let position = self.line.position(job.seq, &id).unwrap_or(1);
            return Enqueued::Stored { position };
        }
        if let Some(answer) = self.known(&call) {
            return answer;
        }
        let bytes = call.envelope.len() as u64;
        if self.is_full(&call, bytes) {
            return Enqueued::Full;
        }
        let seq = self.next_seq();
        self.facts.jobs += 1;
        self.facts.bytes += bytes;
        self.line.bytes += bytes;
        self.line.jobs.insert((seq, id.clone()));
        if let Some((record, print, life)) = &call.record {
            let end = self.now.after(*life);
            let name = (self.key.clone(), Arc::clone(record));
            self.records.put(&name, (id.clone(), print.clone()), Some(end));
        }
        self.jobs.put(&id, self.new_job(call, seq, bytes), None);
        match self.held_until() {
            Some(last) => {
                self.tell_holders(seq);
                if self.facts.due.get(self.key).is_none() {
                    self.arm(last);
                }
            }
            None => self.move_on(),
        }
        let position = self.line.position(seq, &id).unwrap_or(1);
        Enqueued::Stored { position }
    }

    /// Whether the request was accepted before, or its key was used for another one.
    fn known(&self, call: &Enqueue) -> Option<Enqueued> {
        let (record, print, _) = call.record.as_ref()?;
        let name = (self.key.clone(), Arc::clone(record));
        let (id, old) = self.records.get(&name, self.now.ms)?;
        let same = old == print;
        Some(if same { Enqueued::Known(id.clone()) } else { Enqueued::Mismatch })
    }

    fn is_full(&self, call: &Enqueue, bytes: u64) -> bool {
        let caps = &call.caps;
        self.line.jobs.len() as u64 >= caps.resource_jobs
            || self.line.bytes + bytes > caps.resource_bytes
            || self.facts.jobs >= caps.shard_jobs
            || self.facts.bytes + bytes > caps.shard_bytes
    }

    fn new_job(&self, call: Enqueue, seq: u64, bytes: u64) -> Job {
        Job {
            lock: self.key.clone(),
            seq,
            state: JobState::Queued,
            run: None,
            attempts: 0,
            max_attempts: call.policy.max_attempts,
            again: call.policy.again,
            reason: "",
            owner: call.owner,
            accepted_us: self.now.us,
            bytes,
            envelope: call.envelope,
            response: None,
        }
    }

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

    pub(super) fn cancel(&mut self, id: &JobId, retention: Duration) -> Option<JobState> {
        let job = self.jobs.get_mut(id, self.now.ms)?;
        if job.state != JobState::Queued {
            return Some(job.state);
        }
        job.state = JobState::Cancelled;
        job.envelope = Bytes::new();
        let (seq, bytes) = (job.seq, job.bytes);
        self.jobs.end_at(id, Some(self.now.after(retention)));
        self.end_job(seq, id, bytes);
        self.line.take(&Member::Job(id.clone()));
        self.move_on();
        self.tell_all(id);
        Some(JobState::Cancelled)
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
