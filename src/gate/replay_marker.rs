//! `ReplayMarker`: the mark of a request that is a run of a job.
//!
//! The marker is a private type in the request's extensions. Headers can't forge it, since data
//! from a socket never becomes an extension. A middleware that rebuilds the request loses its
//! extensions, so the run is also in a task-local: a replay is never deferred again.

use std::{
    any::Any,
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use super::{
    gate_request::{GateRequest, RouteMatch},
    run_progress::{InFlightRunGuard, RunAbandonedError, RunProgress},
};
use crate::{
    key::Key,
    store::{HoldRoute, HoldState, JobId, RunCancellation, Store},
};

/// Header that identifies a run in another process, which verifies it: see `http_replay`.
pub(crate) const REPLAY_HEADER: &str = "lockgate-replay";

tokio::task_local! {
    static CURRENT_REPLAY: InFlightRunGuard;
}

/// Deferred request that a handler runs for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// The id that the client was given with the 202.
    pub id: JobId,
    /// Number of this run, from 1.
    pub attempt: u32,
    /// Time of acceptance, by the store's clock.
    pub accepted_at: SystemTime,
    /// Fence of the run's lock: larger than that of every earlier run of any request on it. A
    /// worker that was paused and resumes has a smaller one.
    pub fence: u64,
}

/// Marker of a run, shared by its clones.
#[derive(Clone)]
pub struct ReplayMarker(Arc<Inner>);

struct Inner {
    job: RunningJob,
    /// The store of the job.
    store: Store,
    hold: Arc<HoldState>,
    cancellation: RunCancellation,
    /// Values that the replayer puts into the request's extensions.
    restored_snapshots: Vec<Box<dyn Any + Send + Sync>>,
    progress: RunProgress,
    /// Pattern of the route that the run has reached.
    route: OnceLock<String>,
}

impl ReplayMarker {
    #[cfg(test)]
    pub(crate) fn new(job: RunningJob, store: &Store, hold: Arc<HoldState>) -> Self {
        Self::with_snapshots(job, store, hold, RunCancellation::default(), Vec::new())
    }

    pub(crate) fn with_snapshots(
        job: RunningJob,
        store: &Store,
        hold: Arc<HoldState>,
        cancellation: RunCancellation,
        restored_snapshots: Vec<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            job,
            store: store.clone(),
            hold,
            cancellation,
            restored_snapshots,
            progress: RunProgress::new(),
            route: OnceLock::new(),
        }))
    }

    /// Returns the job, as the handler sees it.
    #[must_use]
    pub fn job(&self) -> &RunningJob {
        &self.0.job
    }

    /// Returns what tells the handler that an operator cancels the run.
    #[must_use]
    pub fn cancellation(&self) -> &RunCancellation {
        &self.0.cancellation
    }

    /// Returns the snapshots of this run, in the type that the integration of the replayer stored.
    pub fn restored_snapshots<P: 'static>(&self) -> impl Iterator<Item = &P> {
        self.0.restored_snapshots.iter().filter_map(|snapshot| snapshot.downcast_ref())
    }

    /// Returns the state that the worker and the layers of the run share.
    pub(super) fn progress(&self) -> &RunProgress {
        &self.0.progress
    }

    /// Returns the store of the job, as the worker's handle.
    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Notes the route of the run, for log records and operators. Called by its lock layers.
    pub(crate) fn note_route<V: GateRequest>(&self, view: &mut V) {
        if self.0.route.get().is_none()
            && let RouteMatch::Matched(route) = view.route()
        {
            self.0.hold.record_route(&HoldRoute::new(view.method(), &route));
            let _ = self.0.route.set(route);
        }
    }

    /// Returns the pattern of the route that the run has reached, if a lock layer has seen it.
    pub(crate) fn route(&self) -> Option<&str> {
        self.0.route.get().map(String::as_str)
    }

    /// Returns true if the job's own lock has one of these keys. It may still be in another store.
    pub(crate) fn matches_any_key(&self, keys: &[Key]) -> bool {
        keys.contains(self.0.hold.key())
    }

    /// Returns the hold of the job's own lock, if its key is among `keys` and it is in `store`,
    /// which may be another handle than the worker's. Other locks on the way, or one of the same
    /// name in another store, are acquired as usual.
    ///
    /// # Errors
    ///
    /// If the run was abandoned or has lost its lock: another run may be in progress.
    pub(crate) fn own_hold(
        &self,
        store: &Store,
        keys: &[Key],
    ) -> Result<Option<Arc<HoldState>>, RunAbandonedError> {
        let hold = &self.0.hold;
        let is_own = self.matches_any_key(keys) && self.store().is_same_as(store) == Some(true);
        let is_valid = if is_own { self.try_start() } else { !self.is_abandoned() };
        if !is_valid || hold.is_closed() || hold.loss().is_some() {
            return Err(RunAbandonedError);
        }
        Ok(is_own.then(|| {
            self.set_lock_passed(true);
            Arc::clone(hold)
        }))
    }

    /// Runs `run` within this replay, so that layers inside recognize it without the extension. The
    /// run counts as in flight until the returned future completes or is dropped.
    pub fn scope<F: Future>(&self, run: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT_REPLAY.scope(InFlightRunGuard::enter(self), run)
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn hold(&self) -> Arc<HoldState> {
        Arc::clone(&self.0.hold)
    }

    /// Acts as the lock of a job, for routes of tests without a lock.
    #[cfg(test)]
    pub(crate) fn pass_own_lock(&self, key: &Key) {
        self.set_lock_passed(self.0.hold.key() == key && self.try_start());
    }
}

/// Returns the replay that a request belongs to, by its marker or by its task.
pub(crate) fn current_replay<V: GateRequest>(view: &V) -> Option<ReplayMarker> {
    view.extension::<ReplayMarker>()
        .or_else(|| CURRENT_REPLAY.try_with(|run_guard| run_guard.marker().clone()).ok())
}

/// Returns true if the request belongs to a replay.
pub(crate) fn is_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<ReplayMarker>().is_some() || CURRENT_REPLAY.try_with(|_| ()).is_ok()
}

impl fmt::Debug for ReplayMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplayMarker").field(&self.0.job).finish()
    }
}
