//! `enqueue_batch.lua`.

use std::{sync::Arc, time::Duration};

use super::{
    job_record::JobRecord, lock_transaction::LockTransaction, pending_jobs::DROPPED_JOB_RETENTION,
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

impl LockTransaction<'_> {
    pub(super) fn enqueue(&mut self, call: EnqueueCommand) -> EnqueueOutcome {
        if let Some(answer) = self.earlier_reply(&call) {
            return answer;
        }
        if call.policy.needs_worker && !self.shard.has_worker(self.now) {
            return EnqueueOutcome::NoWorker;
        }
        let old = call.merge.as_ref().and_then(|merge| self.queued_job_of_group(&merge.group));
        if let (Some((old, _)), Some(merge)) = (&old, &call.merge)
            && merge.mode == MergeMode::Coalesce
        {
            if let Some(full) = self.check_record_limit(&call) {
                return full;
            }
            let end = self.now.deadline_after(MERGE_RETENTION);
            self.shard.merged_into.insert(&call.id, old.clone(), Some(end));
            self.merge_into_job(&call, old);
            return EnqueueOutcome::Merged(old.clone());
        }
        if self.is_full(&call, old.as_ref().map(|(_, bytes)| *bytes)) {
            return EnqueueOutcome::Full;
        }
        if let Some(full) = self.check_record_limit(&call) {
            return full;
        }
        let id = call.id.clone();
        self.store_job(call);
        if let Some((old, _)) = old {
            let by = Some(id.clone());
            self.end_pending_job(
                &old,
                JobState::Cancelled,
                "superseded",
                DROPPED_JOB_RETENTION,
                by,
            );
        }
        EnqueueOutcome::Stored { position: self.job_position(&id).unwrap_or(1) }
    }

    /// Returns the outcome of an earlier copy of the request.
    fn earlier_reply(&mut self, call: &EnqueueCommand) -> Option<EnqueueOutcome> {
        if self.jobs.get(&call.id, self.now.ms).is_some() {
            let position = self.job_position(&call.id).unwrap_or(1);
            return Some(EnqueueOutcome::Stored { position });
        }
        if call.merge.is_some()
            && let Some(other) = self.shard.merged_into.get(&call.id, self.now.ms)
        {
            return Some(EnqueueOutcome::Merged(other.clone()));
        }
        let (record, print, _) = call.idempotency_record.as_ref()?;
        let name = (self.key.clone(), Arc::clone(record));
        let (id, old) = self.idempotency_records.get(&name, self.now.ms)?.clone();
        if self.settle_crashed_run(record, &id) {
            return None;
        }
        // The fingerprint of a direct run is known at its end, if its handler has read the whole
        // body. Until then it is `-`, which matches every request.
        let same = old == *print || old == "-";
        Some(if same { EnqueueOutcome::Duplicate(id) } else { EnqueueOutcome::FingerprintMismatch })
    }

    /// Returns the position from 1, 0 for a delayed job, `None` for a job that does not wait.
    fn job_position(&self, id: &JobId) -> Option<u64> {
        let job = self.jobs.get(id, self.now.ms)?;
        let late = self.shard.delayed_jobs.get(id).map(|_| 0);
        self.lock.job_position(job.seq, id).or(late)
    }

    /// Returns the queued job of this group, and its bytes. A job past its deadline ends here: if
    /// no worker has ended it yet, the new request would end with it.
    fn queued_job_of_group(&mut self, group: &Arc<str>) -> Option<(JobId, u64)> {
        let name = (self.key.clone(), Arc::clone(group));
        let id = self.shard.latest_by_group.get(&name, self.now.ms)?.clone();
        let job = self.jobs.get(&id, self.now.ms)?;
        let (bytes, is_over) = (job.bytes, job.deadline_ms.is_some_and(|exp| exp <= self.now.ms));
        if job.state != JobState::Queued || self.job_position(&id).is_none() {
            return None;
        }
        if is_over {
            self.expire_job(&id);
            return None;
        }
        Some((id, bytes))
    }

    fn insert_request_record(&mut self, call: &EnqueueCommand, id: &JobId, pending: bool) {
        if let Some((record, print, life)) = &call.idempotency_record {
            let end = self.now.deadline_after(if pending {
                (*life).max(MAX_PENDING_RECORD_RETENTION)
            } else {
                *life
            });
            let name = (self.key.clone(), Arc::clone(record));
            self.insert_record(&name, (id.clone(), print.clone()), end, &call.owner);
        }
    }

    fn check_record_limit(&mut self, call: &EnqueueCommand) -> Option<EnqueueOutcome> {
        call.idempotency_record.as_ref()?;
        let left = self.record_limit_wait(&call.owner, call.limits.owner_records)?;
        Some(EnqueueOutcome::TooManyRecords(left))
    }

    /// Adds a merged request's record to the job, so that it lives as long as the job's own. Beyond
    /// `MAX_RECORDS_PER_JOB`, a record lives only for its own retention.
    fn merge_into_job(&mut self, call: &EnqueueCommand, id: &JobId) {
        let now = self.now;
        let job = self
            .jobs
            .get_mut(id, now.ms)
            .filter(|job| job.idempotency_records.len() < MAX_RECORDS_PER_JOB);
        let joins = job.is_some();
        if let (Some(job), Some((record, _, life))) = (job, &call.idempotency_record) {
            job.idempotency_records.push((Arc::clone(record), now.deadline_after(*life)));
        }
        self.insert_request_record(call, id, joins);
    }

    /// Returns true if a limit is reached. `old` is the size in bytes of a job that is replaced.
    fn is_full(&self, call: &EnqueueCommand, old: Option<u64>) -> bool {
        let (caps, bytes) = (&call.limits, call.stored_bytes());
        let (late, late_bytes) =
            self.shard.delayed_totals.get(self.key).copied().unwrap_or_default();
        let (one, less) = (u64::from(old.is_some()), old.unwrap_or(0));
        self.lock.jobs.len() as u64 + late >= caps.resource_jobs.saturating_add(one)
            || self.lock.job_bytes + late_bytes + bytes > caps.resource_bytes.saturating_add(less)
            || self.shard.job_count >= caps.shard_jobs.saturating_add(one)
            || self.shard.job_bytes + bytes > caps.shard_bytes.saturating_add(less)
            || self.is_full_for_owner(call, one, less)
            || !self.fits_outside_reserve(RESERVED_PART, call, old)
                && !self.may_use_reserve(call, old)
    }

    fn is_full_for_owner(&self, call: &EnqueueCommand, one: u64, less: u64) -> bool {
        let (caps, bytes) = (&call.limits, call.stored_bytes());
        let (jobs, used) = self.shard.owner_totals.get(&call.owner).copied().unwrap_or_default();
        !call.owner.is_empty()
            && (jobs >= caps.owner_jobs.saturating_add(one)
                || used + bytes > caps.owner_bytes.saturating_add(less))
    }

    /// Returns true if the shard has room for the job outside of the reserved part. A job that
    /// replaces another one needs room only for its additional bytes.
    fn fits_outside_reserve(&self, part: u64, call: &EnqueueCommand, old: Option<u64>) -> bool {
        let (jobs, bytes) = call.limits.shard_limits_without(part);
        let more = call.stored_bytes().saturating_sub(old.unwrap_or(0));
        (old.is_some() || self.shard.job_count < jobs)
            && (more == 0 || self.shard.job_bytes + more <= bytes)
    }

    /// Returns true if the job's lock has a short queue and its owner few jobs.
    fn may_use_reserve(&self, call: &EnqueueCommand, old: Option<u64>) -> bool {
        let (most, bytes) = (call.limits.shard_bytes, call.stored_bytes());
        let (one, less) = (u64::from(old.is_some()), old.unwrap_or(0));
        let is_small = |(jobs, used): (u64, u64), few: u64, part: u64| {
            let (jobs, used) = (jobs.saturating_sub(one), (used + bytes).saturating_sub(less));
            jobs < few && (jobs == 0 || used <= most / part)
        };
        let (late, late_bytes) =
            self.shard.delayed_totals.get(self.key).copied().unwrap_or_default();
        let here = (self.lock.jobs.len() as u64 + late, self.lock.job_bytes + late_bytes);
        let owned = self.shard.owner_totals.get(&call.owner).copied().unwrap_or_default();
        is_small(here, SHORT_QUEUE_JOBS, SHORT_QUEUE_BYTES_PART)
            && match &*call.owner {
                "" => self.fits_outside_reserve(OWNERLESS_RESERVED_PART, call, old),
                _ => is_small(owned, SMALL_OWNER_JOBS, SMALL_OWNER_BYTES_PART),
            }
    }

    fn store_job(&mut self, call: EnqueueCommand) {
        let (id, bytes, delay) = (call.id.clone(), call.stored_bytes(), call.policy.delay);
        self.shard.max_retained_bytes = Some(call.limits.ended_bytes);
        let seq = self.next_seq();
        self.insert_request_record(&call, &id, true);
        if let Some(merge) = &call.merge {
            let end = self.now.deadline_after(GROUP_RETENTION.saturating_add(delay));
            let name = (self.key.clone(), Arc::clone(&merge.group));
            self.shard.latest_by_group.insert(&name, id.clone(), Some(end));
        }
        let whole = |time: Duration| time.max(Duration::from_millis(1));
        let exp = call.policy.deadline.map(|deadline| self.now.deadline_after(whole(deadline)));
        if let Some(exp) = exp {
            self.schedule_job(exp, |facts| &mut facts.deadline_index, &id);
        }
        self.shard.count_job(&call.owner, bytes);
        self.jobs.insert(&id, self.new_job(call, seq, exp, bytes), None);
        if delay.is_zero() {
            self.insert_into_queue(seq, &id, bytes);
        } else {
            self.delay_job(&id, self.now.earliest_after(delay), bytes);
        }
    }

    fn new_job(&self, call: EnqueueCommand, seq: u64, exp: Option<u64>, bytes: u64) -> JobRecord {
        JobRecord {
            seq,
            deadline_ms: exp,
            bytes,
            state: JobState::Queued,
            max_attempts: call.policy.max_attempts,
            retry_after_crash: call.policy.retry_after_crash,
            allows_overtaking: call.policy.on_failure == OnFailure::Skip,
            owner: call.owner,
            idempotency_records: call
                .idempotency_record
                .map(|(record, _, life)| (record, self.now.deadline_after(life)))
                .into_iter()
                .collect(),
            webhook: call.webhook,
            envelope: call.envelope,
            ..JobRecord::new(self.key, self.now)
        }
    }
}
