//! Entry context of a `LockLayer`: data read from a request before anything is awaited, and the
//! locks that the request holds already.

use std::mem;

use super::{gate_impl::would_deadlock_reply, lock_ticket::AdmittedRequestLocks};
use crate::{
    error::Error,
    gate::{DirectRunRefusals, ParkingSlot, ReplayMarker},
    key::Key,
    lock::held_lock_view::{HeldLock, HeldLocks},
    reply::Reply,
    store::{HoldRoute, LockMode, Store},
};

/// Entry context of a lock. It is moved with the future of every request, so the parts that few
/// requests have are boxed.
#[derive(Debug)]
pub struct LockEntryContext {
    pub(super) store: Store,
    /// At least one, without duplicates.
    pub(super) keys: Vec<Key>,
    pub(super) mode: LockMode,
    /// Route of the request, if its pattern is known.
    pub(super) route: Option<HoldRoute>,
    /// Slot of an outer layer that would accept the request, with the time to wait before.
    pub(super) slot: Option<ParkingSlot>,
    pub(super) inherited: Option<Box<OuterLayerContext>>,
}

/// Data of a request that has passed other layers, or is a run of a worker.
#[derive(Debug, Default)]
pub(super) struct OuterLayerContext {
    pub(super) replay: Option<ReplayMarker>,
    /// Direct run of an outer layer that the request belongs to.
    pub(super) direct_run: Option<DirectRunRefusals>,
    pub(super) held_locks: HeldLocks,
    /// Set if the request holds all of the layer's locks already.
    pub(super) reentrant_locks: Option<AdmittedRequestLocks>,
    /// True if an outer layer has let the request pass.
    pub(super) is_under_lock: bool,
    /// True if the store is not connected yet, so it is unknown whether the request holds its locks
    /// already.
    pub(super) is_unresolved: bool,
}

impl LockEntryContext {
    /// Returns true if the request can be deferred. A job runs under one exclusive lock, so other
    /// requests cannot.
    pub(super) fn is_deferrable(&self) -> bool {
        is_deferrable(&self.keys, self.mode)
    }

    pub(super) fn replay(&self) -> Option<&ReplayMarker> {
        self.inherited.as_ref()?.replay.as_ref()
    }

    pub(super) fn direct_run(&self) -> Option<&DirectRunRefusals> {
        self.inherited.as_ref()?.direct_run.as_ref()
    }

    pub(super) fn held_locks(&self) -> Option<&HeldLocks> {
        self.inherited.as_ref().map(|outer| &outer.held_locks)
    }

    pub(super) fn take_reentrant_locks(&mut self) -> Option<AdmittedRequestLocks> {
        self.inherited.as_mut()?.reentrant_locks.take()
    }

    /// Decides whether the request holds its locks already, if that had to wait for a connection.
    pub(super) async fn resolve_reentrancy(&mut self) -> Result<(), EntryFailure> {
        let Self { store, keys, mode, inherited: outer, .. } = self;
        let Some(outer) = outer.as_mut() else { return Ok(()) };
        outer.identify_stores(store, keys).await?;
        outer.resolve_reentrancy(store, keys, *mode)?;
        outer.is_unresolved = false;
        Ok(())
    }

    pub(super) fn is_unresolved(&self) -> bool {
        self.inherited.as_ref().is_some_and(|outer| outer.is_unresolved)
    }

    /// Takes the locks that the request holds from outer layers.
    pub(super) fn take_held_locks(&mut self) -> HeldLocks {
        let held_locks = self.inherited.take().map(|outer| outer.held_locks).unwrap_or_default();
        // Before the store's first connection, a delegation could have been for another one.
        held_locks.without_delegations_of_other_stores(&self.store)
    }
}

/// Reason why the request's locks could not be resolved, or the reply that it gets instead.
pub(super) enum EntryFailure {
    Reply(Reply),
    Fault(Error),
}

impl From<Reply> for EntryFailure {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl From<Error> for EntryFailure {
    fn from(error: Error) -> Self {
        Self::Fault(error)
    }
}

impl OuterLayerContext {
    pub(super) fn has_content(&self) -> bool {
        self.replay.is_some()
            || self.direct_run.is_some()
            || self.reentrant_locks.is_some()
            || !self.held_locks.is_empty()
    }

    /// Returns true if it is known for each lock of the request whether it is in this store.
    pub(super) fn has_identified_stores(&self, store: &Store, keys: &[Key]) -> bool {
        let is_replay_identified = |replay: &ReplayMarker| {
            !replay.matches_any_key(keys) || replay.store().is_same_as(store).is_some()
        };
        self.replay.as_ref().is_none_or(is_replay_identified)
            && self.held_locks.has_identified_stores(store, keys)
    }

    async fn identify_stores(&self, store: &Store, keys: &[Key]) -> Result<(), Error> {
        if let Some(replay) = self.replay.as_ref().filter(|replay| replay.matches_any_key(keys)) {
            replay.store().identify().await?;
            store.identify().await?;
        }
        self.held_locks.identify_stores(store, keys).await
    }

    /// Decides whether the request holds all of these locks already.
    pub(super) fn resolve_reentrancy(
        &mut self,
        store: &Store,
        keys: &[Key],
        mode: LockMode,
    ) -> Result<(), Reply> {
        let run = match &self.replay {
            Some(replay) => replay.own_hold(store, keys).map_err(|_| stale_run_reply())?,
            None => None,
        };
        let run = run.map(|hold_state| HeldLock::from_run(store, hold_state));
        let reentrant_locks = AdmittedRequestLocks::reentrant(
            store,
            keys,
            mode,
            &self.held_locks,
            run.as_ref().zip(self.replay.as_ref()),
        );
        let reentrant_locks = reentrant_locks.map_err(|_| would_deadlock_reply())?;
        self.reentrant_locks = if self.is_under_lock {
            reentrant_locks
        } else {
            reentrant_locks.map(AdmittedRequestLocks::into_scoped)
        };
        if self.reentrant_locks.is_none() {
            self.held_locks = mem::take(&mut self.held_locks).with_unique(run);
        }
        Ok(())
    }
}

pub(super) fn is_deferrable(keys: &[Key], mode: LockMode) -> bool {
    keys.len() == 1 && mode == LockMode::Exclusive
}

/// This reply is not delivered: the worker has continued without this run.
fn stale_run_reply() -> Reply {
    tracing::debug!(
        "a run was stopped before its handler: its worker abandoned it or lost its lock"
    );
    Reply::store_unavailable()
}
