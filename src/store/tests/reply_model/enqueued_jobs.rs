//! Checks of enqueue replies: stored, merged and delayed jobs.

use std::{sync::Arc, time::Duration};

use super::{ReplyModel, accepted_job::AcceptedJob};
use crate::{
    durations::ceil_millis,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobHistory, JobId, JobState, JobView, MergeMode, OnFailure,
    },
};

/// Retention of superseded and expired jobs, and of the latest job of a group.
const ENDED_RETENTION_MS: u64 = 24 * 60 * 60 * 1000;

/// Retention of the target of a merged request.
const MERGE_RETENTION_MS: u64 = 60_000;

impl ReplyModel {
    /// Checks the reply to an enqueue. `usage` has the jobs and bytes of the shard.
    pub(in crate::store::tests) fn check_enqueue(
        &mut self,
        call: &EnqueueCommand,
        reply: &EnqueueOutcome,
        usage: (u64, u64),
    ) {
        if let Some(earlier) = self.earlier_outcome(call) {
            assert_eq!(*reply, earlier);
            return;
        }
        if call.policy.needs_worker && !self.is_watched && !self.is_between_workers {
            assert_eq!(*reply, EnqueueOutcome::NoWorker);
            return;
        }
        let old = call.merge.as_ref().and_then(|merge| self.queued_job_of_group(&merge.group));
        let expired = old.clone().filter(|(old, _)| self.expire_if_overdue(old));
        let (old, usage) = match &expired {
            Some((_, bytes)) => (None, (usage.0 - 1, usage.1 - bytes)),
            None => (old, usage),
        };
        let mode = call.merge.as_ref().map(|merge| merge.mode);
        if let (Some((old, _)), Some(MergeMode::Coalesce)) = (&old, mode) {
            assert_eq!(*reply, EnqueueOutcome::Merged(old.clone()));
            self.merged_jobs
                .insert(call.id.clone(), (old.clone(), self.now_ms + MERGE_RETENTION_MS));
            let record = call.idempotency_record.as_ref().map(|(name, ..)| Arc::clone(name));
            self.find_job(old).expect("it waits").record_names.extend(record);
            return self.store_record(call, old);
        }
        if !self.fits_limits(call, old.as_ref().map(|(_, bytes)| *bytes), usage) {
            assert_eq!(*reply, EnqueueOutcome::Full);
            return;
        }
        let now = self.now_ms;
        if let Some((old, _)) = old {
            let job = self.find_job(&old).expect("it waits");
            job.view.history.superseded_by = Some(call.id.clone());
            job.finish_as(JobState::Cancelled, "superseded", (now, now + ENDED_RETENTION_MS));
            self.clear_backoff(&old);
        }
        let position = if call.policy.delay.is_zero() { self.queued_jobs().count() + 1 } else { 0 };
        assert_eq!(*reply, EnqueueOutcome::Stored { position: position as u64 });
        self.store_job(call);
    }

    /// Expires a job past its deadline. Returns true if it did.
    fn expire_if_overdue(&mut self, id: &JobId) -> bool {
        let now = self.now_ms;
        let job = self.find_job(id).expect("it waits");
        let is_overdue = job.deadline_ms.is_some_and(|deadline| deadline <= now);
        if is_overdue {
            job.expire(now);
            self.clear_backoff(id);
        }
        is_overdue
    }

    /// Returns the outcome of an earlier enqueue of the same request.
    fn earlier_outcome(&self, call: &EnqueueCommand) -> Option<EnqueueOutcome> {
        if let Some(view) = self.expected_view(&call.id) {
            let is_delayed =
                self.pending_jobs().any(|job| job.id == call.id && job.delayed_until.is_some());
            let position = view.position.unwrap_or(u64::from(!is_delayed));
            return Some(EnqueueOutcome::Stored { position });
        }
        let merged = self.merged_jobs.get(&call.id).filter(|(_, end)| *end >= self.now_ms);
        if let Some((other, _)) = merged.filter(|_| call.merge.is_some()) {
            return Some(EnqueueOutcome::Merged(other.clone()));
        }
        let (name, new_print, _) = call.idempotency_record.as_ref()?;
        let (id, print) = self.find_record(name)?;
        Some(if print == new_print {
            EnqueueOutcome::Duplicate(id.clone())
        } else {
            EnqueueOutcome::FingerprintMismatch
        })
    }

    /// Returns the job of a record. The record lasts for its own time, and at least as long as its
    /// job.
    pub(super) fn find_record(&self, name: &Arc<str>) -> Option<(&JobId, &String)> {
        let (id, print, end) = self.records.get(name)?;
        let has_record = |job: &AcceptedJob| job.id == *id && job.record_names.contains(name);
        let is_kept = self.jobs.iter().any(|job| has_record(job) && job.is_kept(self.now_ms));
        (is_kept || *end >= self.now_ms).then_some((id, print))
    }

    /// Returns the queued job of a group, and its bytes.
    fn queued_job_of_group(&self, group: &Arc<str>) -> Option<(JobId, u64)> {
        let (id, _) = self.groups.get(group).filter(|(_, end)| *end >= self.now_ms)?;
        let job = self.pending_jobs().find(|job| job.id == *id)?;
        (job.view.state == JobState::Queued).then(|| (id.clone(), job.envelope_bytes))
    }

    fn fits_limits(&self, call: &EnqueueCommand, replaced: Option<u64>, usage: (u64, u64)) -> bool {
        let (bytes, caps) = (call.envelope.len() as u64, &call.limits);
        let usage_of = |job: &AcceptedJob| (1, job.envelope_bytes);
        let (jobs, used) =
            self.pending_jobs().map(usage_of).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let (replaced_jobs, replaced_bytes) =
            (u64::from(replaced.is_some()), replaced.unwrap_or(0));
        jobs - replaced_jobs < caps.resource_jobs
            && used - replaced_bytes + bytes <= caps.resource_bytes
            && usage.0 - replaced_jobs < caps.shard_jobs
            && usage.1 - replaced_bytes + bytes <= caps.shard_bytes
            && self.fits_reserve(call, replaced, usage)
    }

    /// Checks the reserve. Shards below these sizes have none. In larger ones, jobs without an
    /// owner, as those of the model are, may use half of the reserve, an eighth of the shard.
    fn fits_reserve(
        &self,
        call: &EnqueueCommand,
        replaced: Option<u64>,
        (jobs, used): (u64, u64),
    ) -> bool {
        let (bytes, caps) = (call.envelope.len() as u64, &call.limits);
        let added_bytes = bytes.saturating_sub(replaced.unwrap_or(0));
        let limit_without_reserve = |limit: u64, min_limit, part| {
            if limit < min_limit { limit } else { limit - limit / part }
        };
        let leaves_reserve = |part| {
            (replaced.is_some() || jobs < limit_without_reserve(caps.shard_jobs, 64, part))
                && (added_bytes == 0
                    || used + added_bytes <= limit_without_reserve(caps.shard_bytes, 1 << 20, part))
        };
        let queue_length = self.pending_jobs().count() - usize::from(replaced.is_some());
        leaves_reserve(4) || leaves_reserve(8) && queue_length < 4
    }

    fn store_record(&mut self, call: &EnqueueCommand, id: &JobId) {
        if let Some((name, print, retention)) = &call.idempotency_record {
            let record = (id.clone(), print.clone(), self.deadline_after(*retention));
            self.records.insert(Arc::clone(name), record);
        }
    }

    fn store_job(&mut self, call: &EnqueueCommand) {
        self.store_record(call, &call.id);
        if let Some(merge) = &call.merge {
            let latest = (call.id.clone(), self.now_ms + ENDED_RETENTION_MS);
            self.groups.insert(Arc::clone(&merge.group), latest);
        }
        let (policy, bytes) = (&call.policy, call.envelope.len() as u64);
        let after = |time: Duration| self.now_ms + ceil_millis(time);
        self.jobs.push(AcceptedJob {
            id: call.id.clone(),
            record_names: call
                .idempotency_record
                .iter()
                .map(|(name, ..)| Arc::clone(name))
                .collect(),
            view: JobView {
                state: JobState::Queued,
                attempts: 0,
                position: None,
                reason: None,
                owner: call.owner.clone(),
                is_watched: false,
                response: None,
                is_tombstone: false,
                history: JobHistory {
                    lock: Some(call.key.clone()),
                    bytes,
                    accepted_us: self.now_ms * 1000,
                    ..JobHistory::default()
                },
            },
            envelope_bytes: bytes,
            accepted_us: self.now_ms * 1000,
            retry_after_crash: policy.retry_after_crash,
            max_attempts: policy.max_attempts,
            run_token: None,
            forgotten_ms: None,
            delayed_until: Some(policy.delay).filter(|delay| !delay.is_zero()).map(after),
            deadline_ms: policy.deadline.map(after),
            skip_on_failure: policy.on_failure == OnFailure::Skip,
        });
    }

    /// Applies a poll: delayed jobs return when they are due, and overdue jobs expire.
    pub(in crate::store::tests) fn apply_due_times(&mut self) {
        let now = self.now_ms;
        let mut expired = Vec::new();
        for job in self.jobs.iter_mut().filter(|job| job.view.state == JobState::Queued) {
            if job.deadline_ms.is_some_and(|deadline| deadline <= now) {
                job.expire(now);
                expired.push(job.id.clone());
            }
            job.delayed_until.take_if(|due_ms| *due_ms <= now);
        }
        expired.iter().for_each(|id| self.clear_backoff(id));
    }
}

impl AcceptedJob {
    pub(super) fn expire(&mut self, now: u64) {
        self.finish_as(JobState::Expired, "deadline", (now, now + ENDED_RETENTION_MS));
    }
}
