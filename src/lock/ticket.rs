//! What a request has of locks while its handler runs.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    answer::NotAcquired,
    estimate::HoldTimes,
    guard::LockGuard,
    held::{HeldLock, HeldLocks},
    several::LockSet,
};
use crate::{
    gate::Slot,
    key::Key,
    store::{Mode, Store},
};

/// The lock of a request that passed; dropping it gives the lock back. Beside it, all that the request
/// has, this one included; and the slot of a layer further out that remembers it.
#[derive(Debug)]
pub struct LockTicket(pub(super) Ticket, pub(super) HeldLocks, pub(super) Option<Slot>);

impl LockTicket {
    pub(super) fn new(ticket: Ticket, outer: HeldLocks) -> Self {
        let mut whole = Self(ticket, HeldLocks::default(), None);
        whole.1 = outer.and_all(whole.held());
        whole
    }

    /// Only one that has begun is remembered.
    pub(super) fn of_slot(mut self, slot: Option<Slot>) -> Self {
        self.2 = slot.filter(|slot| slot.record().is_some() && slot.has_begun());
        self
    }

    /// What its layer asked for.
    pub(super) fn held(&self) -> HeldLocks {
        match &self.0 {
            Ticket::Own { guard, .. } => guard.held(),
            Ticket::Lent { held, .. } | Ticket::Run(held) => held.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) enum Ticket {
    Own {
        guard: LockSet,
        times: Arc<HoldTimes>,
        since: Instant,
    },
    /// What a layer further out has, or another service, or nobody. Shares of ours are kept with it: the
    /// inner call may have been sent to a task of its own, and go on when the layer further out is gone.
    Lent {
        held: HeldLocks,
        shares: Vec<LockGuard>,
    },
    /// A worker gives it back, when it has seen the answer of this run.
    Run(HeldLocks),
}

impl Ticket {
    /// If the request has all of these locks already, the ticket for them.
    pub(super) fn of_what_is_held(
        store: &Store,
        keys: &[Key],
        mode: Mode,
        held: &HeldLocks,
        run: Option<&HeldLock>,
    ) -> Result<Option<Self>, NotAcquired> {
        if let (Some(run), [_]) = (run, keys) {
            return Ok(Some(Self::Run(HeldLocks::one(run.clone()))));
        }
        let found = keys.iter().map(|key| held.find(store, key, mode));
        let found: Option<Vec<_>> = found.collect::<Result<_, _>>()?;
        Ok(found.map(|shares| {
            let held = shares.iter().map(LockGuard::held).collect();
            Self::Lent { held, shares }
        }))
    }
}
