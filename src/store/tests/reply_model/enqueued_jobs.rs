//! What the replies about jobs mean that are stored, merged and wait.

use std::{sync::Arc, time::Duration};

use super::{ReplyModel, accepted_job::AcceptedJob};
use crate::{
    durations::ceil_millis,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobHistory, JobId, JobState, JobView, MergeMode, OnFailure,
    },
};

/// How long it is known of a job that it was superseded, or that its time was over; and of a group's latest
/// job.
const ENDED_RETENTION_MS: u64 = 24 * 60 * 60 * 1000;

/// How long it is known what a request was merged into.
const MERGE_RETENTION_MS: u64 = 60_000;

impl ReplyModel {
    /// `counted`: jobs and bytes of the shard.
    pub(in crate::store::tests) fn check_enqueue(
        &mut self,
        call: &EnqueueCommand,
        reply: &EnqueueOutcome,
        counted: (u64, u64),
    ) {
        if let Some(before) = self.earlier_outcome(call) {
            assert_eq!(*reply, before);
            return;
        }
        if call.policy.needs_worker && !self.is_watched && !self.is_between_workers {
            assert_eq!(*reply, EnqueueOutcome::NoWorker);
            return;
        }
        let old = call.merge.as_ref().and_then(|merge| self.queued_job_of_group(&merge.group));
        let gone = old.clone().filter(|(old, _)| self.expire_if_overdue(old));
        let (old, counted) = match &gone {
            Some((_, bytes)) => (None, (counted.0 - 1, counted.1 - bytes)),
            None => (old, counted),
        };
        let wins = call.merge.as_ref().map(|merge| merge.mode);
        if let (Some((old, _)), Some(MergeMode::Coalesce)) = (&old, wins) {
            assert_eq!(*reply, EnqueueOutcome::Merged(old.clone()));
            self.merged_jobs
                .insert(call.id.clone(), (old.clone(), self.now_ms + MERGE_RETENTION_MS));
            let record = call.idempotency_record.as_ref().map(|(name, ..)| Arc::clone(name));
            self.find_job(old).expect("it waits").record_names.extend(record);
            return self.store_record(call, old);
        }
        if !self.fits_limits(call, old.as_ref().map(|(_, bytes)| *bytes), counted) {
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

    /// It waits past its deadline, and ends with that; true if it did.
    fn expire_if_overdue(&mut self, id: &JobId) -> bool {
        let now = self.now_ms;
        let job = self.find_job(id).expect("it waits");
        let over = job.deadline_ms.is_some_and(|exp| exp <= now);
        if over {
            job.expire(now);
            self.clear_backoff(id);
        }
        over
    }

    /// What was made of the request before.
    fn earlier_outcome(&self, call: &EnqueueCommand) -> Option<EnqueueOutcome> {
        if let Some(view) = self.expected_view(&call.id) {
            let late =
                self.pending_jobs().any(|job| job.id == call.id && job.delayed_until.is_some());
            let position = view.position.unwrap_or(u64::from(!late));
            return Some(EnqueueOutcome::Stored { position });
        }
        let merged = self.merged_jobs.get(&call.id).filter(|(_, end)| *end >= self.now_ms);
        if let Some((other, _)) = merged.filter(|_| call.merge.is_some()) {
            return Some(EnqueueOutcome::Merged(other.clone()));
        }
        let (name, new, _) = call.idempotency_record.as_ref()?;
        let (id, print) = self.find_record(name)?;
        Some(if print == new {
            EnqueueOutcome::Duplicate(id.clone())
        } else {
            EnqueueOutcome::FingerprintMismatch
        })
    }

    /// What is known under a record: for its time, and as long as its job waits, runs or is kept.
    pub(super) fn find_record(&self, name: &Arc<str>) -> Option<(&JobId, &String)> {
        let (id, print, end) = self.records.get(name)?;
        let its = |job: &AcceptedJob| job.id == *id && job.record_names.contains(name);
        let kept = self.jobs.iter().any(|job| its(job) && job.is_kept(self.now_ms));
        (kept || *end >= self.now_ms).then_some((id, print))
    }

    /// The job that waits and is of this group, and its bytes.
    fn queued_job_of_group(&self, group: &Arc<str>) -> Option<(JobId, u64)> {
        let (id, _) = self.groups.get(group).filter(|(_, end)| *end >= self.now_ms)?;
        let job = self.pending_jobs().find(|job| job.id == *id)?;
        (job.view.state == JobState::Queued).then(|| (id.clone(), job.envelope_bytes))
    }

    fn fits_limits(&self, call: &EnqueueCommand, old: Option<u64>, counted: (u64, u64)) -> bool {
        let (bytes, caps) = (call.envelope.len() as u64, &call.limits);
        let own = |job: &AcceptedJob| (1, job.envelope_bytes);
        let (jobs, used) = self.pending_jobs().map(own).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let (one, less) = (u64::from(old.is_some()), old.unwrap_or(0));
        jobs - one < caps.resource_jobs
            && used - less + bytes <= caps.resource_bytes
            && counted.0 - one < caps.shard_jobs
            && counted.1 - less + bytes <= caps.shard_bytes
            && self.fits_reserve(call, old, counted)
    }

    /// Of a shard with fewer jobs and bytes than these nothing is reserved. Of larger ones half of the reserve, an eighth of the
    /// shard, is there for jobs without an owner, which those of the models are.
    fn fits_reserve(
        &self,
        call: &EnqueueCommand,
        old: Option<u64>,
        (jobs, used): (u64, u64),
    ) -> bool {
        let (bytes, caps) = (call.envelope.len() as u64, &call.limits);
        let more = bytes.saturating_sub(old.unwrap_or(0));
        let but = |most: u64, least, part| if most < least { most } else { most - most / part };
        let leaves = |part| {
            (old.is_some() || jobs < but(caps.shard_jobs, 64, part))
                && (more == 0 || used + more <= but(caps.shard_bytes, 1 << 20, part))
        };
        let here = self.pending_jobs().count() - usize::from(old.is_some());
        leaves(4) || leaves(8) && here < 4
    }

    fn store_record(&mut self, call: &EnqueueCommand, id: &JobId) {
        if let Some((name, print, life)) = &call.idempotency_record {
            let record = (id.clone(), print.clone(), self.deadline_after(*life));
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

    /// Somebody has looked what is due: what was late comes back, and what has waited for too long expires.
    pub(in crate::store::tests) fn apply_due_times(&mut self) {
        let now = self.now_ms;
        let mut expired = Vec::new();
        for job in self.jobs.iter_mut().filter(|job| job.view.state == JobState::Queued) {
            if job.deadline_ms.is_some_and(|exp| exp <= now) {
                job.expire(now);
                expired.push(job.id.clone());
            }
            job.delayed_until.take_if(|at| *at <= now);
        }
        expired.iter().for_each(|id| self.clear_backoff(id));
    }
}

impl AcceptedJob {
    pub(super) fn expire(&mut self, now: u64) {
        self.finish_as(JobState::Expired, "deadline", (now, now + ENDED_RETENTION_MS));
    }
}
