//! `DirectRunCommand`: operations on a direct run and its idempotency record.

use std::{sync::Arc, time::Duration};

use super::storage_limits::StorageLimits;
use crate::{
    key::Key,
    store::{job_id::JobId, lock_mode::LockMode, lock_token::LockToken},
};

/// Outcome of the start of a direct run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BeginDirectOutcome {
    Started,
    /// This job has the record.
    RecordTaken(JobId),
    /// The lock is not held. Nothing was taken.
    LockLost,
    /// As [`EnqueueOutcome::TooManyRecords`]. Nothing was taken.
    ///
    /// [`EnqueueOutcome::TooManyRecords`]: super::EnqueueOutcome::TooManyRecords
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
