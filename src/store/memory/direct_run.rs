//! Direct runs of requests with an idempotency record: `direct_run.lua` of the embedded store.

use std::sync::Arc;

use bytes::Bytes;

use super::{job_record::JobRecord, lock_state::HolderEntry, lock_transaction::LockTransaction};
use crate::clock::ceil_millis;
use crate::store::backend::{BeginDirectOutcome, DirectRunCommand, JobId, JobState};

/// State of a direct run that its process has not renewed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CrashedRun {
    /// It may run again; it was deleted with its record.
    MayRunAgain,
    MustNotRunAgain,
}

impl LockTransaction<'_> {
    pub(super) fn begin_direct(&mut self, call: &DirectRunCommand) -> BeginDirectOutcome {
        let name = (self.key.clone(), Arc::clone(&call.record_name));
        if let Some((id, _)) = self.idempotency_records.get(&name, self.now.ms).cloned() {
            if id == call.id {
                return BeginDirectOutcome::Started;
            }
            if !self.settle_crashed_run(&call.record_name, &id) {
                return BeginDirectOutcome::RecordTaken(id);
            }
        }
        let holds = HolderEntry::holder(call.mode, &call.token);
        if self.lock.deadline_of(&holds).is_none_or(|end| end <= self.now.ms) {
            return BeginDirectOutcome::LockLost;
        }
        if let Some(left) = self.record_limit_wait(&call.owner, call.limits.owner_records) {
            return BeginDirectOutcome::TooManyRecords(left);
        }
        let end = self.now.deadline_after(call.retention.max(call.lease));
        self.insert_record(&name, (call.id.clone(), "-".to_owned()), end, &call.owner);
        let job = JobRecord {
            state: JobState::Running,
            attempts: 1,
            owner: call.owner.clone(),
            idempotency_records: vec![(Arc::clone(&call.record_name), 0)],
            is_direct: true,
            direct_lease_ms: self.now.deadline_after(call.lease),
            retry_after_crash: call.retry_after_crash,
            started_us: self.now.us,
            ..JobRecord::new(self.key, self.now)
        };
        self.jobs.insert(&call.id, job, Some(end));
        BeginDirectOutcome::Started
    }

    pub(super) fn finish_direct(
        &mut self,
        call: &DirectRunCommand,
        response: Option<&Bytes>,
    ) -> bool {
        let name = (self.key.clone(), Arc::clone(&call.record_name));
        let record = self.idempotency_records.get(&name, self.now.ms);
        let mine = record.is_some_and(|(id, _)| *id == call.id);
        let job = self.jobs.get_mut(&call.id, self.now.ms);
        let known = job.is_some();
        let job = job.filter(|job| job.is_direct && job.state == JobState::Running);
        let runs = job.is_some();
        let end = self.now.deadline_after(call.retention);
        if let (Some(job), Some(response)) = (job, response) {
            job.set_ended(JobState::Done, "", self.now.us);
            job.response = Some(response.clone());
            self.jobs.set_expiry(&call.id, Some(end));
            self.shard.max_retained_bytes = Some(call.limits.ended_bytes);
            let until = self.now.us + 1000 * ceil_millis(call.retention);
            let kept = (until, response.len() as u64);
            let whose = (&call.id, &*call.owner);
            for oldest in self.shard.index_ended_job(JobState::Done, whose, kept, self.now) {
                self.shard.leave_tombstone(self.jobs, &oldest, self.now);
            }
            if mine {
                let print = call.fingerprint.clone().unwrap_or_else(|| "-".to_owned());
                self.insert_record(&name, (call.id.clone(), print), end, &call.owner);
            }
        }
        if response.is_none() && mine && (runs || !known) {
            self.idempotency_records.remove(&name);
            self.shard.owner_records.remove(&call.owner, &name, self.now);
        }
        if response.is_none() && runs {
            self.jobs.remove(&call.id);
        }
        if runs {
            self.publish_job_change(&call.id);
        }
        runs
    }

    pub(super) fn renew_direct(&mut self, call: &DirectRunCommand) -> bool {
        let until = self.now.deadline_after(call.lease);
        let job = self.jobs.get_mut(&call.id, self.now.ms);
        let Some(job) = job.filter(|job| job.is_direct && job.state == JobState::Running) else {
            return false;
        };
        job.direct_lease_ms = until;
        // The retention may be shorter than the run.
        let end = self.jobs.expiry_of(&call.id).map(|end| end.max(until));
        self.jobs.set_expiry(&call.id, end);
        self.extend_record(&call.record_name, &call.id, until);
        true
    }

    pub(super) fn mark_direct_dead(
        &mut self,
        call: &DirectRunCommand,
        reason: &'static str,
    ) -> bool {
        let job = self.jobs.get(&call.id, self.now.ms);
        let runs = job.is_some_and(|job| job.is_direct && job.state == JobState::Running);
        if runs {
            self.shard.max_retained_bytes = Some(call.limits.ended_bytes);
            self.finish_direct_as_dead(
                &call.record_name,
                &call.id,
                reason,
                self.now.deadline_after(call.retention),
            );
        }
        runs
    }

    /// Deletes the run that has the record if its lease has expired and it may run again.
    fn reap_crashed_run(&mut self, record: &Arc<str>, id: &JobId) -> Option<CrashedRun> {
        let job = self.jobs.get(id, self.now.ms)?;
        let runs = job.is_direct && job.state == JobState::Running;
        if !runs || job.direct_lease_ms > self.now.ms {
            return None;
        }
        if !job.retry_after_crash {
            return Some(CrashedRun::MustNotRunAgain);
        }
        let (name, owner) = ((self.key.clone(), Arc::clone(record)), job.owner.clone());
        self.idempotency_records.remove(&name);
        self.shard.owner_records.remove(&owner, &name, self.now);
        self.jobs.remove(id);
        self.publish_job_change(id);
        Some(CrashedRun::MayRunAgain)
    }

    /// Returns true if the record belonged to a crashed run that may run again: it is free now.
    pub(super) fn reclaim_crashed_record(&mut self, record: &Arc<str>, id: &JobId) -> bool {
        self.reap_crashed_run(record, id) == Some(CrashedRun::MayRunAgain)
    }

    /// Like `reclaim_crashed_record`, but ends a crashed run that must not run again as dead.
    pub(super) fn settle_crashed_run(&mut self, record: &Arc<str>, id: &JobId) -> bool {
        let crashed = self.reap_crashed_run(record, id);
        if crashed == Some(CrashedRun::MustNotRunAgain) {
            let until = self.jobs.expiry_of(id).unwrap_or(self.now.ms + 1);
            self.finish_direct_as_dead(record, id, "crashed, may have run", until);
        }
        crashed == Some(CrashedRun::MayRunAgain)
    }

    fn finish_direct_as_dead(
        &mut self,
        record: &Arc<str>,
        id: &JobId,
        reason: &'static str,
        until: u64,
    ) {
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else { return };
        job.set_ended(JobState::Dead, reason, self.now.us);
        let owner = job.owner.clone();
        self.jobs.set_expiry(id, Some(until));
        self.extend_record(record, id, until);
        let left = until.saturating_sub(self.now.ms);
        let kept = (self.now.us + 1000 * left, 0);
        for oldest in self.shard.index_ended_job(JobState::Dead, (id, &owner), kept, self.now) {
            self.shard.leave_tombstone(self.jobs, &oldest, self.now);
        }
        self.publish_job_change(id);
    }

    /// Extends the record of this job to `until` at least.
    fn extend_record(&mut self, record: &Arc<str>, id: &JobId, until: u64) {
        let name = (self.key.clone(), Arc::clone(record));
        if self.idempotency_records.get(&name, self.now.ms).is_some_and(|(whose, _)| whose == id) {
            let end = self.idempotency_records.expiry_of(&name).map_or(until, |end| end.max(until));
            self.idempotency_records.set_expiry(&name, Some(end));
            let owner = self.jobs.get(id, self.now.ms).map_or("", |job| &job.owner);
            self.shard.owner_records.set(owner, &name, end, self.now);
        }
    }
}
