//! Content of a stored request: the only access to bodies and values of headers.

use std::fmt;

use bytes::Bytes;

use super::single_job_admin::DeferredJobs;
use crate::{
    defer::envelope::{EnvelopeBinding, EnvelopeError, StoredRequest, decode_request},
    error::Error,
    store::JobId,
};

/// A stored request, as it would be replayed.
///
/// Its `Debug` output has only the method and the length of the body: the rest belongs to the
/// client.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRequest {
    /// Method of the request; `:webhook` for a webhook job (`DeferLayer::webhook`).
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Stored headers in order, names in lower case. Credentials are missing, unless the layer
    /// keeps them.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Body of the request.
    pub body: Bytes,
}

/// Request of a job, as far as it is retained.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetainedRequest {
    /// The complete stored request.
    Whole(JobRequest),
    /// There is no job with this id, or it has been deleted.
    Unknown,
    /// The job is known, but its request is no longer retained: it is done, cancelled or expired,
    /// or was a direct run.
    NotRetained,
    /// The request is sealed with a key that this handle does not have (`Store::with_keyring`).
    MissingKey,
    /// A newer version has written the request.
    NewerVersion,
    /// The stored bytes were changed, or are not sealed although the keyring requires it.
    Corrupted,
}

impl RetainedRequest {
    /// Returns the request, if it is retained and readable.
    #[must_use]
    pub fn into_request(self) -> Option<JobRequest> {
        match self {
            Self::Whole(request) => Some(request),
            _ => None,
        }
    }
}

impl DeferredJobs {
    /// Returns the stored request with its body, opened with the handle's keyring if it is sealed.
    /// It is retained while the job is queued, running or dead, so that a dead `POST` that may have
    /// run can be examined before it is redriven.
    ///
    /// The content belongs to the client. Show it only to operators that may see every client's
    /// requests: this call checks neither the job's owner nor `visible_to`, and knowing an id is no
    /// permission. Headers allowed by `DeferLayer::keep_header`, such as credentials, are included.
    /// For a listing, use [`peek`](Self::peek).
    ///
    /// # Errors
    ///
    /// Fails if the store is unavailable.
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
