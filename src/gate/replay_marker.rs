//! `ReplayMarker`: the mark of a request that is a run of a job.
//!
//! The marker is a private type in the request's extensions. Headers can't forge it, since data
//! from a socket never becomes an extension. A middleware that rebuilds the request loses its
//! extensions, so the run is also in a task-local: a replay is never deferred again.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::Notify;

use super::gate_request::GateRequest;
use crate::{
    key::Key,
    store::{HoldState, JobId, Store},
};

/// Header that identifies a run in another process, which verifies it: see `remote`.
pub(crate) const REPLAY_HEADER: &str = "lockgate-replay";

tokio::task_local! {
    static CURRENT_REPLAY: InFlightRunGuard;
}

/// Counts one future of a run from its creation to its drop, in any task or thread.
#[derive(Debug)]
pub(crate) struct InFlightRunGuard(ReplayMarker);

impl InFlightRunGuard {
    pub(crate) fn enter(replay: &ReplayMarker) -> Self {
        replay.0.active_scopes.fetch_add(1, Ordering::AcqRel);
        Self(replay.clone())
    }
}

impl Drop for InFlightRunGuard {
    fn drop(&mut self) {
        let run = &self.0.0;
        if run.active_scopes.fetch_sub(1, Ordering::AcqRel) == 1 {
            run.scope_exited.notify_waiters();
        }
    }
}

/// No handler has been called.
const NOT_STARTED: u8 = 0;
/// The handler may have been called.
const STARTED: u8 = 1;
/// The worker has given the run up, and no handler starts anymore.
const ABANDONED: u8 = 2;

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

/// Error: the run was abandoned, or its lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAbandonedError;

/// Marker of a run, shared by its clones.
#[derive(Clone)]
pub struct ReplayMarker(Arc<Inner>);

struct Inner {
    job: RunningJob,
    /// The store of the job.
    store: Store,
    hold: Arc<HoldState>,
    /// Values that the replayer puts into the request's extensions.
    restored_snapshots: Vec<Box<dyn Any + Send + Sync>>,
    /// `NOT_STARTED`, then one of the others, decided once across all threads of the run.
    stage: AtomicU8,
    /// Number of live futures of the run; `scope_exited` is notified when it becomes 0.
    active_scopes: AtomicUsize,
    scope_exited: Notify,
    /// The run was sent to another process, and may still be in progress there.
    is_remote: AtomicBool,
    /// The job's own lock has let the run pass.
    lock_passed: AtomicBool,
    /// Status with which the lock that was called last reported that it is busy or unavailable; 0
    /// if it did not.
    busy_status: AtomicU16,
}

impl ReplayMarker {
    #[cfg(test)]
    pub(crate) fn new(deferred: RunningJob, store: &Store, hold: Arc<HoldState>) -> Self {
        Self::with_snapshots(deferred, store, hold, Vec::new())
    }

    pub(crate) fn with_snapshots(
        deferred: RunningJob,
        store: &Store,
        hold: Arc<HoldState>,
        restored: Vec<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            job: deferred,
            store: store.clone(),
            hold,
            restored_snapshots: restored,
            stage: AtomicU8::new(NOT_STARTED),
            active_scopes: AtomicUsize::new(0),
            scope_exited: Notify::new(),
            is_remote: AtomicBool::new(false),
            lock_passed: AtomicBool::new(false),
            busy_status: AtomicU16::new(0),
        }))
    }

    /// Returns the job, as the handler sees it.
    #[must_use]
    pub fn job(&self) -> &RunningJob {
        &self.0.job
    }

    /// Returns the snapshots of this run, in the type that the integration of the replayer stored.
    pub fn restored_snapshots<P: 'static>(&self) -> impl Iterator<Item = &P> {
        self.0.restored_snapshots.iter().filter_map(|put| put.downcast_ref())
    }

    /// Returns the store of the job, as the worker's handle.
    pub(crate) fn store(&self) -> &Store {
        &self.0.store
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
        let own = self.matches_any_key(keys) && self.store().is_same_as(store) == Some(true);
        let stands = if own { self.try_start() } else { !self.is_abandoned() };
        if !stands || hold.is_closed() || hold.loss().is_some() {
            return Err(RunAbandonedError);
        }
        Ok(own.then(|| {
            self.0.lock_passed.store(true, Ordering::Release);
            Arc::clone(hold)
        }))
    }

    /// Acts as the lock of a job, for routes of tests without a lock.
    #[cfg(test)]
    pub(crate) fn pass_own_lock(&self, key: &Key) {
        self.0.lock_passed.store(self.0.hold.key() == key && self.try_start(), Ordering::Release);
    }

    /// Runs `run` within this replay, so that layers inside recognize it without the extension. The
    /// run counts as in flight until the returned future completes or is dropped.
    pub fn scope<F: Future>(&self, run: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT_REPLAY.scope(InFlightRunGuard::enter(self), run)
    }

    /// Notes that the handler may be called; returns false if the run was abandoned before.
    pub(crate) fn try_start(&self) -> bool {
        self.try_set_stage(STARTED)
    }

    /// Prevents the start of a handler behind the job's lock; returns false if one may have
    /// started. For a replayer that does not know the progress of a run: an abandoned run has not
    /// run.
    #[must_use]
    pub fn try_abandon(&self) -> bool {
        self.try_set_stage(ABANDONED)
    }

    fn is_abandoned(&self) -> bool {
        self.0.stage.load(Ordering::Acquire) == ABANDONED
    }

    fn try_set_stage(&self, stage: u8) -> bool {
        let (won, read) = (Ordering::AcqRel, Ordering::Acquire);
        let was = self.0.stage.compare_exchange(NOT_STARTED, stage, won, read);
        was.unwrap_or_else(|was| if was == stage { NOT_STARTED } else { was }) == NOT_STARTED
    }

    /// Returns true if any part of the run is still in flight. A handler in another thread that is
    /// not awaiting can't be dropped yet, and a run in another process counts until its end is
    /// known.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.is_running_here() || self.is_running_remotely()
    }

    /// Returns true if a future of the run in this process is not dropped yet.
    pub(crate) fn is_running_here(&self) -> bool {
        self.0.active_scopes.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_running_remotely(&self) -> bool {
        self.0.is_remote.load(Ordering::Acquire)
    }

    /// Resolves when no part of the run is in flight. Cancel safe.
    pub(crate) async fn wait_until_ended(&self) {
        loop {
            let mut left = pin!(self.0.scope_exited.notified());
            // Before the check: a later notification is not missed.
            left.as_mut().enable();
            if !self.is_in_flight() {
                return;
            }
            left.await;
        }
    }

    /// Notes that the process that responded recognized the run.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_lock_passed(&self) {
        self.0.lock_passed.store(true, Ordering::Release);
    }

    /// Notes that the run may be in progress in another process.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_sent_remotely(&self) {
        self.0.is_remote.store(true, Ordering::Release);
    }

    /// Notes that the run in another process has ended, has not started, or must have ended by now.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_remote_ended(&self) {
        self.0.is_remote.store(false, Ordering::Release);
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn hold(&self) -> Arc<HoldState> {
        Arc::clone(&self.0.hold)
    }

    pub(crate) fn has_passed_lock(&self) -> bool {
        self.0.lock_passed.load(Ordering::Acquire)
    }

    /// Clears the busy status before a lock on the way is acquired. A status of another lock, or of
    /// this lock's earlier call by a retry layer, is no longer the response to this run.
    pub(crate) fn clear_busy_status(&self) {
        self.0.busy_status.store(0, Ordering::Release);
    }

    /// Notes that a lock on the way responds with this status; nothing further inside has run.
    pub(crate) fn record_busy_status(&self, status: u16) {
        self.0.busy_status.store(status, Ordering::Release);
    }

    /// Returns true if a lock on the way did not let the run pass.
    pub(crate) fn met_busy_lock(&self) -> bool {
        self.0.busy_status.load(Ordering::Acquire) != 0
    }

    /// Returns true if this response is that of a busy lock: it has the lock's status, which the
    /// layer can choose.
    pub(crate) fn met_busy_lock_with(&self, status: u16) -> bool {
        self.0.busy_status.load(Ordering::Acquire) == status
    }
}

/// Returns the replay that a request belongs to, by its marker or by its task.
pub(crate) fn current_replay<V: GateRequest>(view: &V) -> Option<ReplayMarker> {
    view.extension::<ReplayMarker>()
        .or_else(|| CURRENT_REPLAY.try_with(|inside| inside.0.clone()).ok())
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
