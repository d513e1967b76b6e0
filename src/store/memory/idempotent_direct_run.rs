//! Direct runs of requests with an idempotency record: `idempotent_run_record.lua` of the embedded
//! store.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    ended_job_index::EndedJob, idempotency_record_expiry_and_limit::IdempotencyRecord,
    job_record::JobRecord, lock_holders_and_queue::HolderEntry, lock_transaction::LockTransaction,
};
use crate::durations::ceil_millis;
use crate::store::backend::{BeginDirectOutcome, DirectRunCommand, JobId, JobState};

/// State of a direct run that its process has not renewed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CrashedRun {
    /// It may run again; it was deleted with its record.
    MayRunAgain,
    MustNotRunAgain,
}

impl LockTransaction<'_> {
    pub(super) fn begin_direct(&mut self, command: &DirectRunCommand) -> BeginDirectOutcome {
        let name = (self.key.clone(), Arc::clone(&command.record_name));
        if let Some(record) = self.idempotency_records.get(&name, self.now.ms).cloned() {
            if record.job_id == command.id {
                return BeginDirectOutcome::Started;
            }
            if !self.settle_crashed_run(&command.record_name, &record.job_id) {
                return BeginDirectOutcome::RecordTaken(record.job_id);
            }
        }
        let holder = HolderEntry::holder(command.mode, &command.token);
        if self.lock.deadline_of(&holder).is_none_or(|expires_ms| expires_ms <= self.now.ms) {
            return BeginDirectOutcome::LockLost;
        }
        if let Some(wait) = self.record_limit_wait(&command.owner, command.limits.owner_records) {
            return BeginDirectOutcome::TooManyRecords(wait);
        }
        let expires_ms = self.now.deadline_after(command.retention.max(command.lease));
        let record = IdempotencyRecord { job_id: command.id.clone(), fingerprint: "-".to_owned() };
        self.insert_record(&name, record, expires_ms, &command.owner);
        let job = JobRecord {
            state: JobState::Running,
            attempts: 1,
            owner: command.owner.clone(),
            idempotency_records: vec![(Arc::clone(&command.record_name), 0)],
            is_direct: true,
            direct_lease_ms: self.now.deadline_after(command.lease),
            retry_after_crash: command.retry_after_crash,
            started_us: self.now.us,
            ..JobRecord::new(self.key, self.now)
        };
        self.jobs.insert(&command.id, job, Some(expires_ms));
        BeginDirectOutcome::Started
    }

    pub(super) fn finish_direct(
        &mut self,
        command: &DirectRunCommand,
        response: Option<&Bytes>,
    ) -> bool {
        let name = (self.key.clone(), Arc::clone(&command.record_name));
        let record = self.idempotency_records.get(&name, self.now.ms);
        let owns_record = record.is_some_and(|record| record.job_id == command.id);
        let job = self.jobs.get(&command.id, self.now.ms);
        let has_job = job.is_some();
        let is_running = job.is_some_and(|job| job.is_direct && job.state == JobState::Running);
        if let Some(response) = response.filter(|_| is_running) {
            self.store_direct_response(command, response);
            if owns_record {
                let fingerprint = command.fingerprint.clone().unwrap_or_else(|| "-".to_owned());
                let record = IdempotencyRecord { job_id: command.id.clone(), fingerprint };
                let expires_ms = self.now.deadline_after(command.retention);
                self.insert_record(&name, record, expires_ms, &command.owner);
            }
        }
        if response.is_none() && owns_record && (is_running || !has_job) {
            self.idempotency_records.remove(&name);
            self.shard.owner_records.remove(&command.owner, &name, self.now);
        }
        if response.is_none() && is_running {
            self.jobs.remove(&command.id);
        }
        if is_running {
            self.publish_job_change(&command.id);
        }
        is_running
    }

    /// Ends the run as done, and indexes it with its response.
    fn store_direct_response(&mut self, command: &DirectRunCommand, response: &Bytes) {
        let Some(job) = self.jobs.get_mut(&command.id, self.now.ms) else { return };
        job.set_ended(JobState::Done, "", self.now.us);
        job.response = Some(response.clone());
        let expires_ms = self.now.deadline_after(command.retention);
        self.jobs.set_expiry(&command.id, Some(expires_ms));
        self.shard.max_retained_bytes = Some(command.limits.ended_bytes);
        let ended = EndedJob {
            id: &command.id,
            owner: &command.owner,
            expires_us: self.now.us + 1000 * ceil_millis(command.retention),
            bytes: response.len() as u64,
        };
        for evicted in self.shard.index_ended_job(JobState::Done, &ended, self.now) {
            self.shard.leave_tombstone(self.jobs, &evicted, self.now);
        }
    }

    pub(super) fn renew_direct(&mut self, command: &DirectRunCommand) -> bool {
        let lease_end_ms = self.now.deadline_after(command.lease);
        let job = self.jobs.get_mut(&command.id, self.now.ms);
        let Some(job) = job.filter(|job| job.is_direct && job.state == JobState::Running) else {
            return false;
        };
        job.direct_lease_ms = lease_end_ms;
        // The retention may be shorter than the run.
        let expires_ms =
            self.jobs.expiry_of(&command.id).map(|expires_ms| expires_ms.max(lease_end_ms));
        self.jobs.set_expiry(&command.id, expires_ms);
        self.extend_record(&command.record_name, &command.id, lease_end_ms);
        true
    }

    pub(super) fn mark_direct_dead(
        &mut self,
        command: &DirectRunCommand,
        reason: &'static str,
    ) -> bool {
        let job = self.jobs.get(&command.id, self.now.ms);
        let is_running = job.is_some_and(|job| job.is_direct && job.state == JobState::Running);
        if is_running {
            self.shard.max_retained_bytes = Some(command.limits.ended_bytes);
            self.finish_direct_as_dead(
                &command.record_name,
                &command.id,
                reason,
                self.now.deadline_after(command.retention),
            );
        }
        is_running
    }

    /// Deletes the run that has the record if its lease has expired and it may run again.
    fn reap_crashed_run(&mut self, record_name: &Arc<str>, id: &JobId) -> Option<CrashedRun> {
        let job = self.jobs.get(id, self.now.ms)?;
        let is_running = job.is_direct && job.state == JobState::Running;
        if !is_running || job.direct_lease_ms > self.now.ms {
            return None;
        }
        if !job.retry_after_crash {
            return Some(CrashedRun::MustNotRunAgain);
        }
        let (name, owner) = ((self.key.clone(), Arc::clone(record_name)), job.owner.clone());
        self.idempotency_records.remove(&name);
        self.shard.owner_records.remove(&owner, &name, self.now);
        self.jobs.remove(id);
        self.publish_job_change(id);
        Some(CrashedRun::MayRunAgain)
    }

    /// Returns true if the record belonged to a crashed run that may run again: it is free now.
    pub(super) fn reclaim_crashed_record(&mut self, record_name: &Arc<str>, id: &JobId) -> bool {
        self.reap_crashed_run(record_name, id) == Some(CrashedRun::MayRunAgain)
    }

    /// Like `reclaim_crashed_record`, but ends a crashed run that must not run again as dead.
    pub(super) fn settle_crashed_run(&mut self, record_name: &Arc<str>, id: &JobId) -> bool {
        let crashed = self.reap_crashed_run(record_name, id);
        if crashed == Some(CrashedRun::MustNotRunAgain) {
            let expires_ms = self.jobs.expiry_of(id).unwrap_or(self.now.ms + 1);
            self.finish_direct_as_dead(record_name, id, "crashed, may have run", expires_ms);
        }
        crashed == Some(CrashedRun::MayRunAgain)
    }

    fn finish_direct_as_dead(
        &mut self,
        record_name: &Arc<str>,
        id: &JobId,
        reason: &'static str,
        expires_ms: u64,
    ) {
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else { return };
        job.set_ended(JobState::Dead, reason, self.now.us);
        let owner = job.owner.clone();
        self.jobs.set_expiry(id, Some(expires_ms));
        self.extend_record(record_name, id, expires_ms);
        let retention_ms = expires_ms.saturating_sub(self.now.ms);
        let expires_us = self.now.us + 1000 * retention_ms;
        let ended = EndedJob { id, owner: &owner, expires_us, bytes: 0 };
        for evicted in self.shard.index_ended_job(JobState::Dead, &ended, self.now) {
            self.shard.leave_tombstone(self.jobs, &evicted, self.now);
        }
        self.publish_job_change(id);
    }
}
