//! `RunCapacity`: run slots of a worker, and the chains that use them.

use std::sync::{Arc, atomic::AtomicBool};

use crate::{
    defer::run_slots::{RunSlot, RunSlots},
    instruments::WorkerSlots,
    store::Store,
};

/// Most chains per run slot. The chains beyond the slots are settling; no more start while the
/// store is too slow.
const MAX_CHAINS_PER_SLOT: usize = 2;

/// Capacity for request locks or for webhook locks.
///
/// The two are separate: requests may run for long or wait hours for a permit, and webhook
/// receivers may be slow.
pub(super) struct RunCapacity {
    slots: Arc<RunSlots>,
    active_chains: usize,
    /// True while other locks wait for a slot.
    pub(super) contended: Arc<AtomicBool>,
}

impl RunCapacity {
    pub(super) fn new(slot_count: usize) -> Self {
        Self { slots: RunSlots::new(slot_count), active_chains: 0, contended: Arc::default() }
    }

    /// Registers the slots of this worker for operators.
    pub(super) fn register(&self, store: &Store) -> Arc<WorkerSlots> {
        let slots = Arc::clone(&self.slots);
        store.counters().add_worker(None, slots.limit(), move || slots.taken())
    }

    pub(super) fn is_available(&self) -> bool {
        self.slots.has_free_slot()
            && self.active_chains < MAX_CHAINS_PER_SLOT.saturating_mul(self.slots.limit())
    }

    pub(super) fn start_chain(&mut self) -> RunSlot {
        self.active_chains += 1;
        self.slots.acquire()
    }

    pub(super) fn end_chain(&mut self) {
        self.active_chains = self.active_chains.saturating_sub(1);
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.limit()
    }

    /// Waits until a slot is freed. Cancel safe.
    pub(super) async fn wait_freed(&self) {
        self.slots.wait_freed().await;
    }
}
