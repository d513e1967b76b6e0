//! What a stored request says: the one place where bodies and values are told.

use std::fmt;

use bytes::Bytes;

use super::deferred_jobs::DeferredJobs;
use crate::{
    defer::envelope::{EnvelopeBinding, EnvelopeError, StoredRequest, decode_request},
    error::Error,
    store::JobId,
};

/// A stored request, as it would run again.
///
/// Its `Debug` tells the method and the length of the body: all else is the client's.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRequest {
    /// The method; `:callback` if this is no request, but the call of `DeferLayer::webhook`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The fields that were stored, in order, names in lower case: no credentials, unless the layer keeps
    /// them.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Bytes,
}

/// What is kept of a job's request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetainedRequest {
    /// All that was stored.
    Whole(JobRequest),
    /// There is no job of this id, or it is forgotten.
    Unknown,
    /// The job is known, its request is kept no more: it is done, was cancelled or has expired, or it ran at
    /// once.
    NotRetained,
    /// It is sealed with a key that this handle does not have (`Store::with_keyring`).
    MissingKey,
    /// A newer version has written it.
    NewerVersion,
    /// What is stored is not what was written, or is not sealed where the keyring wants all to be.
    Corrupted,
}

impl RetainedRequest {
    /// The request, if it is there and can be read.
    #[must_use]
    pub fn into_request(self) -> Option<JobRequest> {
        match self {
            Self::Whole(request) => Some(request),
            _ => None,
        }
    }
}

impl DeferredJobs {
    /// The stored request with its body, opened with the handle's keyring if it is sealed. It is there while
    /// the job waits, runs or is dead: so that a dead `POST` that may have run can be looked into before it is
    /// put back.
    ///
    /// What it says is the client's. Show it to those alone who may see every client's requests: neither the
    /// job's owner nor `visible_to` is asked here, and to know an id is no leave. What was allowed by
    /// `DeferLayer::keep_header`, such as credentials, is among the fields. For a listing,
    /// [`peek`](Self::peek) does.
    ///
    /// # Errors
    ///
    /// If the store is away.
    pub async fn request(&self, id: &JobId) -> Result<RetainedRequest, Error> {
        let Some(job) = self.store.backend().job_view(id.clone()).await? else {
            return Ok(RetainedRequest::Unknown);
        };
        let envelope = self.store.backend().job_envelope(id.clone()).await?;
        let Some((envelope, lock)) = envelope.zip(job.history.lock) else {
            return Ok(RetainedRequest::NotRetained);
        };
        let at = EnvelopeBinding { store: &self.store, id, lock: &lock };
        Ok(match decode_request(at, &envelope) {
            Ok(request) => RetainedRequest::Whole(JobRequest::from_stored(request)),
            Err(EnvelopeError::MissingKey) => RetainedRequest::MissingKey,
            Err(EnvelopeError::NewerVersion) => RetainedRequest::NewerVersion,
            Err(EnvelopeError::Corrupted) => RetainedRequest::Corrupted,
        })
    }
}

impl JobRequest {
    fn from_stored(StoredRequest { head, body, .. }: StoredRequest) -> Self {
        Self { method: head.method, target: head.target, headers: head.headers, body }
    }
}

impl fmt::Debug for JobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRequest")
            .field("method", &self.method)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
