//! `EnqueueCommand`: a request to be stored as a job, its policy, and the limits of its queue.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{LockMode, LockToken},
        job_id::JobId,
    },
};

/// Arguments of `JobBackend::enqueue`.
#[derive(Debug, Clone)]
pub(crate) struct EnqueueCommand {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) envelope: Bytes,
    pub(crate) policy: JobPolicy,
    /// Idempotency record: its name, the request's fingerprint, and its TTL.
    pub(crate) idempotency_record: Option<(Arc<str>, String, Duration)>,
    pub(crate) merge: Option<MergePolicy>,
    pub(crate) limits: StorageLimits,
    /// Owner of the job, for `visible_to`; empty if it has none.
    pub(crate) owner: String,
    /// Webhook that reports the job's end, in any state.
    pub(crate) webhook: Option<WebhookJobSpec>,
}

impl EnqueueCommand {
    /// Returns the stored bytes of the request and its webhook.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let call = self.webhook.as_ref().map_or(0, |call| call.envelope.len());
        (self.envelope.len() + call) as u64
    }
}

/// Webhook job, which is created when the job that it reports ends, in the shard of that job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookJobSpec {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) envelope: Bytes,
    pub(crate) max_attempts: u32,
}

/// Policy of a job's runs, fixed when the job is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobPolicy {
    /// The job may run again after a crash.
    pub(crate) retry_after_crash: bool,
    /// At least 1.
    pub(crate) max_attempts: u32,
    /// Time before the first run. Until then the job is delayed.
    pub(crate) delay: Duration,
    /// Time after which no run starts. A job that is not running then expires.
    pub(crate) deadline: Option<Duration>,
    pub(crate) on_failure: OnFailure,
    /// The job is stored only if a live worker watches the shard.
    pub(crate) needs_worker: bool,
}

impl Default for JobPolicy {
    fn default() -> Self {
        Self {
            retry_after_crash: false,
            max_attempts: 1,
            delay: Duration::ZERO,
            deadline: None,
            on_failure: OnFailure::Block,
            needs_worker: false,
        }
    }
}

/// Behavior of the later jobs of a resource while one waits to be tried again.
///
/// A job waits after a failure, or because no present worker can run it yet:
///
/// - it comes from a newer version of this library
/// - it is sealed with a key, or carries a snapshot, that the worker does not know
/// - the worker does not have its route
///
/// Such a job waits without being charged an attempt, with that reason in its status, and runs when
/// a worker comes that can run it. A job that no worker could ever read, because it was truncated
/// or swapped with another, is dead at once, and the queue continues in either mode.
///
/// Live requests wait for none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// Later jobs wait too. The order holds even during a deployment in which only half of the
    /// workers know the newer requests: if those were overtaken, an older change of a resource
    /// could undo a newer one. To end the wait, cancel the job or give it a deadline.
    #[default]
    Block,
    /// Later jobs overtake it. The waiting job then returns to its position, ahead of those that
    /// are left. A job that a worker returns as it stops is not overtaken, because it is taken up
    /// at once.
    Skip,
}

/// Merge of queued jobs: of one resource and group only one is kept.
#[derive(Debug, Clone)]
pub(crate) struct MergePolicy {
    /// Group of equal requests, in hex.
    pub(crate) group: Arc<str>,
    pub(crate) mode: MergeMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MergeMode {
    /// The queued job stays, and the new request is merged into it.
    Coalesce,
    /// The new job is stored at the tail, and the queued one is cancelled as `superseded`.
    Supersede,
}

/// Limits of stored jobs:
///
/// - jobs and bytes of one resource, of one shard, and of one owner in a shard
/// - bytes that a shard keeps of done jobs, and of dead ones
/// - idempotency records of one owner in a shard
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorageLimits {
    pub(crate) resource_jobs: u64,
    pub(crate) resource_bytes: u64,
    pub(crate) shard_jobs: u64,
    pub(crate) shard_bytes: u64,
    pub(crate) owner_jobs: u64,
    pub(crate) owner_bytes: u64,
    pub(crate) ended_bytes: u64,
    pub(crate) owner_records: u64,
}

/// Divisor of the reserve: this part of a shard's jobs and bytes is kept for locks with short
/// queues and owners with few jobs. The name of a lock determines its shard, so a client can choose
/// names that fill the shard of another one.
pub(crate) const RESERVED_PART: u64 = 4;
/// Divisor of the reserve for jobs without an owner. They may belong to such a client, so they get
/// half of it.
pub(crate) const OWNERLESS_RESERVED_PART: u64 = 2 * RESERVED_PART;

/// Jobs of a lock from which on its queue is not short, and gets nothing of the reserve.
pub(crate) const SHORT_QUEUE_JOBS: u64 = 4;
/// Jobs of an owner from which on it gets nothing of the reserve.
pub(crate) const SMALL_OWNER_JOBS: u64 = 16;

/// Divisor of the shard's bytes: the part that a short queue may have, including the new job,
/// unless that is its first.
pub(crate) const SHORT_QUEUE_BYTES_PART: u64 = 64;
/// The same divisor for a small owner.
pub(crate) const SMALL_OWNER_BYTES_PART: u64 = 16;

/// A shard with fewer jobs or bytes has no reserve of them.
const MIN_RESERVABLE: (u64, u64) = (64, 1 << 20);

/// Approximate bytes of an ended job besides its request or response: its fields and index entries.
pub(crate) const ENDED_JOB_OVERHEAD: u64 = 512;

impl StorageLimits {
    /// No limits: the largest number that the scripts can hold.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self::uniform(u64::MAX >> 12);

    /// Returns the same limit for everything.
    pub(crate) const fn uniform(most: u64) -> Self {
        Self {
            resource_jobs: most,
            resource_bytes: most,
            shard_jobs: most,
            shard_bytes: most,
            owner_jobs: most,
            owner_bytes: most,
            ended_bytes: most,
            owner_records: most,
        }
    }

    /// Returns the shard's limits of jobs and bytes, less `1 / part` of each.
    pub(crate) fn shard_limits_without(&self, part: u64) -> (u64, u64) {
        let but_for = |most: u64, least| if most < least { most } else { most - most / part };
        (but_for(self.shard_jobs, MIN_RESERVABLE.0), but_for(self.shard_bytes, MIN_RESERVABLE.1))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnqueueOutcome {
    /// The position counts from 1; 0 for a delayed job.
    Stored {
        position: u64,
    },
    Duplicate(JobId),
    FingerprintMismatch,
    Full,
    /// The owner has as many idempotency records as it may, until the first of them expires after
    /// this time.
    TooManyRecords(Duration),
    /// A worker is required, and none watches the shard.
    NoWorker,
    /// Queued job that this request was merged into.
    Merged(JobId),
}

/// Outcome of the start of a direct run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BeginDirectOutcome {
    Started,
    /// This job has the record.
    RecordTaken(JobId),
    /// The lock is not held. Nothing was taken.
    LockLost,
    /// As [`EnqueueOutcome::TooManyRecords`]. Nothing was taken.
    TooManyRecords(Duration),
}

/// Arguments of the operations on a direct run under an idempotency record.
#[derive(Debug, Clone)]
pub(crate) struct DirectRunCommand {
    pub(crate) key: Key,
    /// Holder of its lock, in this mode. A call that arrives after the release takes nothing.
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) record_name: Arc<str>,
    pub(crate) id: JobId,
    pub(crate) owner: String,
    /// Retention of the record and the job.
    pub(crate) retention: Duration,
    /// Length of the run, unless it is renewed.
    pub(crate) lease: Duration,
    /// The request may run again after a crash.
    pub(crate) retry_after_crash: bool,
    /// Only the limits of ended jobs and records apply.
    pub(crate) limits: StorageLimits,
    /// Fingerprint of the request, which is known only at its end.
    pub(crate) fingerprint: Option<String>,
}
