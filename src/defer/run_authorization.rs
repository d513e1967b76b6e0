//! `RunAuthorization`: the check before a run that its user is still authorized.
//!
//! A deferred request was authenticated when it arrived. Its user may lose the permission while it
//! waits, and a snapshot only has the state of then. Only the application can check the present
//! state.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{
    abort_run::drained_settlement,
    claim_and_settle::StartedRun,
    envelope::StoredRequest,
    extension_snapshot::{ExtensionSnapshot, SavedSnapshots},
    job_chain::{JobChain, ShutdownPhase},
    settlement_rules::age_backoff,
};
use crate::{
    gate::{HttpRequestHead, ReplayMarker, RunningJob},
    store::Settlement,
};

/// Reason of a dead letter without authorization.
pub(super) const NOT_AUTHORIZED: &str = "not authorized any more";

/// Reason of a postponement after a check without a result.
const AUTHORIZATION_UNKNOWN: &str = "authorization unknown";

/// Result of the check before a run; see [`DeferWorker::authorize`](super::DeferWorker::authorize).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAuthorization {
    /// The run begins.
    Granted,
    /// Neither this run nor a later one begins. The job becomes a dead letter with the reason `not
    /// authorized any more`, and its response is 403.
    Denied,
    /// The check has no result, for example because a database is unavailable.
    ///
    /// The job returns to its queue uncharged. The check is repeated after a delay that grows with
    /// the age of the job, from a second to a minute. A check that panics counts as this variant,
    /// as does one that takes longer than half of
    /// [`max_run_time`](super::DeferWorker::max_run_time).
    Unknown,
}

/// A deferred request that is about to run.
#[derive(Clone)]
pub struct PendingRun {
    head: HttpRequestHead,
    job: RunningJob,
    snapshots: SavedSnapshots,
}

impl PendingRun {
    /// Returns the stored request line and headers, without credentials.
    #[must_use]
    pub fn head(&self) -> &HttpRequestHead {
        &self.head
    }

    /// Returns the job: id, attempt, time of acceptance and fence.
    #[must_use]
    pub fn job(&self) -> &RunningJob {
        &self.job
    }

    /// Returns the request's snapshot of this type, if it carries one that can be read.
    #[must_use]
    pub fn snapshot<T: ExtensionSnapshot>(&self) -> Option<T> {
        let (_, bytes) = self.snapshots.iter().find(|(name, _)| name == T::NAME)?;
        T::load(bytes)
    }
}

impl fmt::Debug for PendingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Snapshots are personal data and are not logged.
        f.debug_struct("PendingRun")
            .field("head", &self.head)
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

/// Authorization check of a worker.
pub(super) type AuthorizeFn =
    Arc<dyn Fn(PendingRun) -> BoxFuture<'static, RunAuthorization> + Send + Sync>;

impl JobChain {
    /// Returns `Ok` if the run may begin. The error is the settlement of the job, or `None` if its
    /// lock is lost.
    pub(super) async fn authorize_run(
        &self,
        request: &StoredRequest,
        marker: &ReplayMarker,
        started: &StartedRun,
    ) -> Result<(), Option<Settlement>> {
        let Some(check) = &self.worker.authorize_fn else { return Ok(()) };
        let StoredRequest { head, snapshots, .. } = request.clone();
        let run = PendingRun { head, job: marker.job().clone(), snapshots };
        let RunningJob { id, accepted_at, .. } = marker.job();
        // Well before the lease ends: a lost run would be charged, and a job that must not run
        // twice would be dead.
        let timeout = self.worker.max_run_time / 2;
        // The block also catches a panic of the function itself.
        let checking = AssertUnwindSafe(async { check(run).await }).catch_unwind();
        let authorization = tokio::select! {
            // In this order: no run begins on a lost lock or after the shutdown.
            biased;
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = %id.log_prefix(), ?loss, "run abandoned: lock lost");
                return Err(None);
            }
            () = self.wait_for_shutdown(ShutdownPhase::Draining) => return Err(Some(drained_settlement())),
            () = started.cancellation.cancelled() => return Err(Some(drained_settlement())),
            checked = checking => checked.unwrap_or_else(|_| {
                tracing::error!(job = %id.log_prefix(), "the authorization check panicked");
                RunAuthorization::Unknown
            }),
            () = tokio::time::sleep(timeout) => {
                tracing::error!(job = %id.log_prefix(), longest = ?timeout, "the authorization check took too long");
                RunAuthorization::Unknown
            }
        };
        match authorization {
            RunAuthorization::Granted => Ok(()),
            RunAuthorization::Denied => {
                tracing::warn!(job = %id.log_prefix(), "job not run: no longer authorized");
                let retention = self.worker.settlement_rules.dead_retention;
                Err(Some(Settlement::Dead { reason: NOT_AUTHORIZED, retention }))
            }
            RunAuthorization::Unknown => Err(Some(Settlement::Postpone {
                delay: age_backoff(*accepted_at),
                reason: AUTHORIZATION_UNKNOWN,
            })),
        }
    }
}
