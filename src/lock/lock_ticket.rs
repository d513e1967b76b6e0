//! Ticket of a request: the locks that it holds while its handler runs.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::time::Instant;

use super::{
    average_hold_time::AverageHoldTime,
    guard::LockGuard,
    held_lock::{HeldLock, HeldLocks},
    lock_set::LockSet,
    outcome::AcquireError,
};
use crate::{
    gate::{InFlightRunGuard, ParkingSlot, ReplayMarker},
    key::Key,
    store::{LockMode, Store},
};

/// Light ticket of a request that matched no route and has no lock. It is checked again after its
/// response.
#[derive(Debug)]
pub struct UnmatchedRequestTicket;

/// Ticket of a request that passed; dropping it releases its lock.
#[derive(Debug)]
pub struct LockTicket {
    /// The lock of this layer.
    pub(super) kind: LockTicketKind,
    /// All locks that the request holds, this one included.
    pub(super) held_locks: HeldLocks,
    /// Slot of an outer layer that records the direct run.
    pub(super) slot: Option<ParkingSlot>,
    /// The response already reports a loss.
    pub(super) is_loss_reported: bool,
}

impl LockTicket {
    pub(super) fn new(kind: LockTicketKind, outer: HeldLocks) -> Self {
        let mut ticket =
            Self { kind, held_locks: HeldLocks::default(), slot: None, is_loss_reported: false };
        ticket.held_locks = outer.merged_with(ticket.layer_locks());
        ticket
    }

    /// Notes that an inner layer has reported the loss of its lock.
    pub(super) fn mark_loss_reported(&mut self) {
        self.is_loss_reported = true;
    }

    /// Keeps the slot only if its direct run has started.
    pub(super) fn with_slot(mut self, slot: Option<ParkingSlot>) -> Self {
        self.slot = slot.filter(|slot| slot.idempotency().is_some() && slot.has_run());
        self
    }

    /// Returns the locks that the layer asked for.
    pub(super) fn layer_locks(&self) -> HeldLocks {
        match &self.kind {
            LockTicketKind::Acquired { guards: guard, .. } => guard.held_locks(),
            LockTicketKind::Reentrant { held_locks: held, .. }
            | LockTicketKind::Scoped { held_locks: held, .. }
            | LockTicketKind::JobRun(held, _) => held.clone(),
            LockTicketKind::Unmatched(_) => HeldLocks::default(),
        }
    }
}

#[derive(Debug)]
pub(super) enum LockTicketKind {
    Acquired {
        guards: LockSet,
        average_hold_time: Arc<AverageHoldTime>,
        acquired_at: Instant,
    },
    /// Locks held by an outer layer or another service, or admitted without a grant. Guards of this
    /// process are kept in it: the inner call may have moved to a task of its own and outlive the
    /// outer layer.
    Reentrant {
        held_locks: HeldLocks,
        guards: Vec<LockGuard>,
    },
    /// Like `Reentrant`, for guards that were scoped by code that is not a layer, so no outer layer
    /// handles the request's loss and body.
    Scoped {
        held_locks: HeldLocks,
        guards: Vec<LockGuard>,
    },
    /// Lock of a deferred run. Its worker releases it after the response of the run, once no part
    /// of the run is in progress: the inner call may continue in a task of its own after an outer
    /// layer has responded for it.
    JobRun(
        HeldLocks,
        #[expect(dead_code, reason = "it is counted until it is dropped")] InFlightRunGuard,
    ),
    /// No route matched, so there is no lock. True once the layer has logged that such a request
    /// was served.
    Unmatched(Arc<AtomicBool>),
}

impl LockTicketKind {
    /// Converts the ticket of a request that no outer layer has admitted.
    pub(super) fn into_scoped(self) -> Self {
        // Another service, or a worker, has layers of its own.
        let ours = |shares: &[LockGuard]| shares.iter().any(|share| share.hold_state().is_some());
        match self {
            Self::Reentrant { held_locks: held, guards: shares } if ours(&shares) => {
                Self::Scoped { held_locks: held, guards: shares }
            }
            other => other,
        }
    }

    /// Returns a ticket if the request holds all of these locks already.
    pub(super) fn reentrant(
        store: &Store,
        keys: &[Key],
        mode: LockMode,
        held: &HeldLocks,
        run: Option<(&HeldLock, &ReplayMarker)>,
    ) -> Result<Option<Self>, AcquireError> {
        if let (Some((lock, run)), [_]) = (run, keys) {
            return Ok(Some(Self::JobRun(
                HeldLocks::from_lock(lock.clone()),
                InFlightRunGuard::enter(run),
            )));
        }
        let found = keys.iter().map(|key| held.find_guard(store, key, mode));
        let found: Option<Vec<_>> = found.collect::<Result<_, _>>()?;
        Ok(found.map(|shares| {
            let held = shares.iter().map(LockGuard::held_lock).collect();
            Self::Reentrant { held_locks: held, guards: shares }
        }))
    }

    /// Creates the ticket of a request that passes during an outage, with the locks of outer layers
    /// and without the others.
    pub(super) fn admitted(
        store: &Store,
        keys: Vec<Key>,
        mode: LockMode,
        outer: &HeldLocks,
    ) -> Self {
        let mut shares = Vec::new();
        let held = keys.into_iter().map(|key| match outer.find_guard(store, &key, mode) {
            Ok(Some(share)) => {
                let held = share.held_lock();
                shares.push(share);
                held
            }
            Ok(None) | Err(_) => HeldLock::admitted(key),
        });
        let held = held.collect();
        Self::Reentrant { held_locks: held, guards: shares }
    }
}
