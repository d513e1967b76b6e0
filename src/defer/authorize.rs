//! A check at the start of a run: whether its user may still do what was accepted.
//!
//! A deferred request was authenticated when it came. Its user may lose the right to it while it
//! waits, and a snapshot says what was known then. Nobody but the application knows the difference.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{
    claim::Started,
    cut_off::drained,
    envelope::StoredRequest,
    judge::by_age,
    snapshot::{Carried, Snapshot},
    visit::{Stop, Visit},
};
use crate::{
    gate::{Deferred, Head, Replay},
    store::Settlement,
};

/// Why a run was denied, as its job tells it.
pub(super) const NOT_AUTHORIZED: &str = "not authorized any more";

/// Why a run was put off whose check had no result.
const UNDECIDED: &str = "authorization unknown";

/// Result of the check at the start of a run: see [`DeferWorker::authorize`](super::DeferWorker::authorize).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    /// The run begins.
    Granted,
    /// The run does not begin, nor any later one: the request ends among the dead letters, with the
    /// reason `not authorized any more`, and its response is 403.
    Denied,
    /// Nobody can say now, because a database is away, say. The request goes back in line, uncharged,
    /// and the check is made again after a second or, of an old request, after a minute at most. A check that
    /// panics counts as this one, and so does one that has not ended after half of
    /// [`max_run`](super::DeferWorker::max_run).
    Unknown,
}

/// A deferred request whose run is about to begin.
#[derive(Clone)]
pub struct PendingRun {
    head: Head,
    deferred: Deferred,
    carried: Carried,
}

impl PendingRun {
    /// The request's line and header fields, as they were stored: without credentials.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Id, attempt, time of acceptance and fence.
    #[must_use]
    pub fn deferred(&self) -> &Deferred {
        &self.deferred
    }

    /// The snapshot of this type that the request carries; `None` if it carries none.
    #[must_use]
    pub fn carried<T: Snapshot>(&self) -> Option<T> {
        let (_, bytes) = self.carried.iter().find(|(name, _)| name == T::NAME)?;
        T::load(bytes)
    }
}

impl fmt::Debug for PendingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what it carries: that is somebody's.
        f.debug_struct("PendingRun")
            .field("head", &self.head)
            .field("deferred", &self.deferred)
            .finish_non_exhaustive()
    }
}

/// The check of a worker.
pub(super) type Check = Arc<dyn Fn(PendingRun) -> BoxFuture<'static, Authorization> + Send + Sync>;

impl Visit {
    /// Returns `Ok` if the run may begin, else what becomes of its job: nothing, if its lock is lost.
    pub(super) async fn authorize(
        &self,
        request: &StoredRequest,
        marker: &Replay,
        started: &Started,
    ) -> Result<(), Option<Settlement>> {
        let Some(check) = &self.worker.authorize else { return Ok(()) };
        let StoredRequest { head, carried, .. } = request.clone();
        let run = PendingRun { head, deferred: marker.deferred().clone(), carried };
        let Deferred { id, first_seen, .. } = marker.deferred();
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
            () = self.told_to(Stop::Drain) => return Err(Some(drained())),
            checked = checked => checked.unwrap_or_else(|_| {
                tracing::error!(job = ?id, "the check of an authorization panicked");
                Authorization::Unknown
            }),
            () = tokio::time::sleep(longest) => {
                tracing::error!(job = ?id, ?longest, "the check of an authorization took too long");
                Authorization::Unknown
            }
        };
        match authorization {
            Authorization::Granted => Ok(()),
            Authorization::Denied => {
                tracing::warn!(job = ?id, "deferred request not run: not authorized any more");
                let retention = self.worker.rules.keep_dead;
                Err(Some(Settlement::Dead { reason: NOT_AUTHORIZED, retention }))
            }
            Authorization::Unknown => {
                Err(Some(Settlement::Postpone { delay: by_age(*first_seen), reason: UNDECIDED }))
            }
        }
    }
}
