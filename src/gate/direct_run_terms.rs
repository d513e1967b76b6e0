//! `DirectRunTerms`: the idempotency record that a lock looks up, and the terms of a direct run.

use std::{sync::Arc, time::Duration};

use crate::store::StorageLimits;

/// The idempotency record of a request.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyLookup {
    pub(crate) record_name: Arc<str>,
    /// Terms of a direct run; `None` if direct runs are not recorded.
    pub(crate) direct_terms: Option<DirectRunTerms>,
}

/// Terms on which a direct run is recorded.
#[derive(Debug, Clone)]
pub(crate) struct DirectRunTerms {
    /// Owner of the request.
    pub(crate) owner: String,
    /// Longest body that is fingerprinted, in bytes.
    pub(crate) compared_body_limit: usize,
    /// Time for which the record is kept.
    pub(crate) retention: Duration,
    /// The request may run again after a run with an unknown outcome.
    pub(crate) is_repeatable: bool,
    /// Most direct runs of this process at once.
    pub(crate) max_runs: usize,
    /// Storage limits that apply to the record.
    pub(crate) retention_caps: StorageLimits,
}
