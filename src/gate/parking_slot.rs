//! The place that an outer `DeferLayer` makes for a request its inner `LockLayer` finds busy.
//!
//! It travels in the *request's* extensions: a response that is rebuilt on its way out (an error page,
//! a JSON envelope) would lose it there, while whatever keeps the request keeps the slot.

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

/// What the lock knew when it parked the request.
#[derive(Debug)]
pub struct ParkingContext {
    pub(crate) store: Store,
    pub(crate) key: Key,
    /// The status of the busy answer: if another one comes out, something in between has taken over.
    pub(crate) busy_status: u16,
    /// How long this lock is usually held, if that is known.
    pub(crate) typical_hold: Option<Duration>,
    /// The request was accepted before, or has run: it is to be answered with that.
    pub(crate) is_recorded: bool,
    /// It would not run under this lock alone, or not alone under it: it is looked up, and not stored.
    pub(crate) is_not_deferrable: bool,
}

/// What the outer layer asks of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptMode {
    /// Stand in line for so long, whatever the lock's own policy is; zero = don't.
    WaitFor(Duration),
    /// Don't even try: park it at once.
    ParkImmediately,
    /// The same, and a request that can't be parked must not run either.
    ParkOrRefuse,
}

/// The slot. One clone is the outer layer's, the other goes through the request to the lock, which
/// takes it out of the request before it fills it.
#[derive(Clone)]
pub struct ParkingSlot(Arc<Inner>);

/// What our layers tell each other in a request whose outer layer made a slot: one entry of its extensions, so
/// that what the lock has to say costs no second one.
#[derive(Clone)]
struct LayerContext {
    /// Until a lock takes it out.
    slot: Option<ParkingSlot>,
    /// As [`UnderLockMark`].
    under_lock: bool,
}

/// Made for every request that may be deferred, and left as it is by most: so it is small, and the rest is
/// made when there is something to be kept.
struct Inner {
    mode: AttemptMode,
    /// The request says that it is a run of a worker elsewhere. If the lock believes it, it passes; if not, it is not
    /// deferred: a worker would take the 202 for the answer of the handler. In neither case is a rule of the outer layer
    /// forgotten because somebody has said so.
    claims_replay: bool,
    idempotency: Option<Box<IdempotencyLookup>>,
    contents: Mutex<Option<Box<SlotContents>>>,
}

/// The idempotency record of a request.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyLookup {
    pub(crate) record_name: Arc<str>,
    /// Requests that run at once are remembered too.
    pub(crate) direct_terms: Option<DirectRunTerms>,
}

/// Terms on which a request that runs at once is remembered.
#[derive(Debug, Clone)]
pub(crate) struct DirectRunTerms {
    /// Whose it is.
    pub(crate) owner: String,
    /// Bytes of the longest body that is compared.
    pub(crate) compared_body_limit: usize,
    /// How long its record is kept.
    pub(crate) retention: Duration,
    /// It may run again when it is unknown how far it came.
    pub(crate) is_repeatable: bool,
    /// Most that run at once in this process.
    pub(crate) max_runs: usize,
    /// Of these, what is kept of it.
    pub(crate) retention_caps: StorageLimits,
}

#[derive(Default)]
struct SlotContents {
    parking: Option<ParkingContext>,
    idempotent_run: Option<IdempotentRun>,
    /// The handler of what has begun came to its end under its lock, and its answer stands.
    is_answered: bool,
    /// Refusals by gates within what has begun.
    refusals: RefusalTracker,
    /// Of the request that has begun.
    fingerprint: Option<RequestFingerprint>,
    /// In the driver's own types.
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

    /// Of a request that may say that it is a run.
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

    /// The idempotency record that the lock must look up before it takes a free lock.
    #[inline]
    pub(crate) fn idempotency(&self) -> Option<&IdempotencyLookup> {
        self.0.idempotency.as_deref()
    }

    /// Also of a request that runs at once its end is remembered.
    pub(crate) fn records_direct_runs(&self) -> bool {
        self.idempotency().is_some_and(|record| record.direct_terms.is_some())
    }

    /// Sends it along with the request, in place of that of a layer further out.
    pub(crate) fn attach_to<V: GateRequest>(&self, view: &mut V) {
        let slot = Some(self.clone());
        if !view.update_extension(|between: &mut LayerContext| between.slot.clone_from(&slot)) {
            view.insert_extension(LayerContext { slot, under_lock: false });
        }
    }

    /// Takes it out of the request.
    pub(crate) fn take_from<V: GateRequest>(view: &mut V) -> Option<Self> {
        let mut slot = None;
        view.update_extension(|between: &mut LayerContext| slot = between.slot.take());
        slot
    }

    /// Puts something into it.
    fn with_contents(&self, put: impl FnOnce(&mut SlotContents)) {
        put(self.0.contents.lock().get_or_insert_default());
    }

    /// Looks at what there is, if there is anything.
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

    /// It runs now, and is remembered.
    pub(crate) fn set_run(&self, begun: IdempotentRun) {
        self.with_contents(|filled| filled.idempotent_run = Some(begun));
    }

    /// The handler is called now.
    pub(crate) fn mark_handler_called(&self) {
        self.with_existing(|filled| {
            filled.is_answered = false;
            filled.idempotent_run.as_mut().map(IdempotentRun::mark_started)
        });
    }

    /// The handler has answered, and nothing was lost.
    pub(crate) fn mark_answered(&self) {
        self.with_contents(|filled| filled.is_answered = true);
    }

    /// A retry layer in between calls the lock again: the answer so far is not that of the request.
    pub(crate) fn clear_answered(&self) {
        self.with_existing(|filled| filled.is_answered.then(|| filled.is_answered = false));
    }

    /// Returns the run that has begun, for the gates within it.
    pub(crate) fn refusal_tracker(&self) -> Option<RefusalTracker> {
        self.with_existing(|filled| filled.idempotent_run.as_ref().map(|_| filled.refusals.clone()))
    }

    /// Returns the status of the gate that kept the run from its handler.
    pub(crate) fn refusal_status(&self) -> Option<u16> {
        self.with_existing(|filled| filled.refusals.refusal_status())
    }

    /// False if the handler was dropped, panicked, or lost its lock.
    pub(crate) fn is_answered(&self) -> bool {
        self.with_existing(|filled| Some(filled.is_answered)).unwrap_or(false)
    }

    /// When what has begun must have ended if its client has left.
    pub(crate) fn run_abandon_at(&self) -> Option<Instant> {
        self.with_existing(|filled| filled.idempotent_run.as_ref().map(IdempotentRun::abandon_at))
    }

    /// A retry layer in between has come here before.
    pub(crate) fn has_run(&self) -> bool {
        self.with_existing(|filled| filled.idempotent_run.is_some().then_some(())).is_some()
    }

    /// What takes the fingerprint of the request that has begun.
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

    /// What has begun, and what is known of the body of its request.
    pub(crate) fn take_run(&self) -> Option<(IdempotentRun, Option<RequestFingerprint>)> {
        self.with_existing(|filled| {
            let print = filled.fingerprint.take();
            filled.idempotent_run.take().map(|begun| (begun, print))
        })
    }

    /// True if the body of the request that has begun was cut off.
    pub(crate) fn is_body_truncated(&self) -> bool {
        self.with_existing(|filled| {
            filled.fingerprint.as_ref().map(RequestFingerprint::is_truncated)
        })
        .unwrap_or(false)
    }

    /// True if nobody has left anything here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let filled = self.0.contents.lock();
        filled
            .as_ref()
            .is_none_or(|filled| filled.parking.is_none() && filled.idempotent_run.is_none())
    }

    /// Keeps the unread request for the outer layer's driver.
    pub fn park_request<T: Send + 'static>(&self, request: T) {
        self.with_contents(|filled| filled.request = Some(Box::new(request)));
    }

    /// The request that was parked, if it is of this type.
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

/// Put into a request by a lock that lets it pass: what stands further in can't be outside that lock.
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
