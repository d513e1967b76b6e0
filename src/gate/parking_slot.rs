//! `ParkingSlot`: the slot of an outer `DeferLayer` for a request that meets a busy `LockLayer`.
//!
//! The slot is in the *request's* extensions. A response that is rebuilt on its way out (an error
//! page, a JSON envelope) would lose it; a middleware that keeps the request keeps the slot.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    gate_request::GateRequest, idempotent_run::IdempotentRun, refusal_tracker::RefusalTracker,
    request_fingerprint::RequestFingerprint,
};
use crate::{
    key::Key,
    store::{StorageLimits, Store},
};

/// Data of the lock that parked the request.
#[derive(Debug)]
pub struct ParkingContext {
    pub(crate) store: Store,
    pub(crate) key: Key,
    /// Status of the busy response. Another status at the outer layer means that a layer in between
    /// replaced the response.
    pub(crate) busy_status: u16,
    /// Usual duration of a hold of this lock, if it is known.
    pub(crate) typical_hold: Option<Duration>,
    /// The request has an idempotency record: it was accepted before, or has run. The response
    /// comes from that record.
    pub(crate) is_recorded: bool,
    /// The request would run under several locks, or share its lock. Its record is looked up, but
    /// it is not stored.
    pub(crate) is_not_deferrable: bool,
}

/// Instruction of the outer layer to the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptMode {
    /// Wait in the queue for this time, overriding the lock's own policy; zero means no waiting.
    WaitFor(Duration),
    /// Park the request without trying the lock.
    ParkImmediately,
    /// Like `ParkImmediately`; a request that can't be parked must not run either.
    ParkOrRefuse,
}

/// Slot for a parked request. One clone stays with the outer layer, the other travels with the
/// request to the lock, which takes it out of the request before it fills it.
#[derive(Clone)]
pub struct ParkingSlot(Arc<Inner>);

/// Data that the layers of one request exchange, as a single extension: the lock's mark needs no
/// second one.
#[derive(Clone)]
struct LayerContext {
    /// `None` once a lock has taken it.
    slot: Option<ParkingSlot>,
    /// Like [`UnderLockMark`].
    under_lock: bool,
}

/// Allocated for every request that may be deferred, and left unchanged by most of them. It is
/// small, and its contents are allocated on demand.
struct Inner {
    mode: AttemptMode,
    /// The request claims to be a run of a remote worker. A lock that verifies the claim admits the
    /// request; otherwise the request is not deferred, since the worker would take the 202 for the
    /// handler's response. The claim never overrides a rule of the outer layer.
    claims_replay: bool,
    idempotency: Option<Box<IdempotencyLookup>>,
    contents: Mutex<Option<Box<SlotContents>>>,
}

/// The idempotency record of a request.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyLookup {
    pub(crate) record_name: Arc<str>,
    /// Terms of a direct run; `None` if direct runs are not recorded.
    pub(crate) direct_terms: Option<DirectRunTerms>,
}

/// Terms on which a direct run is recorded.
#[derive(Debug, Clone)]
pub(crate) struct DirectRunTerms {
    /// Owner of the request.
    pub(crate) owner: String,
    /// Longest body that is fingerprinted, in bytes.
    pub(crate) compared_body_limit: usize,
    /// Time for which the record is kept.
    pub(crate) retention: Duration,
    /// The request may run again after a run with an unknown outcome.
    pub(crate) is_repeatable: bool,
    /// Most direct runs of this process at once.
    pub(crate) max_runs: usize,
    /// Storage limits that apply to the record.
    pub(crate) retention_caps: StorageLimits,
}

#[derive(Default)]
struct SlotContents {
    parking: Option<ParkingContext>,
    idempotent_run: Option<IdempotentRun>,
    /// The handler of the run completed under its lock, and its response stands.
    is_answered: bool,
    /// Refusals by gates inside the run.
    refusals: RefusalTracker,
    /// Fingerprint of the run's request.
    fingerprint: Option<RequestFingerprint>,
    /// The parked request, in the driver's own type.
    request: Option<Box<dyn Any + Send>>,
    /// A lock has taken the slot out of the request.
    has_reached_lock: bool,
}

impl ParkingSlot {
    #[inline]
    pub(crate) fn new(trying: AttemptMode, record: Option<IdempotencyLookup>) -> Self {
        let (record, filled) = (record.map(Box::new), Mutex::new(None));
        Self(Arc::new(Inner {
            mode: trying,
            claims_replay: false,
            idempotency: record,
            contents: filled,
        }))
    }

    /// Creates the slot of a request that may claim to be a run.
    pub(crate) fn with_replay_claim(
        trying: AttemptMode,
        record: Option<IdempotencyLookup>,
        said_to_run: bool,
    ) -> Self {
        let (record, filled) = (record.map(Box::new), Mutex::new(None));
        Self(Arc::new(Inner {
            mode: trying,
            claims_replay: said_to_run,
            idempotency: record,
            contents: filled,
        }))
    }

    pub(crate) fn claims_replay(&self) -> bool {
        self.0.claims_replay
    }

    #[inline]
    pub(crate) fn mode(&self) -> AttemptMode {
        self.0.mode
    }

    /// Returns the idempotency record that the lock must look up before it acquires a free lock.
    #[inline]
    pub(crate) fn idempotency(&self) -> Option<&IdempotencyLookup> {
        self.0.idempotency.as_deref()
    }

    /// Returns true if direct runs are recorded.
    pub(crate) fn records_direct_runs(&self) -> bool {
        self.idempotency().is_some_and(|record| record.direct_terms.is_some())
    }

    /// Attaches the slot to the request, in place of an outer layer's slot.
    pub(crate) fn attach_to<V: GateRequest>(&self, view: &mut V) {
        let slot = Some(self.clone());
        if !view.update_extension(|between: &mut LayerContext| between.slot.clone_from(&slot)) {
            view.insert_extension(LayerContext { slot, under_lock: false });
        }
    }

    /// Takes the slot out of the request.
    pub(crate) fn take_from<V: GateRequest>(view: &mut V) -> Option<Self> {
        let mut slot = None;
        view.update_extension(|between: &mut LayerContext| slot = between.slot.take());
        slot
    }

    /// Changes the contents, which are created if there are none.
    fn with_contents(&self, put: impl FnOnce(&mut SlotContents)) {
        put(self.0.contents.lock().get_or_insert_default());
    }

    /// Accesses the contents, if there are any.
    fn with_existing<T>(&self, look: impl FnOnce(&mut SlotContents) -> Option<T>) -> Option<T> {
        self.0.contents.lock().as_mut().and_then(|filled| look(filled))
    }

    pub(crate) fn mark_reached_lock(&self) {
        self.with_contents(|filled| filled.has_reached_lock = true);
    }

    pub(crate) fn has_reached_lock(&self) -> bool {
        self.with_existing(|filled| Some(filled.has_reached_lock)).unwrap_or(false)
    }

    pub(crate) fn set_parking(&self, parked: ParkingContext) {
        self.with_contents(|filled| filled.parking = Some(parked));
    }

    pub(crate) fn take_parking(&self) -> Option<ParkingContext> {
        self.with_existing(|filled| filled.parking.take())
    }

    /// Stores the record of the direct run that begins.
    pub(crate) fn set_run(&self, begun: IdempotentRun) {
        self.with_contents(|filled| filled.idempotent_run = Some(begun));
    }

    /// Notes that the handler is called.
    pub(crate) fn mark_handler_called(&self) {
        self.with_existing(|filled| {
            filled.is_answered = false;
            filled.idempotent_run.as_mut().map(IdempotentRun::mark_started)
        });
    }

    /// Notes that the handler has responded and that no lock was lost.
    pub(crate) fn mark_answered(&self) {
        self.with_contents(|filled| filled.is_answered = true);
    }

    /// Forgets the handler's response: a retry layer has called the lock again.
    pub(crate) fn clear_answered(&self) {
        self.with_existing(|filled| filled.is_answered.then(|| filled.is_answered = false));
    }

    /// Returns the refusal tracker of the run, for the gates inside it.
    pub(crate) fn refusal_tracker(&self) -> Option<RefusalTracker> {
        self.with_existing(|filled| filled.idempotent_run.as_ref().map(|_| filled.refusals.clone()))
    }

    /// Returns the status of the gate that kept the run from its handler.
    pub(crate) fn refusal_status(&self) -> Option<u16> {
        self.with_existing(|filled| filled.refusals.refusal_status())
    }

    /// Returns false if the handler was dropped, panicked, or lost its lock.
    pub(crate) fn is_answered(&self) -> bool {
        self.with_existing(|filled| Some(filled.is_answered)).unwrap_or(false)
    }

    /// Returns the deadline of the run if its client has disconnected.
    pub(crate) fn run_abandon_at(&self) -> Option<Instant> {
        self.with_existing(|filled| filled.idempotent_run.as_ref().map(IdempotentRun::abandon_at))
    }

    /// Returns true if the slot has a run that has begun. When a lock is about to acquire, it means
    /// that a retry layer has called it before.
    pub(crate) fn has_run(&self) -> bool {
        self.with_existing(|filled| filled.idempotent_run.is_some().then_some(())).is_some()
    }

    /// Returns a new fingerprint for the request of the run.
    pub(crate) fn start_fingerprint(
        &self,
        head: impl FnOnce() -> (String, String),
    ) -> Option<RequestFingerprint> {
        let remember = self.idempotency()?.direct_terms.as_ref()?;
        self.with_existing(|filled| {
            filled.idempotent_run.as_ref()?;
            let (method, target) = head();
            let print = RequestFingerprint::new(method, target, remember.compared_body_limit);
            filled.fingerprint = Some(print.clone());
            Some(print)
        })
    }

    /// Takes the run and the fingerprint of its request.
    pub(crate) fn take_run(&self) -> Option<(IdempotentRun, Option<RequestFingerprint>)> {
        self.with_existing(|filled| {
            let print = filled.fingerprint.take();
            filled.idempotent_run.take().map(|begun| (begun, print))
        })
    }

    /// Returns true if the body of the run's request broke off.
    pub(crate) fn is_body_truncated(&self) -> bool {
        self.with_existing(|filled| {
            filled.fingerprint.as_ref().map(RequestFingerprint::is_truncated)
        })
        .unwrap_or(false)
    }

    /// Returns true if the slot has neither a parked request nor a run.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let filled = self.0.contents.lock();
        filled
            .as_ref()
            .is_none_or(|filled| filled.parking.is_none() && filled.idempotent_run.is_none())
    }

    /// Stores the unread request for the outer layer's driver.
    pub fn park_request<T: Send + 'static>(&self, request: T) {
        self.with_contents(|filled| filled.request = Some(Box::new(request)));
    }

    /// Takes the parked request, if it is of this type.
    #[must_use]
    pub fn take_request<T: Send + 'static>(&self) -> Option<T> {
        let request = self.with_existing(|filled| filled.request.take())?;
        request.downcast().ok().map(|request| *request)
    }
}

impl fmt::Debug for ParkingSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkingSlot").field("empty", &self.is_empty()).finish_non_exhaustive()
    }
}

/// Mark of a request that passed a lock: layers further inside are under that lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderLockMark;

impl UnderLockMark {
    pub(crate) fn set_on<V: GateRequest>(view: &mut V) {
        if !view.update_extension(|between: &mut LayerContext| between.under_lock = true) {
            view.insert_extension(Self);
        }
    }

    pub(crate) fn is_set_on<V: GateRequest>(view: &mut V) -> bool {
        let mut noted = false;
        view.update_extension(|between: &mut LayerContext| noted = between.under_lock);
        noted || view.extension::<Self>().is_some()
    }
}
