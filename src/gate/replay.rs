//! How a deferred request is known when it runs.
//!
//! The marker is a private type in the request's extensions: no header can forge it, since nothing
//! that comes over a socket becomes an extension. A middleware that rebuilds the request loses its
//! extensions, so the run also sits in a task-local: a replay is never deferred again.

use std::{
    any::Any,
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::SystemTime,
};

use super::view::View;
use crate::{
    key::Key,
    store::{HoldFacts, JobId, Store},
};

/// The field by which a run in another process is known, and checked there: see `remote`.
pub(crate) const REPLAY_FIELD: &str = "lockgate-replay";

tokio::task_local! {
    static REPLAY: Replay;
}

/// What a handler may know of the deferred request it runs for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deferred {
    /// The id the client was given in the 202.
    pub id: JobId,
    /// Which run this is, from 1.
    pub attempt: u32,
    /// When the request was accepted, by the store's clock.
    pub first_seen: SystemTime,
    /// Of the lock that this run has: larger than that of every earlier run of any request on it. A
    /// worker that was paused and comes back has a smaller one.
    pub fence: u64,
}

/// The marker of a run.
#[derive(Clone)]
pub struct Replay(Arc<Inner>);

struct Inner {
    deferred: Deferred,
    /// Of the store that the job lies in.
    space: String,
    hold: Arc<HoldFacts>,
    /// What the replayer puts into the request's extensions.
    restored: Vec<Box<dyn Any + Send + Sync>>,
    /// It was sent to where it runs.
    begun: AtomicBool,
    /// The lock of this job saw the run pass.
    seen: AtomicBool,
    /// The status by which the lock that was asked last said that it is busy, or that it can't be asked; else 0.
    busy: AtomicU16,
}

impl Replay {
    #[cfg(test)]
    pub(crate) fn new(deferred: Deferred, store: &Store, hold: Arc<HoldFacts>) -> Self {
        Self::restoring(deferred, store, hold, Vec::new())
    }

    pub(crate) fn restoring(
        deferred: Deferred,
        store: &Store,
        hold: Arc<HoldFacts>,
        restored: Vec<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            deferred,
            space: store.backend().space().to_owned(),
            hold,
            restored,
            begun: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            busy: AtomicU16::new(0),
        }))
    }

    /// What the handler is told.
    #[must_use]
    pub fn deferred(&self) -> &Deferred {
        &self.0.deferred
    }

    /// The snapshots of this run, in the form that a replayer's integration has given them.
    pub fn restored<P: 'static>(&self) -> impl Iterator<Item = &P> {
        self.0.restored.iter().filter_map(|put| put.downcast_ref())
    }

    /// The job's own lock, if this is its key, and a handle on its locks: the worker may have another one.
    /// Another lock on the way, or one of this name elsewhere, must be acquired as ever.
    pub(crate) fn hold_of(&self, store: &Store, key: &Key) -> Option<Arc<HoldFacts>> {
        let own = self.0.hold.key() == key && self.0.space == store.backend().space();
        own.then(|| {
            self.0.seen.store(true, Ordering::Release);
            Arc::clone(&self.0.hold)
        })
    }

    /// What the lock of a job does, for routes of tests, which have none.
    #[cfg(test)]
    pub(crate) fn pass(&self, key: &Key) {
        self.0.seen.store(self.0.hold.key() == key, Ordering::Release);
    }

    /// Runs `run` so that layers inside know it as this replay even without the extension.
    pub fn scope<F: Future>(&self, run: F) -> impl Future<Output = F::Output> + use<F> {
        REPLAY.scope(self.clone(), run)
    }

    /// Whether its handler may have been called.
    pub(crate) fn has_begun(&self) -> bool {
        self.was_seen() || self.0.begun.load(Ordering::Acquire)
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn begin(&self) {
        self.0.begun.store(true, Ordering::Release);
    }

    /// Whoever answered knows that it is a run.
    #[cfg(feature = "http-replay")]
    pub(crate) fn seen_elsewhere(&self) {
        self.0.seen.store(true, Ordering::Release);
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn hold(&self) -> Arc<HoldFacts> {
        Arc::clone(&self.0.hold)
    }

    pub(crate) fn was_seen(&self) -> bool {
        self.0.seen.load(Ordering::Acquire)
    }

    /// A lock on the way is asked. What another one answered before, or this one when a retry layer came here
    /// for the first time, is not the answer of this run any more.
    pub(crate) fn asks_a_lock(&self) {
        self.0.busy.store(0, Ordering::Release);
    }

    /// It answers by this status; nothing further in has run.
    pub(crate) fn met_a_busy_lock(&self, status: u16) {
        self.0.busy.store(status, Ordering::Release);
    }

    /// Whether this answer is that of a lock that was busy: by its status, which is the layer's to choose.
    pub(crate) fn was_busy_with(&self, status: u16) -> bool {
        self.0.busy.load(Ordering::Acquire) == status
    }
}

/// The replay a request belongs to, by its marker or by the task it runs in.
pub(crate) fn current_replay<V: View>(view: &V) -> Option<Replay> {
    view.get::<Replay>().or_else(|| REPLAY.try_with(Replay::clone).ok())
}

/// Whether it belongs to one.
pub(crate) fn is_replay<V: View>(view: &V) -> bool {
    view.get::<Replay>().is_some() || REPLAY.try_with(|_| ()).is_ok()
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replay").field(&self.0.deferred).finish()
    }
}
