//! `ParkingSlot`: the slot of an outer `DeferLayer` for a request that meets a busy `LockLayer`.
//!
//! The slot is in the *request's* extensions. A response that is rebuilt on its way out (an error
//! page, a JSON envelope) would lose it; a middleware that keeps the request keeps the slot.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    direct_run_refusals::DirectRunRefusals, direct_run_terms::IdempotencyLookup,
    idempotent_run::IdempotentRun, request_fingerprint::RequestFingerprint,
};
use crate::{
    key::{Key, LogName},
    store::Store,
};

/// Data of the lock that parked the request.
#[derive(Debug)]
pub struct BusyLockContext {
    pub(crate) store: Store,
    pub(crate) key: Key,
    /// Status of the busy response. Another status at the outer layer means that a layer in between
    /// replaced the response.
    pub(crate) busy_status: u16,
    /// Usual duration of a hold of this lock, measured or assumed.
    pub(crate) typical_hold: Duration,
    /// The request has an idempotency record: it was accepted before, or has run. The response
    /// comes from that record.
    pub(crate) is_recorded: bool,
    /// The request would run under several locks, or share its lock. Its record is looked up, but
    /// it is not stored.
    pub(crate) is_not_deferrable: bool,
}

impl BusyLockContext {
    /// Returns the lock's name for log records.
    pub(crate) fn log_name(&self) -> LogName<'_> {
        self.store.log_name(&self.key)
    }
}

/// Instruction of the outer layer to the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockInstruction {
    /// Wait in the queue for this time, overriding the lock's own policy; zero means no waiting.
    WaitFor(Duration),
    /// Park the request without trying the lock.
    ParkImmediately,
    /// Like `ParkImmediately`; a request that can't be parked must not run either.
    ParkOrRefuse,
}

/// Function that gets the store of the lock that a request meets.
pub(crate) type StoreObserver = Box<dyn Fn(&Store) + Send + Sync>;

/// Slot for a parked request. One clone stays with the outer layer, the other travels with the
/// request to the lock, which takes it out of the request before it fills it.
#[derive(Clone)]
pub struct ParkingSlot(Arc<Inner>);

/// Allocated for every request that may be deferred, and left unchanged by most of them. It is
/// small, and its contents are allocated on demand.
struct Inner {
    instruction: LockInstruction,
    /// The request claims to be a run of a remote worker. A lock that verifies the claim admits the
    /// request; otherwise the request is not deferred, since the worker would take the 202 for the
    /// handler's response. The claim never overrides a rule of the outer layer.
    claims_replay: bool,
    /// A lock layer has seen the request, even if it does not lock it. Not among the contents,
    /// which are not allocated for a request that finds its lock free.
    has_met_lock_layer: AtomicBool,
    idempotency: Option<Box<IdempotencyLookup>>,
    /// Only of the first requests of a layer.
    store_observer: Option<StoreObserver>,
    contents: Mutex<Option<Box<SlotContents>>>,
}

#[derive(Default)]
struct SlotContents {
    parking: Option<BusyLockContext>,
    idempotent_run: Option<IdempotentRun>,
    /// The handler of the run completed under its lock, and its response stands.
    is_answered: bool,
    /// Refusals by gates inside the run.
    refusals: DirectRunRefusals,
    /// Fingerprint of the run's request.
    fingerprint: Option<RequestFingerprint>,
    /// The parked request, in the driver's own type.
    request: Option<Box<dyn Any + Send>>,
    /// A lock has taken the slot out of the request.
    has_reached_lock: bool,
}

impl ParkingSlot {
    #[inline]
    pub(crate) fn new(
        instruction: LockInstruction,
        idempotency: Option<IdempotencyLookup>,
    ) -> Self {
        Self::with_replay_claim(instruction, idempotency, false)
    }

    /// Creates the slot of a request that may claim to be a run.
    pub(crate) fn with_replay_claim(
        instruction: LockInstruction,
        idempotency: Option<IdempotencyLookup>,
        claims_replay: bool,
    ) -> Self {
        Self(Arc::new(Inner {
            instruction,
            claims_replay,
            has_met_lock_layer: AtomicBool::new(false),
            idempotency: idempotency.map(Box::new),
            store_observer: None,
            contents: Mutex::new(None),
        }))
    }

    /// Lets the outer layer know the store of the lock. Call it before the slot is cloned.
    pub(crate) fn with_store_observer(mut self, observer: Option<StoreObserver>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.store_observer = observer;
        }
        self
    }

    pub(crate) fn report_store(&self, store: &Store) {
        self.0.store_observer.iter().for_each(|observe| observe(store));
    }

    pub(crate) fn claims_replay(&self) -> bool {
        self.0.claims_replay
    }

    #[inline]
    pub(crate) fn instruction(&self) -> LockInstruction {
        self.0.instruction
    }

    /// Returns the idempotency record that the lock must look up before it acquires a free lock.
    #[inline]
    pub(crate) fn idempotency(&self) -> Option<&IdempotencyLookup> {
        self.0.idempotency.as_deref()
    }

    /// Returns true if direct runs are recorded.
    pub(crate) fn records_direct_runs(&self) -> bool {
        self.idempotency().is_some_and(|idempotency| idempotency.direct_terms.is_some())
    }

    /// Changes the contents, which are created if there are none.
    fn with_contents(&self, change: impl FnOnce(&mut SlotContents)) {
        change(self.0.contents.lock().get_or_insert_default());
    }

    /// Accesses the contents, if there are any.
    fn with_existing<T>(&self, access: impl FnOnce(&mut SlotContents) -> Option<T>) -> Option<T> {
        self.0.contents.lock().as_mut().and_then(|contents| access(contents))
    }

    /// Notes that a lock layer has seen the request, or that an inner layer defers it in place of
    /// this slot's one.
    pub(super) fn mark_met_lock_layer(&self) {
        self.0.has_met_lock_layer.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_met_lock_layer(&self) -> bool {
        self.0.has_met_lock_layer.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_reached_lock(&self) {
        self.with_contents(|contents| contents.has_reached_lock = true);
    }

    pub(crate) fn has_reached_lock(&self) -> bool {
        self.with_existing(|contents| Some(contents.has_reached_lock)).unwrap_or(false)
    }

    pub(crate) fn set_parking(&self, parking: BusyLockContext) {
        self.with_contents(|contents| contents.parking = Some(parking));
    }

    pub(crate) fn take_parking(&self) -> Option<BusyLockContext> {
        self.with_existing(|contents| contents.parking.take())
    }

    /// Stores the record of the direct run that begins.
    pub(crate) fn set_run(&self, run: IdempotentRun) {
        self.with_contents(|contents| contents.idempotent_run = Some(run));
    }

    /// Notes that the handler is called.
    pub(crate) fn mark_handler_called(&self) {
        self.with_existing(|contents| {
            contents.is_answered = false;
            contents.idempotent_run.as_mut().map(IdempotentRun::mark_started)
        });
    }

    /// Notes that the handler has responded and that no lock was lost.
    pub(crate) fn mark_answered(&self) {
        self.with_contents(|contents| contents.is_answered = true);
    }

    /// Forgets the handler's response: a retry layer has called the lock again.
    pub(crate) fn clear_answered(&self) {
        self.with_existing(|contents| contents.is_answered.then(|| contents.is_answered = false));
    }

    /// Returns the refusal tracker of the run, for the gates inside it.
    pub(crate) fn direct_run_refusals(&self) -> Option<DirectRunRefusals> {
        self.with_existing(|contents| {
            contents.idempotent_run.as_ref().map(|_| contents.refusals.clone())
        })
    }

    /// Returns the status of the gate that kept the run from its handler.
    pub(crate) fn refusal_status(&self) -> Option<u16> {
        self.with_existing(|contents| contents.refusals.refusal_status())
    }

    /// Returns false if the handler was dropped, panicked, or lost its lock.
    pub(crate) fn is_answered(&self) -> bool {
        self.with_existing(|contents| Some(contents.is_answered)).unwrap_or(false)
    }

    /// Returns the deadline of the run if its client has disconnected.
    pub(crate) fn run_abandon_at(&self) -> Option<Instant> {
        self.with_existing(|contents| {
            contents.idempotent_run.as_ref().map(IdempotentRun::abandon_at)
        })
    }

    /// Returns true if the slot has a run that has begun. When a lock is about to acquire, it means
    /// that a retry layer has called it before.
    pub(crate) fn has_run(&self) -> bool {
        self.with_existing(|contents| contents.idempotent_run.is_some().then_some(())).is_some()
    }

    /// Returns a new fingerprint for the request of the run.
    pub(crate) fn start_fingerprint(
        &self,
        head: impl FnOnce() -> (String, String),
    ) -> Option<RequestFingerprint> {
        let terms = self.idempotency()?.direct_terms.as_ref()?;
        self.with_existing(|contents| {
            contents.idempotent_run.as_ref()?;
            let (method, target) = head();
            let fingerprint = RequestFingerprint::new(method, target, terms.compared_body_limit);
            contents.fingerprint = Some(fingerprint.clone());
            Some(fingerprint)
        })
    }

    /// Takes the run and the fingerprint of its request.
    pub(crate) fn take_run(&self) -> Option<(IdempotentRun, Option<RequestFingerprint>)> {
        self.with_existing(|contents| {
            let fingerprint = contents.fingerprint.take();
            contents.idempotent_run.take().map(|run| (run, fingerprint))
        })
    }

    /// Returns true if the body of the run's request broke off.
    pub(crate) fn is_body_truncated(&self) -> bool {
        self.with_existing(|contents| {
            contents.fingerprint.as_ref().map(RequestFingerprint::is_truncated)
        })
        .unwrap_or(false)
    }

    /// Returns true if the slot has neither a parked request nor a run.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let contents = self.0.contents.lock();
        contents
            .as_ref()
            .is_none_or(|contents| contents.parking.is_none() && contents.idempotent_run.is_none())
    }

    /// Stores the unread request for the outer layer's driver.
    pub fn park_request<T: Send + 'static>(&self, request: T) {
        self.with_contents(|contents| contents.request = Some(Box::new(request)));
    }

    /// Takes the parked request, if it is of this type.
    #[must_use]
    pub fn take_request<T: Send + 'static>(&self) -> Option<T> {
        let request = self.with_existing(|contents| contents.request.take())?;
        request.downcast().ok().map(|request| *request)
    }
}

impl fmt::Debug for ParkingSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkingSlot").field("empty", &self.is_empty()).finish_non_exhaustive()
    }
}
