//! Entry context of a `LockLayer`, read before anything is awaited.

use std::mem;

use super::{
    delegation,
    gate::{LockLayer, would_deadlock_reply},
    held_lock::{HeldLock, HeldLocks},
    lock_ticket::{LockTicketKind, UnmatchedRequestTicket},
};
use crate::{
    error::Error,
    gate::{
        AttemptMode, GateRequest, InitialVerdict, KeyError, ParkingSlot, RefusalTracker,
        ReplayMarker, RequestKind, UnderLockMark, current_replay, dedup_keys,
    },
    key::Key,
    reply::Reply,
    store::{LockMode, Store},
};

/// Entry context of a lock. It is moved with the future of every request, so the parts that few
/// requests have are boxed.
#[derive(Debug)]
pub struct LockEntryContext {
    pub(super) store: Store,
    /// At least one, without duplicates.
    pub(super) keys: Vec<Key>,
    pub(super) mode: LockMode,
    /// Slot of an outer layer that would accept the request, with the time to wait before.
    pub(super) slot: Option<ParkingSlot>,
    pub(super) inherited: Option<Box<InheritedContext>>,
}

/// Data of a request that has passed other layers, or is a run of a worker.
#[derive(Debug, Default)]
pub(super) struct InheritedContext {
    pub(super) replay: Option<ReplayMarker>,
    /// Direct run of an outer layer that the request belongs to.
    pub(super) remembered_run: Option<RefusalTracker>,
    pub(super) held_locks: HeldLocks,
    /// Set if the request holds all of the layer's locks already.
    pub(super) reentrant_ticket: Option<LockTicketKind>,
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

    pub(super) fn remembered_run(&self) -> Option<&RefusalTracker> {
        self.inherited.as_ref()?.remembered_run.as_ref()
    }

    pub(super) fn held_locks(&self) -> Option<&HeldLocks> {
        self.inherited.as_ref().map(|brought| &brought.held_locks)
    }

    pub(super) fn take_reentrant_ticket(&mut self) -> Option<LockTicketKind> {
        self.inherited.as_mut()?.reentrant_ticket.take()
    }

    /// Decides whether the request holds its locks already, if that had to wait for a connection.
    pub(super) async fn resolve_reentrancy(&mut self) -> Result<(), ReentrancyError> {
        let Self { store, keys, mode, inherited: brought, .. } = self;
        let Some(brought) = brought.as_mut() else { return Ok(()) };
        brought.identify_stores(store, keys).await?;
        brought.resolve_reentrancy(store, keys, *mode)?;
        brought.is_unresolved = false;
        Ok(())
    }

    pub(super) fn is_unresolved(&self) -> bool {
        self.inherited.as_ref().is_some_and(|brought| brought.is_unresolved)
    }

    /// Takes the locks that the request holds from outer layers.
    pub(super) fn take_held_locks(&mut self) -> HeldLocks {
        let held = self.inherited.take().map(|brought| brought.held_locks).unwrap_or_default();
        // Before the store's first connection, a delegation could have been for another one.
        held.without_delegations_of_other_stores(&self.store)
    }
}

/// Reason why the request's locks could not be resolved, or the reply that it gets instead.
pub(super) enum ReentrancyError {
    Reply(Reply),
    Fault(Error),
}

impl From<Reply> for ReentrancyError {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl From<Error> for ReentrancyError {
    fn from(error: Error) -> Self {
        Self::Fault(error)
    }
}

impl InheritedContext {
    fn has_content(&self) -> bool {
        self.replay.is_some()
            || self.remembered_run.is_some()
            || self.reentrant_ticket.is_some()
            || !self.held_locks.is_empty()
    }

    /// Returns true if it is known for each lock of the request whether it is in this store.
    fn has_identified_stores(&self, store: &Store, keys: &[Key]) -> bool {
        let of_replay = |replay: &ReplayMarker| {
            !replay.matches_any_key(keys) || replay.store().is_same_as(store).is_some()
        };
        self.replay.as_ref().is_none_or(of_replay)
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
    fn resolve_reentrancy(
        &mut self,
        store: &Store,
        keys: &[Key],
        mode: LockMode,
    ) -> Result<(), Reply> {
        let run = match &self.replay {
            Some(replay) => replay.own_hold(store, keys).map_err(|_| stale_run_reply())?,
            None => None,
        };
        let run = run.map(|facts| HeldLock::from_run(store, facts));
        let lent = LockTicketKind::reentrant(
            store,
            keys,
            mode,
            &self.held_locks,
            run.as_ref().zip(self.replay.as_ref()),
        );
        let lent = lent.map_err(|_| would_deadlock_reply())?;
        self.reentrant_ticket =
            if self.is_under_lock { lent } else { lent.map(LockTicketKind::into_scoped) };
        if self.reentrant_ticket.is_none() {
            self.held_locks = mem::take(&mut self.held_locks).with_unique(run);
        }
        Ok(())
    }
}

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

    pub(super) fn read_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<LockEntryContext, UnmatchedRequestTicket> {
        self.policy.strip_headers(view);
        let Some(mode) = self.policy.mode_for(view.method()) else {
            return InitialVerdict::Skip;
        };
        let keys = match self.read_keys(view) {
            Ok(keys) => keys,
            // Without a matching route there is nothing to protect, as far as is known.
            Err(KeyError::Unmatched) => return InitialVerdict::PassLight(UnmatchedRequestTicket),
            Err(fault) => {
                return fault
                    .into_reply("LockLayer")
                    .map_or(InitialVerdict::Skip, InitialVerdict::Answer);
            }
        };
        let Some(store) = self.policy.store.clone().or_else(|| view.store()) else {
            return InitialVerdict::Answer(crate::outage::missing_store_reply("LockLayer"));
        };
        // Taken out before it is filled: a request inside the slot that it holds itself would never
        // be freed.
        let mut slot = ParkingSlot::take_from(view);
        // The layer that made a slot has found that the request is not a run.
        let replay = if slot.is_some() { None } else { current_replay(view) };
        // A middleware may have rebuilt the request, which loses its extensions, or moved it to
        // another task, which loses the task-local scope. It may also hold a lock of its own and
        // scope the inner call, which is visible in the task only.
        let mut held = view.extension::<HeldLocks>().unwrap_or_default();
        held = held.with_unique(HeldLocks::current().iter().cloned());
        held = held.with_unique(self.policy.delegated_locks(view, &store));
        let is_noted = UnderLockMark::is_set_on(view);
        let run = RefusalTracker::from_view(view);
        let mut brought = InheritedContext {
            replay,
            remembered_run: run,
            held_locks: held,
            reentrant_ticket: None,
            is_under_lock: is_noted,
            is_unresolved: false,
        };
        if brought.has_identified_stores(&store, &keys) {
            if let Err(reply) = brought.resolve_reentrancy(&store, &keys, mode) {
                return InitialVerdict::Answer(reply);
            }
        } else {
            brought.is_unresolved = true;
        }
        if let Some(found) = &slot {
            let fits = is_deferrable(&keys, mode);
            let runs = found.claims_replay() && delegation::has_trusted_replay(view);
            match found.mode() {
                AttemptMode::WaitFor(_) => {}
                // A trusted run was deferred before.
                AttemptMode::ParkOrRefuse if runs => found.mark_reached_lock(),
                AttemptMode::ParkOrRefuse if !fits => {
                    return InitialVerdict::Answer(not_deferrable_reply());
                }
                // Tells the outer layer that the slot was read.
                AttemptMode::ParkImmediately | AttemptMode::ParkOrRefuse => {
                    found.mark_reached_lock();
                }
            }
            // The request may still have an idempotency record.
            slot = slot.filter(|slot| !runs && (fits || slot.records_direct_runs()));
        }
        let brought = brought.has_content().then(|| Box::new(brought));
        InitialVerdict::Enter(LockEntryContext { store, keys, mode, slot, inherited: brought })
    }
}

fn is_deferrable(keys: &[Key], mode: LockMode) -> bool {
    keys.len() == 1 && mode == LockMode::Exclusive
}

/// This reply is not delivered: the worker has continued without this run.
fn stale_run_reply() -> Reply {
    tracing::debug!(
        "a run was stopped before its handler: its worker abandoned it or lost its lock"
    );
    Reply::store_unavailable()
}

fn not_deferrable_reply() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "LockLayer",
        "request refused: the outer DeferLayer is set to `defer_always`, but a shared lock, a \
         permit or several keys cannot be deferred; use one exclusive lock, or remove \
         `defer_always`"
    );
    Reply::misconfigured()
}
