//! Room for runs: a slot each.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// As many runs as a worker may have at once.
pub(super) struct Slots {
    most: usize,
    taken: AtomicUsize,
    freed: Notify,
}

impl Slots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0), freed: Notify::new() })
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn is_free(&self) -> bool {
        self.taken.load(Ordering::Acquire) < self.most
    }

    /// Only by one: whoever asks [`Self::is_free`] before must be alone in taking.
    pub(super) fn take(self: &Arc<Self>) -> Slot {
        self.taken.fetch_add(1, Ordering::AcqRel);
        Slot { slots: Arc::clone(self), held: AtomicBool::new(true) }
    }

    /// Until one is given back; one that came back since the last time counts. Cancel safe.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

/// Of one run. It goes back when it is dropped, or before: what is left to do after a handler has ended needs
/// no room.
pub(super) struct Slot {
    slots: Arc<Slots>,
    held: AtomicBool,
}

impl Slot {
    /// How many there are.
    pub(super) fn most(&self) -> usize {
        self.slots.most
    }

    pub(super) fn free(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.slots.taken.fetch_sub(1, Ordering::AcqRel);
            self.slots.freed.notify_one();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.free();
    }
}
