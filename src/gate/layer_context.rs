//! `LayerContext`: the request extension by which the layers of one request find each other's slot
//! and lock.

use super::{gate_request::GateRequest, parking_slot_for_busy_lock::ParkingSlot};

/// Data that the layers of one request exchange, as a single extension: the lock's mark needs no
/// second one.
#[derive(Clone)]
struct LayerContext {
    /// `None` once a lock has taken it.
    slot: Option<ParkingSlot>,
    /// Like [`UnderLockMark`].
    under_lock: bool,
}

impl ParkingSlot {
    /// Attaches the slot to the request, in place of an outer layer's slot.
    pub(crate) fn attach_to<V: GateRequest>(&self, view: &mut V) {
        let attach = |context: &mut LayerContext| {
            if let Some(outer_slot) = context.slot.replace(self.clone()) {
                outer_slot.mark_met_lock_layer();
            }
        };
        if !view.update_extension(attach) {
            view.insert_extension(LayerContext { slot: Some(self.clone()), under_lock: false });
        }
    }

    /// Takes the slot out of the request, for the lock layer that has met it.
    pub(crate) fn take_from<V: GateRequest>(view: &mut V) -> Option<Self> {
        let mut slot: Option<Self> = None;
        view.update_extension(|context: &mut LayerContext| slot = context.slot.take());
        slot.iter().for_each(Self::mark_met_lock_layer);
        slot
    }

    /// Notes on the slot of an outer layer, if there is one, that a lock layer has seen the request
    /// and does not lock it, such as one of another method.
    pub(crate) fn note_unlocked_pass<V: GateRequest>(view: &mut V) {
        view.update_extension(|context: &mut LayerContext| {
            context.slot.iter().for_each(Self::mark_met_lock_layer);
        });
    }
}

/// Mark of a request that passed a lock: layers further inside are under that lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderLockMark;

impl UnderLockMark {
    pub(crate) fn set_on<V: GateRequest>(view: &mut V) {
        if !view.update_extension(|context: &mut LayerContext| context.under_lock = true) {
            view.insert_extension(Self);
        }
    }

    pub(crate) fn is_set_on<V: GateRequest>(view: &mut V) -> bool {
        let mut is_set = false;
        view.update_extension(|context: &mut LayerContext| is_set = context.under_lock);
        is_set || view.extension::<Self>().is_some()
    }
}
