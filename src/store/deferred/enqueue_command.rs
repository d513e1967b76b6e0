//! `EnqueueCommand`: a request to be stored as a job, with the policies of its runs and its merge.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::storage_limits::StorageLimits;
use crate::{key::Key, store::job_id::JobId};

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
    /// Method and route pattern of the request; empty if the pattern is unknown.
    pub(crate) route: String,
    /// Webhook that reports the job's end, in any state.
    pub(crate) webhook: Option<WebhookJobSpec>,
}

impl EnqueueCommand {
    /// Returns the stored bytes of the request and its webhook.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let webhook_bytes = self.webhook.as_ref().map_or(0, |webhook| webhook.envelope.len());
        (self.envelope.len() + webhook_bytes) as u64
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

/// Outcome of an enqueue.
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
