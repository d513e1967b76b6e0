//! What a request has of locks while its handler runs.

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
    gate::{ParkingSlot, ReplayMarker, RunScopeGuard},
    key::Key,
    store::{LockMode, Store},
};

/// A request that matched no route, and has no lock: it is looked at once more when it has been answered.
#[derive(Debug)]
pub struct UnmatchedRequest;

/// The lock of a request that passed; dropping it gives the lock back. Beside it, all that the request
/// has, this one included; the slot of a layer further out that remembers it; and whether the answer says already that
/// a lock was lost.
#[derive(Debug)]
pub struct LockTicket(
    pub(super) LockTicketKind,
    pub(super) HeldLocks,
    pub(super) Option<ParkingSlot>,
    pub(super) bool,
);

impl LockTicket {
    pub(super) fn new(ticket: LockTicketKind, outer: HeldLocks) -> Self {
        let mut whole = Self(ticket, HeldLocks::default(), None, false);
        whole.1 = outer.merged_with(whole.layer_locks());
        whole
    }

    /// A layer further in has said that its lock was lost.
    pub(super) fn mark_loss_reported(&mut self) {
        self.3 = true;
    }

    /// Only one that has begun is remembered.
    pub(super) fn with_slot(mut self, slot: Option<ParkingSlot>) -> Self {
        self.2 = slot.filter(|slot| slot.idempotency().is_some() && slot.has_run());
        self
    }

    /// What its layer asked for.
    pub(super) fn layer_locks(&self) -> HeldLocks {
        match &self.0 {
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
    /// What a layer further out has, or another service, or nobody. Shares of ours are kept with it: the
    /// inner call may have been sent to a task of its own, and go on when the layer further out is gone.
    Reentrant {
        held_locks: HeldLocks,
        guards: Vec<LockGuard>,
    },
    /// The same, of code that is no layer and has scoped its guard: nobody further out looks after the request.
    Scoped {
        held_locks: HeldLocks,
        guards: Vec<LockGuard>,
    },
    /// A worker gives it back, when it has seen the answer of this run, and nothing of it is under way: the inner call
    /// may go on in a task of its own, when a layer further out has answered for it.
    JobRun(
        HeldLocks,
        #[expect(dead_code, reason = "it is counted until it is dropped")] RunScopeGuard,
    ),
    /// Nothing: no route has matched. Whether that was told of this layer, should it have been served.
    Unmatched(Arc<AtomicBool>),
}

impl LockTicketKind {
    /// No layer further out has let it pass.
    pub(super) fn into_scoped(self) -> Self {
        // (Another service, or a worker, has layers of its own.)
        let ours = |shares: &[LockGuard]| shares.iter().any(|share| share.hold_state().is_some());
        match self {
            Self::Reentrant { held_locks: held, guards: shares } if ours(&shares) => {
                Self::Scoped { held_locks: held, guards: shares }
            }
            other => other,
        }
    }

    /// If the request has all of these locks already, the ticket for them.
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
                RunScopeGuard::enter(run),
            )));
        }
        let found = keys.iter().map(|key| held.find_guard(store, key, mode));
        let found: Option<Vec<_>> = found.collect::<Result<_, _>>()?;
        Ok(found.map(|shares| {
            let held = shares.iter().map(LockGuard::held_lock).collect();
            Self::Reentrant { held_locks: held, guards: shares }
        }))
    }

    /// Of a request that passes though the store is away: what it has of further out, and for all else no lock.
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
