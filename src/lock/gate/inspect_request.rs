//! Inspection of a request by a `LockLayer`: its keys, store and entry context, and the verdicts
//! that need no store.

use super::{
    LockLayer,
    lock_entry_context::{LockEntryContext, OuterLayerContext, is_deferrable},
    lock_ticket::UnmatchedRequestTicket,
};
use crate::{
    gate::{
        DirectRunRefusals, GateRequest, InitialVerdict, KeyError, LockInstruction, MethodFilter,
        ParkingSlot, RequestKind, UnderLockMark, UnlistedMethodMark, current_replay, dedup_keys,
        hold_route,
    },
    key::Key,
    lock::{held_lock_view::HeldLocks, stripped_headers::has_trusted_replay},
    reply::Reply,
    store::Store,
};

impl<R: RequestKind> LockLayer<R> {
    /// Reads the keys of a request, with the layer's name, scope and stripes applied.
    fn read_keys<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<Vec<Key>, KeyError> {
        let mut keys = self.key_source.read_all(view)?;
        keys.iter_mut().for_each(|key| *key = self.policy.lock_key(key));
        dedup_keys(&mut keys);
        Ok(keys)
    }

    /// Reads the data of outer layers and of a worker from the request and its scope.
    fn read_outer_context<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
        store: &Store,
        slot: Option<&ParkingSlot>,
    ) -> OuterLayerContext {
        // The layer that made a slot has found that the request is not a run.
        let replay = if slot.is_some() { None } else { current_replay(view) };
        if let Some(replay) = &replay {
            replay.note_route(view);
        }
        // A middleware may have rebuilt the request, which loses its extensions, or moved it to
        // another task, which loses the task-local scope. It may also hold a lock of its own and
        // scope the inner call, which is visible in the task only.
        let mut held_locks = view.extension::<HeldLocks>().unwrap_or_default();
        held_locks = held_locks.with_unique(HeldLocks::current().iter().cloned());
        held_locks = held_locks.with_unique(self.policy.delegated_locks(view, store));
        let is_under_lock = UnderLockMark::is_set_on(view);
        let direct_run = DirectRunRefusals::from_view(view);
        OuterLayerContext {
            replay,
            direct_run,
            held_locks,
            reentrant_locks: None,
            is_under_lock,
            is_unresolved: false,
        }
    }

    /// Reads the request and returns the verdict that needs no store, or the entry context.
    pub(super) fn inspect_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<LockEntryContext, UnmatchedRequestTicket> {
        self.policy.strip_headers(view);
        let Some(mode) = self.policy.mode_for(view.method()) else {
            ParkingSlot::note_unlocked_pass(view);
            if let MethodFilter::Listed(_) = self.policy.methods {
                view.insert_extension(UnlistedMethodMark);
            }
            return InitialVerdict::Skip;
        };
        let keys = match self.read_keys(view) {
            Ok(keys) => keys,
            Err(error) => {
                ParkingSlot::note_unlocked_pass(view);
                return keyless_verdict(error);
            }
        };
        let Some(store) = self.policy.store.clone().or_else(|| view.store()) else {
            return InitialVerdict::Answer(crate::outage::missing_store_reply("LockLayer"));
        };
        #[cfg(any(test, feature = "test-kit"))]
        store.note_layer_request(&keys);
        // Taken out before it is filled: a request inside the slot that it holds itself would never
        // be freed.
        let mut slot = ParkingSlot::take_from(view);
        slot.iter().for_each(|slot| slot.report_store(&store));
        let mut outer = self.read_outer_context(view, &store, slot.as_ref());
        if outer.has_identified_stores(&store, &keys) {
            if let Err(reply) = outer.resolve_reentrancy(&store, &keys, mode) {
                return InitialVerdict::Answer(reply);
            }
        } else {
            outer.is_unresolved = true;
        }
        if let Some(parking_slot) = &slot {
            let can_defer = is_deferrable(&keys, mode);
            let is_trusted_replay = parking_slot.claims_replay() && has_trusted_replay(view);
            match parking_slot.instruction() {
                LockInstruction::WaitFor(wait) => {
                    if can_defer && wait.is_zero() && self.policy.waits_for_busy_lock() {
                        warn_ignored_wait();
                    }
                }
                // A trusted run was deferred before.
                LockInstruction::ParkOrRefuse if is_trusted_replay => {
                    parking_slot.mark_reached_lock();
                }
                LockInstruction::ParkOrRefuse if !can_defer => {
                    return InitialVerdict::Answer(not_deferrable_reply());
                }
                // Tells the outer layer that the slot was read.
                LockInstruction::ParkImmediately | LockInstruction::ParkOrRefuse => {
                    parking_slot.mark_reached_lock();
                }
            }
            // The request may still have an idempotency record.
            slot =
                slot.filter(|slot| !is_trusted_replay && (can_defer || slot.records_direct_runs()));
        }
        let outer = outer.has_content().then(|| Box::new(outer));
        let route = hold_route(view);
        InitialVerdict::Enter(LockEntryContext { store, keys, mode, route, slot, inherited: outer })
    }
}

fn warn_ignored_wait() {
    crate::throttle::throttled!(
        warn,
        layer = "LockLayer",
        "the wait of the LockLayer is ignored inside a DeferLayer, which defers a request as soon \
         as its lock is busy; set .wait_up_to(..) on the DeferLayer, and remove .wait(..) from the \
         LockLayer"
    );
}

/// Returns the verdict about a request without a key.
fn keyless_verdict(error: KeyError) -> InitialVerdict<LockEntryContext, UnmatchedRequestTicket> {
    match error {
        // Without a matching route there is nothing to protect, as far as is known.
        KeyError::Unmatched => InitialVerdict::PassLight(UnmatchedRequestTicket),
        fault => fault.into_reply("LockLayer").map_or(InitialVerdict::Skip, InitialVerdict::Answer),
    }
}

fn not_deferrable_reply() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "LockLayer",
        "request refused: the outer DeferLayer is set to `background`, but a shared lock, a \
         permit or several keys cannot be deferred; use one exclusive lock, or remove \
         `background`"
    );
    Reply::misconfigured()
}
