//! A check at the start of a run: whether its user may still do what was accepted.
//!
//! A deferred request was authenticated when it came. Its user may lose the right to it while it
//! waits, and a snapshot says what was known then. Nobody but the application knows the difference.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{
    claim_and_settle::StartedRun,
    envelope::StoredRequest,
    job_chain::{JobChain, ShutdownPhase},
    run_guard::drained_settlement,
    settlement_rules::age_backoff,
    snapshot::{ExtensionSnapshot, SavedSnapshots},
};
use crate::{
    gate::{HttpRequestHead, ReplayMarker, RunningJob},
    store::Settlement,
};

/// Why a run was denied, as its job tells it.
pub(super) const NOT_AUTHORIZED: &str = "not authorized any more";

/// Why a run was put off whose check had no result.
const AUTHORIZATION_UNKNOWN: &str = "authorization unknown";

/// Result of the check at the start of a run: see [`DeferWorker::authorize_fn`](super::DeferWorker::authorize_fn).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAuthorization {
    /// The run begins.
    Granted,
    /// The run does not begin, nor any later one: the request ends among the dead letters, with the
    /// reason `not authorized any more`, and its response is 403.
    Denied,
    /// Nobody can say now, because a database is away, say. The request goes back in line, uncharged,
    /// and the check is made again after a second or, of an old request, after a minute at most. A check that
    /// panics counts as this one, and so does one that has not ended after half of
    /// [`max_run`](super::DeferWorker::max_run_time).
    Unknown,
}

/// A deferred request whose run is about to begin.
#[derive(Clone)]
pub struct PendingRun {
    head: HttpRequestHead,
    job: RunningJob,
    snapshots: SavedSnapshots,
}

impl PendingRun {
    /// The request's line and header fields, as they were stored: without credentials.
    #[must_use]
    pub fn head(&self) -> &HttpRequestHead {
        &self.head
    }

    /// Id, attempt, time of acceptance and fence.
    #[must_use]
    pub fn job(&self) -> &RunningJob {
        &self.job
    }

    /// The snapshot of this type that the request carries; `None` if it carries none.
    #[must_use]
    pub fn snapshot<T: ExtensionSnapshot>(&self) -> Option<T> {
        let (_, bytes) = self.snapshots.iter().find(|(name, _)| name == T::NAME)?;
        T::load(bytes)
    }
}

impl fmt::Debug for PendingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what it carries: that is somebody's.
        f.debug_struct("PendingRun")
            .field("head", &self.head)
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

/// The check of a worker.
pub(super) type AuthorizeFn =
    Arc<dyn Fn(PendingRun) -> BoxFuture<'static, RunAuthorization> + Send + Sync>;

impl JobChain {
    /// Returns `Ok` if the run may begin, else what becomes of its job: nothing, if its lock is lost.
    pub(super) async fn authorize_run(
        &self,
        request: &StoredRequest,
        marker: &ReplayMarker,
        started: &StartedRun,
    ) -> Result<(), Option<Settlement>> {
        let Some(check) = &self.worker.authorize_fn else { return Ok(()) };
        let StoredRequest { head, snapshots: carried, .. } = request.clone();
        let run = PendingRun { head, job: marker.job().clone(), snapshots: carried };
        let RunningJob { id, accepted_at: first_seen, .. } = marker.job();
        // Well before its lock ends, which would charge the job: one that must not run twice would be dead.
        let longest = self.worker.max_run / 2;
        // Its function too, not only its future.
        let checked = AssertUnwindSafe(async { check(run).await }).catch_unwind();
        let authorization = tokio::select! {
            // In this order: no run begins on a lock that is lost, or after the end was told.
            biased;
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = ?id, ?loss, "run abandoned: lock lost");
                return Err(None);
            }
            () = self.wait_for_shutdown(ShutdownPhase::Draining) => return Err(Some(drained_settlement())),
            checked = checked => checked.unwrap_or_else(|_| {
                tracing::error!(job = ?id, "the check of an authorization panicked");
                RunAuthorization::Unknown
            }),
            () = tokio::time::sleep(longest) => {
                tracing::error!(job = ?id, ?longest, "the check of an authorization took too long");
                RunAuthorization::Unknown
            }
        };
        match authorization {
            RunAuthorization::Granted => Ok(()),
            RunAuthorization::Denied => {
                tracing::warn!(job = ?id, "deferred request not run: not authorized any more");
                let retention = self.worker.settlement_rules.dead_retention;
                Err(Some(Settlement::Dead { reason: NOT_AUTHORIZED, retention }))
            }
            RunAuthorization::Unknown => Err(Some(Settlement::Postpone {
                delay: age_backoff(*first_seen),
                reason: AUTHORIZATION_UNKNOWN,
            })),
        }
    }
}
