//! Requests under an idempotency record that run at once: `direct.lua` on Redis.

use std::sync::Arc;

use bytes::Bytes;

use super::{job::Job, line::Member, visit::Visit};
use crate::clock::millis;
use crate::store::backend::{BeginDirectOutcome, DirectRunCommand, JobId, JobState};

/// What is found of a run whose process did not renew it in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crashed {
    /// It may run again, and was forgotten with its record.
    Again,
    MustNot,
}

impl Visit<'_> {
    pub(super) fn begin_direct(&mut self, call: &DirectRunCommand) -> BeginDirectOutcome {
        let name = (self.key.clone(), Arc::clone(&call.record_name));
        if let Some((id, _)) = self.records.get(&name, self.now.ms).cloned() {
            if id == call.id {
                return BeginDirectOutcome::Started;
            }
            if !self.settle_crashed(&call.record_name, &id) {
                return BeginDirectOutcome::RecordTaken(id);
            }
        }
        let holds = Member::holds(call.mode, &call.token);
        if self.line.deadline(&holds).is_none_or(|end| end <= self.now.ms) {
            return BeginDirectOutcome::LockLost;
        }
        if let Some(left) = self.records_full(&call.owner, call.limits.owner_records) {
            return BeginDirectOutcome::TooManyRecords(left);
        }
        let end = self.now.after(call.retention.max(call.lease));
        self.put_record(&name, (call.id.clone(), "-".to_owned()), end, &call.owner);
        let job = Job {
            state: JobState::Running,
            attempts: 1,
            owner: call.owner.clone(),
            records: vec![(Arc::clone(&call.record_name), 0)],
            direct: true,
            til: self.now.after(call.lease),
            again: call.retry_after_crash,
            began_us: self.now.us,
            ..Job::new(self.key, self.now)
        };
        self.jobs.put(&call.id, job, Some(end));
        BeginDirectOutcome::Started
    }

    pub(super) fn end_direct(&mut self, call: &DirectRunCommand, response: Option<&Bytes>) -> bool {
        let name = (self.key.clone(), Arc::clone(&call.record_name));
        let record = self.records.get(&name, self.now.ms);
        let mine = record.is_some_and(|(id, _)| *id == call.id);
        let job = self.jobs.get_mut(&call.id, self.now.ms);
        let known = job.is_some();
        let job = job.filter(|job| job.direct && job.state == JobState::Running);
        let runs = job.is_some();
        let end = self.now.after(call.retention);
        if let (Some(job), Some(response)) = (job, response) {
            job.ends(JobState::Done, "", self.now.us);
            job.response = Some(response.clone());
            self.jobs.end_at(&call.id, Some(end));
            self.facts.keep = Some(call.limits.ended_bytes);
            let until = self.now.us + 1000 * millis(call.retention);
            let kept = (until, response.len() as u64);
            let whose = (&call.id, &*call.owner);
            for oldest in self.facts.ended(JobState::Done, whose, kept, self.now) {
                self.facts.entomb(self.jobs, &oldest, self.now);
            }
            if mine {
                let print = call.fingerprint.clone().unwrap_or_else(|| "-".to_owned());
                self.put_record(&name, (call.id.clone(), print), end, &call.owner);
            }
        }
        if response.is_none() && mine && (runs || !known) {
            self.records.remove(&name);
            self.facts.records.remove(&call.owner, &name, self.now);
        }
        if response.is_none() && runs {
            self.jobs.remove(&call.id);
        }
        if runs {
            self.tell_all(&call.id);
        }
        runs
    }

    pub(super) fn renew_direct(&mut self, call: &DirectRunCommand) -> bool {
        let until = self.now.after(call.lease);
        let job = self.jobs.get_mut(&call.id, self.now.ms);
        let Some(job) = job.filter(|job| job.direct && job.state == JobState::Running) else {
            return false;
        };
        job.til = until;
        // Its life may be shorter than its run.
        let end = self.jobs.end_of(&call.id).map(|end| end.max(until));
        self.jobs.end_at(&call.id, end);
        self.keep_record(&call.record_name, &call.id, until);
        true
    }

    pub(super) fn bury_direct(&mut self, call: &DirectRunCommand, reason: &'static str) -> bool {
        let job = self.jobs.get(&call.id, self.now.ms);
        let runs = job.is_some_and(|job| job.direct && job.state == JobState::Running);
        if runs {
            self.facts.keep = Some(call.limits.ended_bytes);
            self.end_as_dead(&call.record_name, &call.id, reason, self.now.after(call.retention));
        }
        runs
    }

    /// Forgets the run that has the record if its process is gone and it may run again.
    fn look_at_direct(&mut self, record: &Arc<str>, id: &JobId) -> Option<Crashed> {
        let job = self.jobs.get(id, self.now.ms)?;
        let runs = job.direct && job.state == JobState::Running;
        if !runs || job.til > self.now.ms {
            return None;
        }
        if !job.again {
            return Some(Crashed::MustNot);
        }
        let (name, owner) = ((self.key.clone(), Arc::clone(record)), job.owner.clone());
        self.records.remove(&name);
        self.facts.records.remove(&owner, &name, self.now);
        self.jobs.remove(id);
        self.tell_all(id);
        Some(Crashed::Again)
    }

    /// True if the record was that of a run that crashed and may run again: it is free now.
    pub(super) fn frees_record(&mut self, record: &Arc<str>, id: &JobId) -> bool {
        self.look_at_direct(record, id) == Some(Crashed::Again)
    }

    /// The same; a run that crashed and must not run again is dead then.
    pub(super) fn settle_crashed(&mut self, record: &Arc<str>, id: &JobId) -> bool {
        let crashed = self.look_at_direct(record, id);
        if crashed == Some(Crashed::MustNot) {
            let until = self.jobs.end_of(id).unwrap_or(self.now.ms + 1);
            self.end_as_dead(record, id, "crashed, may have run", until);
        }
        crashed == Some(Crashed::Again)
    }

    fn end_as_dead(&mut self, record: &Arc<str>, id: &JobId, reason: &'static str, until: u64) {
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else { return };
        job.ends(JobState::Dead, reason, self.now.us);
        let owner = job.owner.clone();
        self.jobs.end_at(id, Some(until));
        self.keep_record(record, id, until);
        let left = until.saturating_sub(self.now.ms);
        let kept = (self.now.us + 1000 * left, 0);
        for oldest in self.facts.ended(JobState::Dead, (id, &owner), kept, self.now) {
            self.facts.entomb(self.jobs, &oldest, self.now);
        }
        self.tell_all(id);
    }

    /// The record of this job is there until then at least.
    fn keep_record(&mut self, record: &Arc<str>, id: &JobId, until: u64) {
        let name = (self.key.clone(), Arc::clone(record));
        if self.records.get(&name, self.now.ms).is_some_and(|(whose, _)| whose == id) {
            let end = self.records.end_of(&name).map_or(until, |end| end.max(until));
            self.records.end_at(&name, Some(end));
            let owner = self.jobs.get(id, self.now.ms).map_or("", |job| &job.owner);
            self.facts.records.set(owner, &name, end, self.now);
        }
    }
}
