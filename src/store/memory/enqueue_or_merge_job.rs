//! Enqueuing of jobs, within the limits of their shard, lock and owner: `enqueue_jobs.lua`.

use std::{sync::Arc, time::Duration};

use super::{
    idempotency_record_expiry_and_limit::IdempotencyRecord, job_record::JobRecord,
    lock_transaction::LockTransaction, pending_job_transitions::DROPPED_JOB_RETENTION,
    shard_state::JobTotals,
};
use crate::store::{
    backend::{EnqueueCommand, EnqueueOutcome, JobId, JobState, MergeMode, OnFailure},
    deferred::{
        OWNERLESS_RESERVED_PART, RESERVED_PART, SHORT_QUEUE_BYTES_PART, SHORT_QUEUE_JOBS,
        SMALL_OWNER_BYTES_PART, SMALL_OWNER_JOBS,
    },
};

/// Retention of a merge group's latest job, from the time at which it may run; and of the target of
/// a merge.
const GROUP_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
const MERGE_RETENTION: Duration = Duration::from_secs(60);

/// Maximum number of idempotency records that end with a job.
const MAX_RECORDS_PER_JOB: usize = 32;

/// Retention of the record of a pending job: longer than any usual wait, but bounded.
pub(super) const MAX_PENDING_RECORD_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Queued job of a merge group.
struct QueuedMergeTarget {
    id: JobId,
    bytes: u64,
}

impl LockTransaction<'_> {
    pub(super) fn enqueue(&mut self, command: EnqueueCommand) -> EnqueueOutcome {
        if let Some(reply) = self.earlier_reply(&command) {
            return reply;
        }
        if command.policy.needs_worker && !self.shard.has_worker(self.now) {
            return EnqueueOutcome::NoWorker;
        }
        let queued =
            command.merge.as_ref().and_then(|merge| self.queued_job_of_group(&merge.group));
        if let (Some(queued), Some(merge)) = (&queued, &command.merge)
            && merge.mode == MergeMode::Coalesce
        {
            if let Some(refusal) = self.check_record_limit(&command) {
                return refusal;
            }
            let expires_ms = self.now.deadline_after(MERGE_RETENTION);
            self.shard.merged_into.insert(&command.id, queued.id.clone(), Some(expires_ms));
            self.merge_into_job(&command, &queued.id);
            return EnqueueOutcome::Merged(queued.id.clone());
        }
        let replaced = queued
            .as_ref()
            .map_or(JobTotals::default(), |queued| JobTotals { jobs: 1, bytes: queued.bytes });
        if self.is_full(&command, replaced) {
            return EnqueueOutcome::Full;
        }
        if let Some(refusal) = self.check_record_limit(&command) {
            return refusal;
        }
        let id = command.id.clone();
        self.store_job(command);
        if let Some(queued) = queued {
            self.end_pending_job(
                &queued.id,
                JobState::Cancelled,
                "superseded",
                DROPPED_JOB_RETENTION,
                Some(id.clone()),
            );
        }
        EnqueueOutcome::Stored { position: self.job_position(&id).unwrap_or(1) }
    }

    /// Returns the outcome of an earlier copy of the request.
    fn earlier_reply(&mut self, command: &EnqueueCommand) -> Option<EnqueueOutcome> {
        if self.jobs.get(&command.id, self.now.ms).is_some() {
            let position = self.job_position(&command.id).unwrap_or(1);
            return Some(EnqueueOutcome::Stored { position });
        }
        if command.merge.is_some()
            && let Some(target) = self.shard.merged_into.get(&command.id, self.now.ms)
        {
            return Some(EnqueueOutcome::Merged(target.clone()));
        }
        let (record_name, fingerprint, _) = command.idempotency_record.as_ref()?;
        let name = (self.key.clone(), Arc::clone(record_name));
        let record = self.idempotency_records.get(&name, self.now.ms)?.clone();
        if self.settle_crashed_run(record_name, &record.job_id) {
            return None;
        }
        // The fingerprint of a direct run is known at its end, if its handler has read the whole
        // body. Until then it is `-`, which matches every request.
        let matches = record.fingerprint == *fingerprint || record.fingerprint == "-";
        Some(if matches {
            EnqueueOutcome::Duplicate(record.job_id)
        } else {
            EnqueueOutcome::FingerprintMismatch
        })
    }

    /// Returns the position from 1, 0 for a delayed job, `None` for a job that does not wait.
    fn job_position(&self, id: &JobId) -> Option<u64> {
        let job = self.jobs.get(id, self.now.ms)?;
        let delayed_position = self.shard.delayed_jobs.get(id).map(|_| 0);
        self.lock.job_position(job.seq, id).or(delayed_position)
    }

    /// Returns the queued job of this group. A job past its deadline ends here: if
    /// no worker has ended it yet, the new request would end with it.
    fn queued_job_of_group(&mut self, group: &Arc<str>) -> Option<QueuedMergeTarget> {
        let name = (self.key.clone(), Arc::clone(group));
        let id = self.shard.latest_by_group.get(&name, self.now.ms)?.clone();
        let job = self.jobs.get(&id, self.now.ms)?;
        let bytes = job.bytes;
        let is_expired = job.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= self.now.ms);
        if job.state != JobState::Queued || self.job_position(&id).is_none() {
            return None;
        }
        if is_expired {
            self.expire_job(&id);
            return None;
        }
        Some(QueuedMergeTarget { id, bytes })
    }

    fn insert_request_record(&mut self, command: &EnqueueCommand, id: &JobId, is_pending: bool) {
        if let Some((record_name, fingerprint, retention)) = &command.idempotency_record {
            let expires_ms = self.now.deadline_after(if is_pending {
                (*retention).max(MAX_PENDING_RECORD_RETENTION)
            } else {
                *retention
            });
            let name = (self.key.clone(), Arc::clone(record_name));
            let record = IdempotencyRecord { job_id: id.clone(), fingerprint: fingerprint.clone() };
            self.insert_record(&name, record, expires_ms, &command.owner);
        }
    }

    fn check_record_limit(&mut self, command: &EnqueueCommand) -> Option<EnqueueOutcome> {
        command.idempotency_record.as_ref()?;
        let wait = self.record_limit_wait(&command.owner, command.limits.owner_records)?;
        Some(EnqueueOutcome::TooManyRecords(wait))
    }

    /// Adds a merged request's record to the job, so that it lives as long as the job's own. Beyond
    /// `MAX_RECORDS_PER_JOB`, a record lives only for its own retention.
    fn merge_into_job(&mut self, command: &EnqueueCommand, id: &JobId) {
        let now = self.now;
        let job = self
            .jobs
            .get_mut(id, now.ms)
            .filter(|job| job.idempotency_records.len() < MAX_RECORDS_PER_JOB);
        let is_added = job.is_some();
        if let (Some(job), Some((record_name, _, retention))) = (job, &command.idempotency_record) {
            job.idempotency_records.push((Arc::clone(record_name), now.deadline_after(*retention)));
        }
        self.insert_request_record(command, id, is_added);
    }

    /// Returns true if a limit is reached. `replaced` is the job that the new one replaces, if any.
    fn is_full(&self, command: &EnqueueCommand, replaced: JobTotals) -> bool {
        let (limits, bytes) = (&command.limits, command.stored_bytes());
        let lock_totals = self.lock_totals();
        lock_totals.jobs >= limits.resource_jobs.saturating_add(replaced.jobs)
            || lock_totals.bytes + bytes > limits.resource_bytes.saturating_add(replaced.bytes)
            || self.shard.job_count >= limits.shard_jobs.saturating_add(replaced.jobs)
            || self.shard.job_bytes + bytes > limits.shard_bytes.saturating_add(replaced.bytes)
            || self.is_full_for_owner(command, replaced)
            || !self.fits_outside_reserve(RESERVED_PART, command, replaced)
                && !self.may_use_reserve(command, replaced)
    }

    /// Returns the queued and delayed jobs of this lock.
    fn lock_totals(&self) -> JobTotals {
        let delayed = self.shard.delayed_totals.get(self.key).copied().unwrap_or_default();
        JobTotals {
            jobs: self.lock.jobs.len() as u64 + delayed.jobs,
            bytes: self.lock.job_bytes + delayed.bytes,
        }
    }

    fn owner_totals(&self, command: &EnqueueCommand) -> JobTotals {
        self.shard.owner_totals.get(&command.owner).copied().unwrap_or_default()
    }

    fn is_full_for_owner(&self, command: &EnqueueCommand, replaced: JobTotals) -> bool {
        let (limits, owner_totals) = (&command.limits, self.owner_totals(command));
        let bytes = owner_totals.bytes + command.stored_bytes();
        !command.owner.is_empty()
            && (owner_totals.jobs >= limits.owner_jobs.saturating_add(replaced.jobs)
                || bytes > limits.owner_bytes.saturating_add(replaced.bytes))
    }

    /// Returns true if the shard has room for the job outside of the reserved part. A job that
    /// replaces another one needs room only for its additional bytes.
    fn fits_outside_reserve(
        &self,
        reserved_part: u64,
        command: &EnqueueCommand,
        replaced: JobTotals,
    ) -> bool {
        let (max_jobs, max_bytes) = command.limits.shard_limits_without(reserved_part);
        let added_bytes = command.stored_bytes().saturating_sub(replaced.bytes);
        (replaced.jobs > 0 || self.shard.job_count < max_jobs)
            && (added_bytes == 0 || self.shard.job_bytes + added_bytes <= max_bytes)
    }

    /// Returns true if the job's lock has a short queue and its owner few jobs.
    fn may_use_reserve(&self, command: &EnqueueCommand, replaced: JobTotals) -> bool {
        let shard_bytes = command.limits.shard_bytes;
        let is_small = |totals: JobTotals, max_jobs: u64, bytes_part: u64| {
            let jobs = totals.jobs.saturating_sub(replaced.jobs);
            let bytes = (totals.bytes + command.stored_bytes()).saturating_sub(replaced.bytes);
            jobs < max_jobs && (jobs == 0 || bytes <= shard_bytes / bytes_part)
        };
        is_small(self.lock_totals(), SHORT_QUEUE_JOBS, SHORT_QUEUE_BYTES_PART)
            && match &*command.owner {
                "" => self.fits_outside_reserve(OWNERLESS_RESERVED_PART, command, replaced),
                _ => is_small(self.owner_totals(command), SMALL_OWNER_JOBS, SMALL_OWNER_BYTES_PART),
            }
    }

    fn store_job(&mut self, command: EnqueueCommand) {
        let (id, bytes, delay) = (command.id.clone(), command.stored_bytes(), command.policy.delay);
        self.shard.max_retained_bytes = Some(command.limits.ended_bytes);
        let seq = self.next_seq();
        self.insert_request_record(&command, &id, true);
        if let Some(merge) = &command.merge {
            let expires_ms = self.now.deadline_after(GROUP_RETENTION.saturating_add(delay));
            let name = (self.key.clone(), Arc::clone(&merge.group));
            self.shard.latest_by_group.insert(&name, id.clone(), Some(expires_ms));
        }
        let deadline_ms = command
            .policy
            .deadline
            .map(|deadline| self.now.deadline_after(deadline.max(Duration::from_millis(1))));
        if let Some(deadline_ms) = deadline_ms {
            self.schedule_job(deadline_ms, |state| &mut state.deadline_index, &id);
        }
        self.shard.count_job(&command.owner, bytes);
        self.jobs.insert(&id, self.new_job(command, seq, deadline_ms, bytes), None);
        if delay.is_zero() {
            self.insert_into_queue(seq, &id, bytes);
        } else {
            self.delay_job(&id, self.now.earliest_after(delay), bytes);
        }
    }

    fn new_job(
        &self,
        command: EnqueueCommand,
        seq: u64,
        deadline_ms: Option<u64>,
        bytes: u64,
    ) -> JobRecord {
        JobRecord {
            seq,
            deadline_ms,
            bytes,
            state: JobState::Queued,
            max_attempts: command.policy.max_attempts,
            retry_after_crash: command.policy.retry_after_crash,
            allows_overtaking: command.policy.on_failure == OnFailure::Skip,
            owner: command.owner,
            route: command.route,
            idempotency_records: command
                .idempotency_record
                .map(|(name, _, retention)| (name, self.now.deadline_after(retention)))
                .into_iter()
                .collect(),
            webhook: command.webhook,
            envelope: command.envelope,
            ..JobRecord::new(self.key, self.now)
        }
    }
}
