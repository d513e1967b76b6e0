//! `RunSlots`: the run slots of a worker, and the slot of one run.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counter of run slots, up to a limit.
pub(super) struct RunSlots {
    limit: usize,
    taken: AtomicUsize,
    freed: Notify,
}

impl RunSlots {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: AtomicUsize::new(0), freed: Notify::new() })
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of slots with a run.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.taken.load(Ordering::Acquire) < self.limit
    }

    /// Takes a slot without a check. Callers check [`Self::has_free_slot`] first, so only one task
    /// may take slots.
    pub(super) fn acquire(self: &Arc<Self>) -> RunSlot {
        self.taken.fetch_add(1, Ordering::AcqRel);
        RunSlot { slots: Arc::clone(self), held: AtomicBool::new(true) }
    }

    /// Waits until a slot is released. A release since the last call counts. Cancel safe.
    pub(super) async fn wait_freed(&self) {
        self.freed.notified().await;
    }
}

/// Slot of one run. It is released when dropped, or earlier: the work after a handler has ended
/// needs no slot.
pub(super) struct RunSlot {
    slots: Arc<RunSlots>,
    held: AtomicBool,
}

impl RunSlot {
    /// Returns the number of slots of the worker.
    pub(super) fn limit(&self) -> usize {
        self.slots.limit
    }

    pub(super) fn release(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.slots.taken.fetch_sub(1, Ordering::AcqRel);
            self.slots.freed.notify_one();
        }
    }
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        self.release();
    }
}
