//! Ticket of a request: the locks that it holds while its handler runs.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::time::Instant;

use crate::{
    gate::{InFlightRunGuard, ParkingSlot, ReplayMarker},
    key::Key,
    lock::{
        average_hold_time::AverageHoldTime,
        held_lock_view::{HeldLock, HeldLocks},
        lock_guard::LockGuard,
        lock_outcome::AcquireError,
        lock_set::LockSet,
    },
    store::{LockMode, Store},
};

/// Light ticket of a request that matched no route and has no lock. It is checked again after its
/// response.
#[derive(Debug)]
pub struct UnmatchedRequestTicket;

/// Ticket of a request that passed; dropping it releases its lock.
#[derive(Debug)]
pub struct LockTicket {
    /// The locks of this layer.
    pub(in crate::lock) locks: AdmittedRequestLocks,
    /// All locks that the request holds, this one included.
    pub(in crate::lock) held_locks: HeldLocks,
    /// Slot of an outer layer that records the direct run.
    pub(in crate::lock) slot: Option<ParkingSlot>,
    /// The response already reports a loss.
    pub(in crate::lock) is_loss_reported: bool,
}

impl LockTicket {
    pub(in crate::lock) fn new(locks: AdmittedRequestLocks, outer: HeldLocks) -> Self {
        let mut ticket =
            Self { locks, held_locks: HeldLocks::default(), slot: None, is_loss_reported: false };
        ticket.held_locks = outer.merged_with(ticket.layer_locks());
        ticket
    }

    /// Notes that an inner layer has reported the loss of its lock.
    pub(in crate::lock) fn mark_loss_reported(&mut self) {
        self.is_loss_reported = true;
    }

    /// Keeps the slot only if its direct run has started.
    pub(in crate::lock) fn with_slot(mut self, slot: Option<ParkingSlot>) -> Self {
        self.slot = slot.filter(|slot| slot.idempotency().is_some() && slot.has_run());
        self
    }

    /// Returns the locks that the layer asked for.
    pub(in crate::lock) fn layer_locks(&self) -> HeldLocks {
        match &self.locks {
            AdmittedRequestLocks::Acquired { guards, .. } => guards.held_locks(),
            AdmittedRequestLocks::Reentrant { held_locks, .. }
            | AdmittedRequestLocks::Scoped { held_locks, .. }
            | AdmittedRequestLocks::JobRun { held_locks, .. } => held_locks.clone(),
            AdmittedRequestLocks::Unmatched(_) => HeldLocks::default(),
        }
    }
}

/// Locks that an admitted request has from this layer, by their origin.
#[derive(Debug)]
pub(in crate::lock) enum AdmittedRequestLocks {
    /// Acquired by this layer.
    Acquired { guards: LockSet, average_hold_time: Arc<AverageHoldTime>, acquired_at: Instant },
    /// Locks held by an outer layer or another service, or admitted without a grant. It contains
    /// guards of this process: the inner call may have moved to a task of its own and outlive the
    /// outer layer.
    Reentrant { held_locks: HeldLocks, guards: Vec<LockGuard> },
    /// Like `Reentrant`, for guards that were scoped by code that is not a layer, so no outer layer
    /// handles the request's loss and body.
    Scoped { held_locks: HeldLocks, guards: Vec<LockGuard> },
    /// Lock of a deferred run. Its worker releases it after the response of the run, once no part
    /// of the run is in progress: the inner call may continue in a task of its own after an outer
    /// layer has responded for it.
    JobRun {
        held_locks: HeldLocks,
        #[expect(dead_code, reason = "it is counted until it is dropped")]
        run_guard: InFlightRunGuard,
    },
    /// No route matched, so there is no lock. True once the layer has logged that such a request
    /// was served.
    Unmatched(Arc<AtomicBool>),
}

impl AdmittedRequestLocks {
    /// Converts the ticket of a request that no outer layer has admitted.
    pub(in crate::lock) fn into_scoped(self) -> Self {
        // Another service, or a worker, has layers of its own.
        let is_held_here =
            |guards: &[LockGuard]| guards.iter().any(|guard| guard.hold_state().is_some());
        match self {
            Self::Reentrant { held_locks, guards } if is_held_here(&guards) => {
                Self::Scoped { held_locks, guards }
            }
            unchanged => unchanged,
        }
    }

    /// Returns a ticket if the request holds all of these locks already.
    pub(in crate::lock) fn reentrant(
        store: &Store,
        keys: &[Key],
        mode: LockMode,
        held_locks: &HeldLocks,
        run: Option<(&HeldLock, &ReplayMarker)>,
    ) -> Result<Option<Self>, AcquireError> {
        if let (Some((lock, run)), [_]) = (run, keys) {
            return Ok(Some(Self::JobRun {
                held_locks: HeldLocks::from_lock(lock.clone()),
                run_guard: InFlightRunGuard::enter(run),
            }));
        }
        let found_guards = keys.iter().map(|key| held_locks.find_guard(store, key, mode));
        let found_guards: Option<Vec<_>> = found_guards.collect::<Result<_, _>>()?;
        Ok(found_guards.map(|guards| {
            let held_locks = guards.iter().map(LockGuard::held_lock).collect();
            Self::Reentrant { held_locks, guards }
        }))
    }

    /// Creates the ticket of a request that passes during an outage, with the locks of outer layers
    /// and without the others.
    pub(in crate::lock) fn admitted(
        store: &Store,
        keys: Vec<Key>,
        mode: LockMode,
        outer: &HeldLocks,
    ) -> Self {
        let mut guards = Vec::new();
        let held_locks = keys.into_iter().map(|key| match outer.find_guard(store, &key, mode) {
            Ok(Some(guard)) => {
                let held_lock = guard.held_lock();
                guards.push(guard);
                held_lock
            }
            Ok(None) | Err(_) => HeldLock::admitted(key),
        });
        let held_locks = held_locks.collect();
        Self::Reentrant { held_locks, guards }
    }
}
