//! Room for runs: a slot each.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// As many runs as a worker may have at once.
pub(super) struct RunSlots {
    limit: usize,
    taken: AtomicUsize,
    freed: Notify,
}

impl RunSlots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { limit: most, taken: AtomicUsize::new(0), freed: Notify::new() })
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.taken.load(Ordering::Acquire) < self.limit
    }

    /// Only by one: whoever asks [`Self::has_free_slot`] before must be alone in taking.
    pub(super) fn acquire(self: &Arc<Self>) -> RunSlot {
        self.taken.fetch_add(1, Ordering::AcqRel);
        RunSlot { slots: Arc::clone(self), held: AtomicBool::new(true) }
    }

    /// Until one is given back; one that came back since the last time counts. Cancel safe.
    pub(super) async fn wait_freed(&self) {
        self.freed.notified().await;
    }
}

/// Of one run. It goes back when it is dropped, or before: what is left to do after a handler has ended needs
/// no room.
pub(super) struct RunSlot {
    slots: Arc<RunSlots>,
    held: AtomicBool,
}

impl RunSlot {
    /// How many there are.
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
