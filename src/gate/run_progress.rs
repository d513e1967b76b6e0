//! `RunProgress`: how far the run of a job has come, for the worker and the layers on its way.
//!
//! It says if a handler may have started, if any future of the run is still in flight, here or in
//! another process, and if a lock on the way let the run pass or was busy.

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use super::replay_marker::ReplayMarker;

/// No handler has been called.
const NOT_STARTED: u8 = 0;
/// The handler may have been called.
const STARTED: u8 = 1;
/// The worker has given the run up, and no handler starts anymore.
const ABANDONED: u8 = 2;

/// Progress of one run, part of its [`ReplayMarker`].
pub(super) struct RunProgress {
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

/// Error: the run was abandoned, or its lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAbandonedError;

/// Counts one future of a run from its creation to its drop, in any task or thread.
#[derive(Debug)]
pub(crate) struct InFlightRunGuard(ReplayMarker);

impl InFlightRunGuard {
    pub(crate) fn enter(replay: &ReplayMarker) -> Self {
        replay.progress().active_scopes.fetch_add(1, Ordering::AcqRel);
        Self(replay.clone())
    }

    pub(super) fn marker(&self) -> &ReplayMarker {
        &self.0
    }
}

impl Drop for InFlightRunGuard {
    fn drop(&mut self) {
        let progress = self.0.progress();
        if progress.active_scopes.fetch_sub(1, Ordering::AcqRel) == 1 {
            progress.scope_exited.notify_waiters();
        }
    }
}

impl RunProgress {
    pub(super) fn new() -> Self {
        Self {
            stage: AtomicU8::new(NOT_STARTED),
            active_scopes: AtomicUsize::new(0),
            scope_exited: Notify::new(),
            is_remote: AtomicBool::new(false),
            lock_passed: AtomicBool::new(false),
            busy_status: AtomicU16::new(0),
        }
    }
}

impl ReplayMarker {
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

    pub(super) fn is_abandoned(&self) -> bool {
        self.progress().stage.load(Ordering::Acquire) == ABANDONED
    }

    fn try_set_stage(&self, stage: u8) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let previous = self.progress().stage.compare_exchange(NOT_STARTED, stage, success, failure);
        previous.is_ok() || previous == Err(stage)
    }

    /// Returns true if any part of the run is still in flight. A handler in another thread that is
    /// not awaiting can't be dropped yet, and a run in another process counts until its end is
    /// known.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.is_running_here() || self.is_running_remotely()
    }

    /// Returns true if a future of the run in this process is not dropped yet.
    pub(crate) fn is_running_here(&self) -> bool {
        self.progress().active_scopes.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_running_remotely(&self) -> bool {
        self.progress().is_remote.load(Ordering::Acquire)
    }

    /// Resolves when no part of the run is in flight. Cancel safe.
    pub(crate) async fn wait_until_ended(&self) {
        loop {
            let mut scope_exit = pin!(self.progress().scope_exited.notified());
            // Before the check: a later notification is not missed.
            scope_exit.as_mut().enable();
            if !self.is_in_flight() {
                return;
            }
            scope_exit.await;
        }
    }

    /// Notes that the process that responded recognized the run.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_lock_passed(&self) {
        self.set_lock_passed(true);
    }

    /// Notes that the run may be in progress in another process.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_sent_remotely(&self) {
        self.progress().is_remote.store(true, Ordering::Release);
    }

    /// Notes that the run in another process has ended, has not started, or must have ended by now.
    #[cfg(feature = "http-replay")]
    pub(crate) fn mark_remote_ended(&self) {
        self.progress().is_remote.store(false, Ordering::Release);
    }

    pub(super) fn set_lock_passed(&self, passed: bool) {
        self.progress().lock_passed.store(passed, Ordering::Release);
    }

    pub(crate) fn has_passed_lock(&self) -> bool {
        self.progress().lock_passed.load(Ordering::Acquire)
    }

    /// Clears the busy status before a lock on the way is acquired. A status of another lock, or of
    /// this lock's earlier call by a retry layer, is no longer the response to this run.
    pub(crate) fn clear_busy_status(&self) {
        self.progress().busy_status.store(0, Ordering::Release);
    }

    /// Notes that a lock on the way responds with this status; nothing further inside has run.
    pub(crate) fn record_busy_status(&self, status: u16) {
        self.progress().busy_status.store(status, Ordering::Release);
    }

    /// Returns true if a lock on the way did not let the run pass.
    pub(crate) fn met_busy_lock(&self) -> bool {
        self.progress().busy_status.load(Ordering::Acquire) != 0
    }

    /// Returns true if this response is that of a busy lock: it has the lock's status, which the
    /// layer can choose.
    pub(crate) fn met_busy_lock_with(&self, status: u16) -> bool {
        self.progress().busy_status.load(Ordering::Acquire) == status
    }
}
