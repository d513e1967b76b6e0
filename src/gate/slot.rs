//! The place that an outer `DeferLayer` makes for a request its inner `LockLayer` finds busy.
//!
//! It travels in the *request's* extensions: a response that is rebuilt on its way out (an error page,
//! a JSON envelope) would lose it there, while whatever keeps the request keeps the slot.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

use crate::{key::Key, store::Store};

/// What the lock knew when it parked the request.
#[derive(Debug)]
pub struct Parked {
    pub(crate) store: Store,
    pub(crate) key: Key,
    /// The status of the busy answer: if another one comes out, something in between has taken over.
    pub(crate) status: u16,
}

/// The slot. One clone is the outer layer's, the other goes through the request to the lock, which
/// takes it out of the request before it fills it.
#[derive(Clone)]
pub struct Slot(Arc<Inner>);

struct Inner {
    record: Option<Arc<str>>,
    parked: Mutex<Option<Parked>>,
}

impl Slot {
    pub(crate) fn new(record: Option<Arc<str>>) -> Self {
        Self(Arc::new(Inner { record, parked: Mutex::new(None) }))
    }

    /// The idempotency record that the lock must look up before it takes a free lock.
    pub(crate) fn record(&self) -> Option<Arc<str>> {
        self.0.record.clone()
    }

    pub(crate) fn fill(&self, parked: Parked) {
        *self.0.parked.lock() = Some(parked);
    }

    pub(crate) fn empty(&self) -> Option<Parked> {
        self.0.parked.lock().take()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = self.0.parked.lock().is_some();
        f.debug_struct("Slot").field("full", &full).finish_non_exhaustive()
    }
}

/// Put into a request by a lock that lets it pass: what stands further in can't be outside that lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderLock;
