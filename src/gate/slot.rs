//! The place that an outer `DeferLayer` makes for a request its inner `LockLayer` finds busy.
//!
//! It travels in the *request's* extensions: a response that is rebuilt on its way out (an error page,
//! a JSON envelope) would lose it there, while whatever keeps the request keeps the slot.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{begun::Begun, print::Print, refusals::RememberedRun, view::View};
use crate::{
    key::Key,
    store::{StorageLimits, Store},
};

/// What the lock knew when it parked the request.
#[derive(Debug)]
pub struct Parked {
    pub(crate) store: Store,
    pub(crate) key: Key,
    /// The status of the busy answer: if another one comes out, something in between has taken over.
    pub(crate) status: u16,
    /// How long this lock is usually held, if that is known.
    pub(crate) usual: Option<Duration>,
    /// The request was accepted before, or has run: it is to be answered with that.
    pub(crate) known: bool,
    /// It would not run under this lock alone, or not alone under it: it is looked up, and not stored.
    pub(crate) unfit: bool,
}

/// What the outer layer asks of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trying {
    /// Stand in line for so long, whatever the lock's own policy is; zero = don't.
    For(Duration),
    /// Don't even try: park it at once.
    Never,
    /// The same, and a request that can't be parked must not run either.
    Background,
}

/// The slot. One clone is the outer layer's, the other goes through the request to the lock, which
/// takes it out of the request before it fills it.
#[derive(Clone)]
pub struct Slot(Arc<Inner>);

/// What our layers tell each other in a request whose outer layer made a slot: one entry of its extensions, so
/// that what the lock has to say costs no second one.
#[derive(Clone)]
struct Between {
    /// Until a lock takes it out.
    slot: Option<Slot>,
    /// As [`UnderLock`].
    under_lock: bool,
}

/// Made for every request that may be deferred, and left as it is by most: so it is small, and the rest is
/// made when there is something to be kept.
struct Inner {
    trying: Trying,
    /// The request says that it is a run of a worker elsewhere. If the lock believes it, it passes; if not, it is not
    /// deferred: a worker would take the 202 for the answer of the handler. In neither case is a rule of the outer layer
    /// forgotten because somebody has said so.
    said_to_run: bool,
    record: Option<Box<Record>>,
    filled: Mutex<Option<Box<Filled>>>,
}

/// The idempotency record of a request.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) name: Arc<str>,
    /// Requests that run at once are remembered too.
    pub(crate) remember: Option<Remember>,
}

/// Terms on which a request that runs at once is remembered.
#[derive(Debug, Clone)]
pub(crate) struct Remember {
    /// Whose it is.
    pub(crate) owner: String,
    /// Bytes of the longest body that is compared.
    pub(crate) body_limit: usize,
    /// How long its record is kept.
    pub(crate) life: Duration,
    /// It may run again when it is unknown how far it came.
    pub(crate) again: bool,
    /// Most that run at once in this process.
    pub(crate) runs: usize,
    /// Of these, what is kept of it.
    pub(crate) caps: StorageLimits,
}

#[derive(Default)]
struct Filled {
    parked: Option<Parked>,
    begun: Option<Begun>,
    /// The handler of what has begun came to its end under its lock, and its answer stands.
    answered: bool,
    /// Refusals by gates within what has begun.
    run: RememberedRun,
    /// Of the request that has begun.
    print: Option<Print>,
    /// In the driver's own types.
    request: Option<Box<dyn Any + Send>>,
    /// A lock has taken the slot out of the request.
    seen: bool,
}

impl Slot {
    #[inline]
    pub(crate) fn new(trying: Trying, record: Option<Record>) -> Self {
        let (record, filled) = (record.map(Box::new), Mutex::new(None));
        Self(Arc::new(Inner { trying, said_to_run: false, record, filled }))
    }

    /// Of a request that may say that it is a run.
    pub(crate) fn saying(trying: Trying, record: Option<Record>, said_to_run: bool) -> Self {
        let (record, filled) = (record.map(Box::new), Mutex::new(None));
        Self(Arc::new(Inner { trying, said_to_run, record, filled }))
    }

    pub(crate) fn is_said_to_run(&self) -> bool {
        self.0.said_to_run
    }

    #[inline]
    pub(crate) fn trying(&self) -> Trying {
        self.0.trying
    }

    /// The idempotency record that the lock must look up before it takes a free lock.
    #[inline]
    pub(crate) fn record(&self) -> Option<&Record> {
        self.0.record.as_deref()
    }

    /// Also of a request that runs at once its end is remembered.
    pub(crate) fn remembers(&self) -> bool {
        self.record().is_some_and(|record| record.remember.is_some())
    }

    /// Sends it along with the request, in place of that of a layer further out.
    pub(crate) fn send<V: View>(&self, view: &mut V) {
        let slot = Some(self.clone());
        if !view.change(|between: &mut Between| between.slot.clone_from(&slot)) {
            view.put(Between { slot, under_lock: false });
        }
    }

    /// Takes it out of the request.
    pub(crate) fn arrive<V: View>(view: &mut V) -> Option<Self> {
        let mut slot = None;
        view.change(|between: &mut Between| slot = between.slot.take());
        slot
    }

    /// Puts something into it.
    fn put(&self, put: impl FnOnce(&mut Filled)) {
        put(self.0.filled.lock().get_or_insert_default());
    }

    /// Looks at what there is, if there is anything.
    fn look<T>(&self, look: impl FnOnce(&mut Filled) -> Option<T>) -> Option<T> {
        self.0.filled.lock().as_mut().and_then(|filled| look(filled))
    }

    pub(crate) fn note_seen(&self) {
        self.put(|filled| filled.seen = true);
    }

    pub(crate) fn was_seen(&self) -> bool {
        self.look(|filled| Some(filled.seen)).unwrap_or(false)
    }

    pub(crate) fn fill(&self, parked: Parked) {
        self.put(|filled| filled.parked = Some(parked));
    }

    pub(crate) fn empty(&self) -> Option<Parked> {
        self.look(|filled| filled.parked.take())
    }

    /// It runs now, and is remembered.
    pub(crate) fn begin(&self, begun: Begun) {
        self.put(|filled| filled.begun = Some(begun));
    }

    /// The handler is called now.
    pub(crate) fn start(&self) {
        self.look(|filled| {
            filled.answered = false;
            filled.begun.as_mut().map(Begun::start)
        });
    }

    /// The handler has answered, and nothing was lost.
    pub(crate) fn note_answered(&self) {
        self.put(|filled| filled.answered = true);
    }

    /// A retry layer in between calls the lock again: the answer so far is not that of the request.
    pub(crate) fn note_unanswered(&self) {
        self.look(|filled| filled.answered.then(|| filled.answered = false));
    }

    /// Returns the run that has begun, for the gates within it.
    pub(crate) fn run(&self) -> Option<RememberedRun> {
        self.look(|filled| filled.begun.as_ref().map(|_| filled.run.clone()))
    }

    /// Returns the status of the gate that kept the run from its handler.
    pub(crate) fn refusal(&self) -> Option<u16> {
        self.look(|filled| filled.run.refusal())
    }

    /// False if the handler was dropped, panicked, or lost its lock.
    pub(crate) fn was_answered(&self) -> bool {
        self.look(|filled| Some(filled.answered)).unwrap_or(false)
    }

    /// When what has begun must have ended if its client has left.
    pub(crate) fn begun_until(&self) -> Option<Instant> {
        self.look(|filled| filled.begun.as_ref().map(Begun::until))
    }

    /// A retry layer in between has come here before.
    pub(crate) fn has_begun(&self) -> bool {
        self.look(|filled| filled.begun.is_some().then_some(())).is_some()
    }

    /// What takes the fingerprint of the request that has begun.
    pub(crate) fn print(&self, head: impl FnOnce() -> (String, String)) -> Option<Print> {
        let remember = self.record()?.remember.as_ref()?;
        self.look(|filled| {
            filled.begun.as_ref()?;
            let (method, target) = head();
            let print = Print::new(method, target, remember.body_limit);
            filled.print = Some(print.clone());
            Some(print)
        })
    }

    /// What has begun, and what is known of the body of its request.
    pub(crate) fn begun(&self) -> Option<(Begun, Option<Print>)> {
        self.look(|filled| {
            let print = filled.print.take();
            filled.begun.take().map(|begun| (begun, print))
        })
    }

    /// True if the body of the request that has begun was cut off.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.look(|filled| filled.print.as_ref().map(Print::is_cut_off)).unwrap_or(false)
    }

    /// True if nobody has left anything here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let filled = self.0.filled.lock();
        filled.as_ref().is_none_or(|filled| filled.parked.is_none() && filled.begun.is_none())
    }

    /// Keeps the unread request for the outer layer's driver.
    pub fn park<T: Send + 'static>(&self, request: T) {
        self.put(|filled| filled.request = Some(Box::new(request)));
    }

    /// The request that was parked, if it is of this type.
    #[must_use]
    pub fn take_request<T: Send + 'static>(&self) -> Option<T> {
        let request = self.look(|filled| filled.request.take())?;
        request.downcast().ok().map(|request| *request)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("empty", &self.is_empty()).finish_non_exhaustive()
    }
}

/// Put into a request by a lock that lets it pass: what stands further in can't be outside that lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderLock;

impl UnderLock {
    pub(crate) fn note<V: View>(view: &mut V) {
        if !view.change(|between: &mut Between| between.under_lock = true) {
            view.put(Self);
        }
    }

    pub(crate) fn is_noted<V: View>(view: &mut V) -> bool {
        let mut noted = false;
        view.change(|between: &mut Between| noted = between.under_lock);
        noted || view.get::<Self>().is_some()
    }
}
