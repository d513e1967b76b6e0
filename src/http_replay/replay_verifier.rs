//! `ReplayVerifier`: the receiver's check that a request is a run.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::replay_claims::{ReplayClaims, SignatureInput};
use crate::{
    durations::ceil_millis,
    error::Error,
    gate::RunningJob,
    lock::SharedSecret,
    store::{JobId, Store},
};

/// Verifier of the header `Lockgate-Replay`.
#[derive(Debug, Clone)]
pub struct ReplayVerifier {
    store: Store,
    secrets: Vec<SharedSecret>,
}

/// Reason why a request is not the run that its header claims.
#[derive(Debug)]
#[non_exhaustive]
pub enum VerifyError {
    /// It is not signed with a known secret, or not for this request, or its job is in another
    /// server, database or namespace. Respond with 403.
    Forged,
    /// The header has expired. Respond with 403.
    Expired,
    /// No such run is in progress with a lock, by the store's clock: it has ended, was returned to
    /// the queue, or its worker's lease has expired. Respond with 409.
    NotRunning,
    /// The store did not answer. Respond with 503.
    Fault(Error),
}

impl ReplayVerifier {
    /// Creates a verifier that trusts this secret, for jobs of this store.
    #[must_use]
    pub fn new(store: &Store, secret: &SharedSecret) -> Self {
        Self { store: store.clone(), secrets: vec![secret.clone()] }
    }

    /// Trusts this secret too, during a change of secrets.
    #[must_use]
    pub fn with_secret(mut self, secret: &SharedSecret) -> Self {
        self.secrets.push(secret.clone());
        self
    }

    /// Returns the run that a request belongs to. Takes its method, its path and query as they were
    /// sent, its whole body, and the value of the header. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`VerifyError`]; the request must be refused then.
    pub async fn verify(
        &self,
        method: &str,
        target: &str,
        body: &[u8],
        header: &str,
    ) -> Result<RunningJob, VerifyError> {
        let request = SignatureInput { method, target, body };
        let claims =
            ReplayClaims::verify(header, &self.secrets, request).ok_or(VerifyError::Forged)?;
        let id = JobId::parse(&claims.id).ok_or(VerifyError::Forged)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if ceil_millis(now) > claims.end_ms {
            return Err(VerifyError::Expired);
        }
        self.store.identify().await.map_err(VerifyError::Fault)?;
        let identities = self.store.backend().identities();
        if !identities.iter().any(|identity| **identity == *claims.store_identity) {
            return Err(VerifyError::Forged);
        }
        let run = self.store.backend().active_run(id.clone()).await.map_err(VerifyError::Fault)?;
        // A run that was returned uncharged runs again with the same attempt and a larger fence.
        if !run.is_some_and(|run| run.attempt == claims.attempt && run.first_fence <= claims.fence)
        {
            return Err(VerifyError::NotRunning);
        }
        let accepted_at = UNIX_EPOCH + Duration::from_millis(claims.first_seen_ms);
        Ok(RunningJob { id, attempt: claims.attempt, accepted_at, fence: claims.fence })
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forged => "the signature is not of a known secret, or is for another request",
            Self::Expired => "the signature has expired",
            Self::NotRunning => "the store knows no such run",
            Self::Fault(_) => "the store could not be asked about the run",
        })
    }
}

impl std::error::Error for VerifyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fault(error) => Some(error),
            _ => None,
        }
    }
}
