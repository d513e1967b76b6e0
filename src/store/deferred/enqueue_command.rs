//! What goes in: a request, its policy, and what bounds the line it stands in.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{LockMode, LockToken},
        job_id::JobId,
    },
};

/// `enqueue.lua`.
#[derive(Debug, Clone)]
pub(crate) struct EnqueueCommand {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) envelope: Bytes,
    pub(crate) policy: JobPolicy,
    /// Idempotency record, the request's fingerprint, and how long the record lives.
    pub(crate) idempotency_record: Option<(Arc<str>, String, Duration)>,
    pub(crate) merge: Option<MergePolicy>,
    pub(crate) limits: StorageLimits,
    /// Whom the job belongs to, for `visible_to`; empty = nobody in particular.
    pub(crate) owner: String,
    /// Who is told when it has ended, however it has.
    pub(crate) webhook: Option<WebhookJobSpec>,
}

impl EnqueueCommand {
    /// What it takes, with the call that tells of its end.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let call = self.webhook.as_ref().map_or(0, |call| call.envelope.len());
        (self.envelope.len() + call) as u64
    }
}

/// A job that there is from the end of another one on: it has to lie in the shard of that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookJobSpec {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) envelope: Bytes,
    pub(crate) max_attempts: u32,
}

/// How a job runs, as it was decided when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobPolicy {
    /// May run again after a crash.
    pub(crate) retry_after_crash: bool,
    /// At least one.
    pub(crate) max_attempts: u32,
    /// Not before: until then it is late.
    pub(crate) delay: Duration,
    /// No run of it begins after this time; it is expired then, unless it runs.
    pub(crate) deadline: Option<Duration>,
    pub(crate) on_failure: OnFailure,
    /// Not stored unless a live worker watches the shard.
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

/// What the later jobs of a resource do while one waits to be tried again: after a failure, or because no worker
/// that is there can run it yet. That is so for one of a newer version of this library, one that is sealed with a
/// key or carries a snapshot that the worker does not know, and one whose route it does not have. Such a job waits
/// uncharged, with that reason in its status, and runs when a worker comes that can; one that nobody could ever
/// read, because it was cut off or swapped with another, is dead at once, and the line goes on in either case.
///
/// Live requests wait for none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// They wait too. The order holds also across a deployment of which half of the workers know the newer
    /// requests: were those passed, an older change of a resource could undo a newer one. Who does not want to
    /// wait cancels the job, or gives it a deadline.
    #[default]
    Block,
    /// They pass; the one that waits comes back to its place, before those that are left. Not one that a worker
    /// hands over as it stops: that is taken up at once.
    Skip,
}

/// Of the queued jobs of one resource and group only one is kept.
#[derive(Debug, Clone)]
pub(crate) struct MergePolicy {
    /// Hex: what is the same request.
    pub(crate) group: Arc<str>,
    pub(crate) mode: MergeMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MergeMode {
    /// The queued one stays, and the new one is it.
    Coalesce,
    /// The new one is stored at the tail, and the queued one is cancelled: `superseded`.
    Supersede,
}

/// Most jobs and bytes, of one resource and of one shard; and of one owner in one shard. And most bytes that a shard
/// keeps of jobs that are done, and of dead ones; and most idempotency records of one owner in one shard.
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

/// Part of a shard's jobs and bytes that is reserved, for locks with short queues and owners with few jobs: the name of a lock
/// says in which shard it lies, so a client can choose names that fill the shard of another one. A job without an owner may
/// be of that client, and gets half of it.
pub(crate) const RESERVED_PART: u64 = 4;
pub(crate) const OWNERLESS_RESERVED_PART: u64 = 2 * RESERVED_PART;

/// Jobs of a lock and of an owner from which on they get nothing of the reserve.
pub(crate) const SHORT_QUEUE_JOBS: u64 = 4;
pub(crate) const SMALL_OWNER_JOBS: u64 = 16;

/// Parts of the shard's bytes that such a lock and such an owner have with the new job, unless it is their first.
pub(crate) const SHORT_QUEUE_BYTES_PART: u64 = 64;
pub(crate) const SMALL_OWNER_BYTES_PART: u64 = 16;

/// Nothing is reserved of fewer jobs or bytes.
const MIN_RESERVABLE: (u64, u64) = (64, 1 << 20);

/// What an ended job takes besides its request or its response, about: its facts, and its entries here and there.
pub(crate) const ENDED_JOB_OVERHEAD: u64 = 512;

impl StorageLimits {
    /// No bounds: all that a number of the scripts can hold.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self::uniform(u64::MAX >> 12);

    /// The same bound for everything.
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

    /// Most jobs and bytes of a shard without this part of them.
    pub(crate) fn shard_limits_without(&self, part: u64) -> (u64, u64) {
        let but_for = |most: u64, least| if most < least { most } else { most - most / part };
        (but_for(self.shard_jobs, MIN_RESERVABLE.0), but_for(self.shard_bytes, MIN_RESERVABLE.1))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnqueueOutcome {
    /// The position is from 1; 0 = late.
    Stored {
        position: u64,
    },
    Duplicate(JobId),
    FingerprintMismatch,
    Full,
    /// The owner has as many idempotency records as it may, until the first of them ends.
    TooManyRecords(Duration),
    /// Nobody watches the shard, and it was wanted that somebody does.
    NoWorker,
    /// The queued job that this request was merged into.
    Merged(JobId),
}

/// What beginning one that runs at once comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BeginDirectOutcome {
    Started,
    /// This job has the record.
    RecordTaken(JobId),
    /// Its lock is not held: nothing was taken.
    LockLost,
    /// The owner has as many idempotency records as it may, until the first of them ends: nothing was taken.
    TooManyRecords(Duration),
}

/// A request under an idempotency record that ran at once: `direct.lua`.
#[derive(Debug, Clone)]
pub(crate) struct DirectRunCommand {
    pub(crate) key: Key,
    /// Who holds its lock, in this mode. A call that comes when that is over takes nothing any more.
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) record_name: Arc<str>,
    pub(crate) id: JobId,
    pub(crate) owner: String,
    /// How long record and job are kept.
    pub(crate) retention: Duration,
    /// How long the run lasts unless it is renewed.
    pub(crate) lease: Duration,
    /// It may run again after a crash.
    pub(crate) retry_after_crash: bool,
    /// Of these, what is kept of ended jobs and records.
    pub(crate) limits: StorageLimits,
    /// The request's fingerprint, once it is known, which is not before its end.
    pub(crate) fingerprint: Option<String>,
}
