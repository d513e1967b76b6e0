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

use super::view::View;
use crate::{
    key::Key,
    store::{HoldState, JobId, Store},
};

/// The field by which a run in another process is known, and checked there: see `remote`.
pub(crate) const REPLAY_FIELD: &str = "lockgate-replay";

tokio::task_local! {
    static REPLAY: Inside;
}

/// What is inside of a run: counted until it has been dropped, wherever it was sent to.
#[derive(Debug)]
pub(crate) struct Inside(Replay);

impl Inside {
    pub(crate) fn of(replay: &Replay) -> Self {
        replay.0.inside.fetch_add(1, Ordering::AcqRel);
        Self(replay.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let run = &self.0.0;
        if run.inside.fetch_sub(1, Ordering::AcqRel) == 1 {
            run.left.notify_waiters();
        }
    }
}

/// Nothing of it has come to a handler.
const WAITING: u8 = 0;
/// Its handler may have been called.
const BEGUN: u8 = 1;
/// Nobody waits for it, and no handler begins any more.
const GIVEN_UP: u8 = 2;

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

/// Nobody waits for this run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivenUp;

/// The marker of a run.
#[derive(Clone)]
pub struct Replay(Arc<Inner>);

struct Inner {
    deferred: Deferred,
    /// The one that the job lies in.
    store: Store,
    hold: Arc<HoldState>,
    /// What the replayer puts into the request's extensions.
    restored: Vec<Box<dyn Any + Send + Sync>>,
    /// `WAITING`, then one of the others: which of them is decided once, however many threads the run is in.
    stage: AtomicU8,
    /// How many are inside, and who waits for the last of them.
    inside: AtomicUsize,
    left: Notify,
    /// It was sent to another process, and nobody knows that it has ended there.
    elsewhere: AtomicBool,
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
        hold: Arc<HoldState>,
        restored: Vec<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            deferred,
            store: store.clone(),
            hold,
            restored,
            stage: AtomicU8::new(WAITING),
            inside: AtomicUsize::new(0),
            left: Notify::new(),
            elsewhere: AtomicBool::new(false),
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

    /// The store that the job lies in, by the worker's handle.
    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns true if the job's own lock has one of these keys. It may still be in another store.
    pub(crate) fn names_one_of(&self, keys: &[Key]) -> bool {
        keys.contains(self.0.hold.key())
    }

    /// The job's own lock, if its key is among these, and it is in this store: the worker may have another handle
    /// on that. Another lock on the way, or one of this name elsewhere, must be acquired as ever.
    ///
    /// # Errors
    ///
    /// If the run was given up, or has lost its lock: another one may be under way.
    pub(crate) fn hold_among(
        &self,
        store: &Store,
        keys: &[Key],
    ) -> Result<Option<Arc<HoldState>>, GivenUp> {
        let hold = &self.0.hold;
        let own = self.names_one_of(keys) && self.store().is_same_as(store) == Some(true);
        let stands = if own { self.begin() } else { !self.is_given_up() };
        if !stands || hold.is_closed() || hold.loss().is_some() {
            return Err(GivenUp);
        }
        Ok(own.then(|| {
            self.0.seen.store(true, Ordering::Release);
            Arc::clone(hold)
        }))
    }

    /// What the lock of a job does, for routes of tests, which have none.
    #[cfg(test)]
    pub(crate) fn pass(&self, key: &Key) {
        self.0.seen.store(self.0.hold.key() == key && self.begin(), Ordering::Release);
    }

    /// Runs `run` so that layers inside know it as this replay even without the extension. Until it has ended or
    /// was dropped the run is under way, whoever still waits for it.
    pub fn scope<F: Future>(&self, run: F) -> impl Future<Output = F::Output> + use<F> {
        REPLAY.scope(Inside::of(self), run)
    }

    /// Its handler may be called from here on; false if the run was given up before.
    pub(crate) fn begin(&self) -> bool {
        self.decide(BEGUN)
    }

    /// No handler behind the job's lock begins any more; false if one may have begun before. For a replayer that
    /// does not know what became of a run: one that is given up has not run.
    #[must_use]
    pub fn give_up(&self) -> bool {
        self.decide(GIVEN_UP)
    }

    fn is_given_up(&self) -> bool {
        self.0.stage.load(Ordering::Acquire) == GIVEN_UP
    }

    fn decide(&self, stage: u8) -> bool {
        let (won, read) = (Ordering::AcqRel, Ordering::Acquire);
        let was = self.0.stage.compare_exchange(WAITING, stage, won, read);
        was.unwrap_or_else(|was| if was == stage { WAITING } else { was }) == WAITING
    }

    /// Whether anything of it has not been dropped yet. In another thread that may take as long as the handler does
    /// not await; and of what went to another process it is not known.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_inside() || self.is_elsewhere()
    }

    /// Whether anything of it in this process has not been dropped yet.
    pub(crate) fn is_inside(&self) -> bool {
        self.0.inside.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_elsewhere(&self) -> bool {
        self.0.elsewhere.load(Ordering::Acquire)
    }

    /// Until nothing of it is under way. Cancel safe.
    pub(crate) async fn left(&self) {
        loop {
            let mut left = pin!(self.0.left.notified());
            // Before the look: what is told from here on is not missed.
            left.as_mut().enable();
            if !self.is_under_way() {
                return;
            }
            left.await;
        }
    }

    /// Whoever answered knows that it is a run.
    #[cfg(feature = "http-replay")]
    pub(crate) fn seen_elsewhere(&self) {
        self.0.seen.store(true, Ordering::Release);
    }

    /// It may run in another process from here on.
    #[cfg(feature = "http-replay")]
    pub(crate) fn goes_elsewhere(&self) {
        self.0.elsewhere.store(true, Ordering::Release);
    }

    /// It has ended there, or has not begun, or must have ended.
    #[cfg(feature = "http-replay")]
    pub(crate) fn is_back(&self) {
        self.0.elsewhere.store(false, Ordering::Release);
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn hold(&self) -> Arc<HoldState> {
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

    /// Whether a lock on the way has let nobody further in.
    pub(crate) fn was_busy(&self) -> bool {
        self.0.busy.load(Ordering::Acquire) != 0
    }

    /// Whether this answer is that of a lock that was busy: by its status, which is the layer's to choose.
    pub(crate) fn was_busy_with(&self, status: u16) -> bool {
        self.0.busy.load(Ordering::Acquire) == status
    }
}

/// The replay a request belongs to, by its marker or by the task it runs in.
pub(crate) fn current_replay<V: View>(view: &V) -> Option<Replay> {
    view.get::<Replay>().or_else(|| REPLAY.try_with(|inside| inside.0.clone()).ok())
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
