//! `enqueue.lua`.

use std::{sync::Arc, time::Duration};

use super::{job::Job, pending::KEPT, visit::Visit};
use crate::store::{
    backend::{EnqueueCommand, EnqueueOutcome, JobId, JobState, OnFailure, MergeMode},
    deferred::{SMALL_OWNER_JOBS, SMALL_OWNER_BYTES_PART, OWNERLESS_RESERVED_PART, RESERVED_PART, SHORT_QUEUE_JOBS, SHORT_QUEUE_BYTES_PART},
};

/// How long a group's latest job is known from when it may run, and what a request was merged into.
const GROUP: Duration = Duration::from_secs(24 * 60 * 60);
const MERGED: Duration = Duration::from_secs(60);

/// Records that end with a job.
const RECORDS: usize = 32;

/// How long a record is there whose job waits: as long as that, but not for ever.
pub(super) const PENDING: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Visit<'_> {
    pub(super) fn enqueue(&mut self, call: EnqueueCommand) -> EnqueueOutcome {
        if let Some(answer) = self.accepted(&call) {
            return answer;
        }
        if call.policy.needs_worker && !self.facts.is_manned(self.now) {
            return EnqueueOutcome::NoWorker;
        }
        let old = call.merge.as_ref().and_then(|merge| self.one_of(&merge.group));
        if let (Some((old, _)), Some(merge)) = (&old, &call.merge)
            && merge.mode == MergeMode::Coalesce
        {
            if let Some(full) = self.full_of_records(&call) {
                return full;
            }
            let end = self.now.after(MERGED);
            self.facts.merged.put(&call.id, old.clone(), Some(end));
            self.merge(&call, old);
            return EnqueueOutcome::Merged(old.clone());
        }
        if self.is_full(&call, old.as_ref().map(|(_, bytes)| *bytes)) {
            return EnqueueOutcome::Full;
        }
        if let Some(full) = self.full_of_records(&call) {
            return full;
        }
        let id = call.id.clone();
        self.store(call);
        if let Some((old, _)) = old {
            let by = Some(id.clone());
            self.drop_job(&old, JobState::Cancelled, "superseded", KEPT, by);
        }
        EnqueueOutcome::Stored { position: self.position(&id).unwrap_or(1) }
    }

    /// What was made of the request before.
    fn accepted(&mut self, call: &EnqueueCommand) -> Option<EnqueueOutcome> {
        if self.jobs.get(&call.id, self.now.ms).is_some() {
            let position = self.position(&call.id).unwrap_or(1);
            return Some(EnqueueOutcome::Stored { position });
        }
        if call.merge.is_some()
            && let Some(other) = self.facts.merged.get(&call.id, self.now.ms)
        {
            return Some(EnqueueOutcome::Merged(other.clone()));
        }
        let (record, print, _) = call.idempotency_record.as_ref()?;
        let name = (self.key.clone(), Arc::clone(record));
        let (id, old) = self.records.get(&name, self.now.ms)?.clone();
        if self.settle_crashed(record, &id) {
            return None;
        }
        // Of a request that ran at once it is known when it has ended, if its handler has read all of it.
        let same = old == *print || old == "-";
        Some(if same { EnqueueOutcome::Duplicate(id) } else { EnqueueOutcome::FingerprintMismatch })
    }

    /// From 1; 0 = late; `None` = it does not wait.
    fn position(&self, id: &JobId) -> Option<u64> {
        let job = self.jobs.get(id, self.now.ms)?;
        let late = self.facts.late.get(id).map(|_| 0);
        self.line.position(job.seq, id).or(late)
    }

    /// The job that waits and is of this group, and its bytes. One whose time is over ends here: where no worker has seen
    /// to that yet, the new one would end with it.
    fn one_of(&mut self, group: &Arc<str>) -> Option<(JobId, u64)> {
        let name = (self.key.clone(), Arc::clone(group));
        let id = self.facts.groups.get(&name, self.now.ms)?.clone();
        let job = self.jobs.get(&id, self.now.ms)?;
        let (bytes, is_over) = (job.bytes, job.exp.is_some_and(|exp| exp <= self.now.ms));
        if job.state != JobState::Queued || self.position(&id).is_none() {
            return None;
        }
        if is_over {
            self.expire_job(&id);
            return None;
        }
        Some((id, bytes))
    }

    fn remember(&mut self, call: &EnqueueCommand, id: &JobId, pending: bool) {
        if let Some((record, print, life)) = &call.idempotency_record {
            let end = self.now.after(if pending { (*life).max(PENDING) } else { *life });
            let name = (self.key.clone(), Arc::clone(record));
            self.put_record(&name, (id.clone(), print.clone()), end, &call.owner);
        }
    }

    fn full_of_records(&mut self, call: &EnqueueCommand) -> Option<EnqueueOutcome> {
        call.idempotency_record.as_ref()?;
        let left = self.records_full(&call.owner, call.limits.owner_records)?;
        Some(EnqueueOutcome::TooManyRecords(left))
    }

    /// A request was merged into a job. Its record is there as long as that waits, as the job's own is; of more than a few
    /// for its own time alone.
    fn merge(&mut self, call: &EnqueueCommand, id: &JobId) {
        let now = self.now;
        let job = self.jobs.get_mut(id, now.ms).filter(|job| job.records.len() < RECORDS);
        let joins = job.is_some();
        if let (Some(job), Some((record, _, life))) = (job, &call.idempotency_record) {
            job.records.push((Arc::clone(record), now.after(*life)));
        }
        self.remember(call, id, joins);
    }

    /// `old`: the bytes of one that goes at the same time.
    fn is_full(&self, call: &EnqueueCommand, old: Option<u64>) -> bool {
        let (caps, bytes) = (&call.limits, call.stored_bytes());
        let (late, late_bytes) = self.facts.lates.get(self.key).copied().unwrap_or_default();
        let (one, less) = (u64::from(old.is_some()), old.unwrap_or(0));
        self.line.jobs.len() as u64 + late >= caps.resource_jobs.saturating_add(one)
            || self.line.bytes + late_bytes + bytes > caps.resource_bytes.saturating_add(less)
            || self.facts.jobs >= caps.shard_jobs.saturating_add(one)
            || self.facts.bytes + bytes > caps.shard_bytes.saturating_add(less)
            || self.is_full_for_owner(call, one, less)
            || !self.leaves(RESERVED_PART, call, old) && !self.may_have_of_the_reserve(call, old)
    }

    fn is_full_for_owner(&self, call: &EnqueueCommand, one: u64, less: u64) -> bool {
        let (caps, bytes) = (&call.limits, call.stored_bytes());
        let (jobs, used) = self.facts.owned.get(&call.owner).copied().unwrap_or_default();
        !call.owner.is_empty()
            && (jobs >= caps.owner_jobs.saturating_add(one)
                || used + bytes > caps.owner_bytes.saturating_add(less))
    }

    /// Returns true if the shard takes the job without this part of its room. One that takes the place of another needs room
    /// only for the bytes that it has more.
    fn leaves(&self, part: u64, call: &EnqueueCommand, old: Option<u64>) -> bool {
        let (jobs, bytes) = call.limits.shard_limits_without(part);
        let more = call.stored_bytes().saturating_sub(old.unwrap_or(0));
        (old.is_some() || self.facts.jobs < jobs) && (more == 0 || self.facts.bytes + more <= bytes)
    }

    /// Returns true if its lock has a short queue, and its owner few jobs.
    fn may_have_of_the_reserve(&self, call: &EnqueueCommand, old: Option<u64>) -> bool {
        let (most, bytes) = (call.limits.shard_bytes, call.stored_bytes());
        let (one, less) = (u64::from(old.is_some()), old.unwrap_or(0));
        let is_small = |(jobs, used): (u64, u64), few: u64, part: u64| {
            let (jobs, used) = (jobs.saturating_sub(one), (used + bytes).saturating_sub(less));
            jobs < few && (jobs == 0 || used <= most / part)
        };
        let (late, late_bytes) = self.facts.lates.get(self.key).copied().unwrap_or_default();
        let here = (self.line.jobs.len() as u64 + late, self.line.bytes + late_bytes);
        let owned = self.facts.owned.get(&call.owner).copied().unwrap_or_default();
        is_small(here, SHORT_QUEUE_JOBS, SHORT_QUEUE_BYTES_PART)
            && match &*call.owner {
                "" => self.leaves(OWNERLESS_RESERVED_PART, call, old),
                _ => is_small(owned, SMALL_OWNER_JOBS, SMALL_OWNER_BYTES_PART),
            }
    }

    fn store(&mut self, call: EnqueueCommand) {
        let (id, bytes, delay) = (call.id.clone(), call.stored_bytes(), call.policy.delay);
        self.facts.keep = Some(call.limits.ended_bytes);
        let seq = self.next_seq();
        self.remember(&call, &id, true);
        if let Some(merge) = &call.merge {
            let end = self.now.after(GROUP.saturating_add(delay));
            let name = (self.key.clone(), Arc::clone(&merge.group));
            self.facts.groups.put(&name, id.clone(), Some(end));
        }
        let whole = |time: Duration| time.max(Duration::from_millis(1));
        let exp = call.policy.deadline.map(|deadline| self.now.after(whole(deadline)));
        if let Some(exp) = exp {
            self.remind(exp, |facts| &mut facts.exp, &id);
        }
        self.facts.count(&call.owner, bytes);
        self.jobs.put(&id, self.new_job(call, seq, exp, bytes), None);
        if delay.is_zero() {
            self.stand(seq, &id, bytes);
        } else {
            self.put_late(&id, self.now.not_before(delay), bytes);
        }
    }

    fn new_job(&self, call: EnqueueCommand, seq: u64, exp: Option<u64>, bytes: u64) -> Job {
        Job {
            seq,
            exp,
            bytes,
            state: JobState::Queued,
            max_attempts: call.policy.max_attempts,
            again: call.policy.retry_after_crash,
            skip: call.policy.on_failure == OnFailure::Skip,
            owner: call.owner,
            records: call
                .idempotency_record
                .map(|(record, _, life)| (record, self.now.after(life)))
                .into_iter()
                .collect(),
            call: call.webhook,
            envelope: call.envelope,
            ..Job::new(self.key, self.now)
        }
    }
}
