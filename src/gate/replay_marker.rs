//! How a deferred request is known when it runs.
//!
//! The marker is a private type in the request's extensions: no header can forge it, since nothing
//! that comes over a socket becomes an extension. A middleware that rebuilds the request loses its
//! extensions, so the run also sits in a task-local: a replay is never deferred again.

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

/// The field by which a run in another process is known, and checked there: see `remote`.
pub(crate) const REPLAY_HEADER: &str = "lockgate-replay";

tokio::task_local! {
    static CURRENT_REPLAY: RunScopeGuard;
}

/// What is inside of a run: counted until it has been dropped, wherever it was sent to.
#[derive(Debug)]
pub(crate) struct RunScopeGuard(ReplayMarker);

impl RunScopeGuard {
    pub(crate) fn enter(replay: &ReplayMarker) -> Self {
        replay.0.active_scopes.fetch_add(1, Ordering::AcqRel);
        Self(replay.clone())
    }
}

impl Drop for RunScopeGuard {
    fn drop(&mut self) {
        let run = &self.0.0;
        if run.active_scopes.fetch_sub(1, Ordering::AcqRel) == 1 {
            run.scope_exited.notify_waiters();
        }
    }
}

/// Nothing of it has come to a handler.
const NOT_STARTED: u8 = 0;
/// Its handler may have been called.
const STARTED: u8 = 1;
/// Nobody waits for it, and no handler begins any more.
const ABANDONED: u8 = 2;

/// What a handler may know of the deferred request it runs for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// The id the client was given in the 202.
    pub id: JobId,
    /// Which run this is, from 1.
    pub attempt: u32,
    /// When the request was accepted, by the store's clock.
    pub accepted_at: SystemTime,
    /// Of the lock that this run has: larger than that of every earlier run of any request on it. A
    /// worker that was paused and comes back has a smaller one.
    pub fence: u64,
}

/// Nobody waits for this run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAbandonedError;

/// The marker of a run.
#[derive(Clone)]
pub struct ReplayMarker(Arc<Inner>);

struct Inner {
    job: RunningJob,
    /// The one that the job lies in.
    store: Store,
    hold: Arc<HoldState>,
    /// What the replayer puts into the request's extensions.
    restored_snapshots: Vec<Box<dyn Any + Send + Sync>>,
    /// `NOT_STARTED`, then one of the others: which of them is decided once, however many threads the run is in.
    stage: AtomicU8,
    /// How many are inside, and who waits for the last of them.
    active_scopes: AtomicUsize,
    scope_exited: Notify,
    /// It was sent to another process, and nobody knows that it has ended there.
    is_remote: AtomicBool,
    /// The lock of this job saw the run pass.
    lock_passed: AtomicBool,
    /// The status by which the lock that was asked last said that it is busy, or that it can't be asked; else 0.
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

    /// What the handler is told.
    #[must_use]
    pub fn job(&self) -> &RunningJob {
        &self.0.job
    }

    /// The snapshots of this run, in the form that a replayer's integration has given them.
    pub fn restored_snapshots<P: 'static>(&self) -> impl Iterator<Item = &P> {
        self.0.restored_snapshots.iter().filter_map(|put| put.downcast_ref())
    }

    /// The store that the job lies in, by the worker's handle.
    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns true if the job's own lock has one of these keys. It may still be in another store.
    pub(crate) fn matches_any_key(&self, keys: &[Key]) -> bool {
        keys.contains(self.0.hold.key())
    }

    /// The job's own lock, if its key is among these, and it is in this store: the worker may have another handle
    /// on that. Another lock on the way, or one of this name elsewhere, must be acquired as ever.
    ///
    /// # Errors
    ///
    /// If the run was given up, or has lost its lock: another one may be under way.
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

    /// What the lock of a job does, for routes of tests, which have none.
    #[cfg(test)]
    pub(crate) fn pass(&self, key: &Key) {
        self.0.lock_passed.store(self.0.hold.key() == key && self.try_start(), Ordering::Release);
    }

    /// Runs `run` so that layers inside know it as this replay even without the extension. Until it has ended or
    /// was dropped the run is under way, whoever still waits for it.
    pub fn scope<F: Future>(&self, run: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT_REPLAY.scope(RunScopeGuard::enter(self), run)
    }

    /// Its handler may be called from here on; false if the run was given up before.
    pub(crate) fn try_start(&self) -> bool {
        self.try_set_stage(STARTED)
    }

    /// No handler behind the job's lock begins any more; false if one may have begun before. For a replayer that
    /// does not know what became of a run: one that is given up has not run.
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

    /// Whether anything of it has not been dropped yet. In another thread that may take as long as the handler does
    /// not await; and of what went to another process it is not known.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.is_running_here() || self.is_running_remotely()
    }

    /// Whether anything of it in this process has not been dropped yet.
    pub(crate) fn is_running_here(&self) -> bool {
        self.0.active_scopes.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_running_remotely(&self) -> bool {
        self.0.is_remote.load(Ordering::Acquire)
    }

    /// Until nothing of it is under way. Cancel safe.
    pub(crate) async fn wait_until_ended(&self) {
        loop {
            let mut left = pin!(self.0.scope_exited.notified());
            // Before the look: what is told from here on is not missed.
            left.as_mut().enable();
            if !self.is_in_flight() {
                return;
            }
            left.await;
        }
    }

    /// Whoever answered knows that it is a run.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_lock_passed(&self) {
        self.0.lock_passed.store(true, Ordering::Release);
    }

    /// It may run in another process from here on.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_sent_remotely(&self) {
        self.0.is_remote.store(true, Ordering::Release);
    }

    /// It has ended there, or has not begun, or must have ended.
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

    /// A lock on the way is asked. What another one answered before, or this one when a retry layer came here
    /// for the first time, is not the answer of this run any more.
    pub(crate) fn clear_busy_status(&self) {
        self.0.busy_status.store(0, Ordering::Release);
    }

    /// It answers by this status; nothing further in has run.
    pub(crate) fn record_busy_status(&self, status: u16) {
        self.0.busy_status.store(status, Ordering::Release);
    }

    /// Whether a lock on the way has let nobody further in.
    pub(crate) fn met_busy_lock(&self) -> bool {
        self.0.busy_status.load(Ordering::Acquire) != 0
    }

    /// Whether this answer is that of a lock that was busy: by its status, which is the layer's to choose.
    pub(crate) fn met_busy_lock_with(&self, status: u16) -> bool {
        self.0.busy_status.load(Ordering::Acquire) == status
    }
}

/// The replay a request belongs to, by its marker or by the task it runs in.
pub(crate) fn current_replay<V: GateRequest>(view: &V) -> Option<ReplayMarker> {
    view.extension::<ReplayMarker>()
        .or_else(|| CURRENT_REPLAY.try_with(|inside| inside.0.clone()).ok())
}

/// Whether it belongs to one.
pub(crate) fn is_replay<V: GateRequest>(view: &V) -> bool {
    view.extension::<ReplayMarker>().is_some() || CURRENT_REPLAY.try_with(|_| ()).is_ok()
}

impl fmt::Debug for ReplayMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplayMarker").field(&self.0.job).finish()
    }
}
