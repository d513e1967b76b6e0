//! The guard of a lock.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    held_lock::{HeldLock, HeldLocks},
    outcome::{AcquireError, LockBusy},
    shared_grant::{HandoverContext, ReleaseAction, SharedGrant, release_status},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{HoldState, LockHold, LockLease, LockLoss, LockMode, Store},
};

/// A lock that is held, and renewed, until this is dropped or released.
///
/// Dropping it never waits and needs no runtime: the lock passes to the next who waits in this process, or
/// one message goes to the store's background agent, which gives it back. If the process dies instead,
/// the lock ends with its lease.
///
/// # One lock, several guards
///
/// Code within a request whose `LockLayer` has the lock, or within [`scope`](Self::scope), that acquires
/// the same lock again does not wait for itself: it gets a guard on the same grant, with the same fence, by
/// memory alone. The grant ends with the last of them, in whatever order they do, because whoever has a
/// guard relies on being alone. So an inner guard that outlives the request (in a task that was
/// spawned, say) keeps the lock until it ends itself, or `max_hold` does; the terms are those of the
/// first. In a deferred run the lock is the worker's, and an inner guard ends with the run.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct LockGuard(GrantShare);

#[derive(Debug)]
enum GrantShare {
    /// The last one ends the grant.
    Owned(Arc<SharedGrant>),
    /// Somebody else ends it.
    Borrowed(HeldLock),
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseStatus {
    /// It was held to the end, and is given back, or the next of this process has it.
    Released,
    /// It is held still: another guard of the same request has it, and the last one gives it back.
    StillHeld,
    /// It had been lost before: somebody else may have had it meanwhile.
    AlreadyLost,
    /// The store did not answer. It is tried again in the background, until the lease has ended.
    Unknown,
}

/// What is left of a release. Dropping it leaves that to the background.
pub(super) enum PendingRelease {
    Done(ReleaseStatus),
    Release(Arc<HoldState>, LockHold),
    /// Somebody gives it back and asks for the next in one call, and tells of it.
    ReleaseAndReacquire(Store, oneshot::Receiver<ReleaseStatus>),
}

impl PendingRelease {
    /// Another guard has it too.
    fn still_held(loss: Option<LockLoss>) -> Self {
        Self::Done(loss.map_or(ReleaseStatus::StillHeld, |_| ReleaseStatus::AlreadyLost))
    }

    /// The rest of it.
    pub(super) async fn finish(self) -> ReleaseStatus {
        match self {
            Self::Done(released) => released,
            Self::Release(facts, hold) => release_status(&facts, &hold.release().await),
            Self::ReleaseAndReacquire(store, told) => {
                store.await_reply(told).await.unwrap_or(ReleaseStatus::Unknown)
            }
        }
    }
}

impl LockGuard {
    pub(super) fn new(hold: LockHold, turn: Option<HandoverContext>) -> Self {
        Self(GrantShare::Owned(Arc::new(SharedGrant::new(hold, turn))))
    }

    /// The same turn on another lease: copies of the one before are copies of this.
    fn replacing(before: &HoldState, hold: LockHold) -> Self {
        let (facts, grant) = (Arc::clone(hold.state()), Arc::new(SharedGrant::new(hold, None)));
        let weak = Arc::downgrade(&grant);
        before.set_successor(&facts, weak);
        Self::from_grant(grant)
    }

    /// Another guard on a grant.
    pub(super) fn from_grant(grant: Arc<SharedGrant>) -> Self {
        Self(GrantShare::Owned(grant))
    }

    /// The same, if it is sure still when another call has been waited for; else it is given back.
    pub(super) fn ensure_valid(self) -> Result<Self, AcquireError> {
        if self.remaining().is_zero() {
            return Err(Error::new(ErrorKind::Timeout, "grant").into());
        }
        Ok(self)
    }

    /// A guard on what somebody else gives back.
    pub(super) fn borrowed(held: HeldLock) -> Self {
        Self(GrantShare::Borrowed(held))
    }

    /// The turn, if it is one of this process's own.
    pub(crate) fn hold_state(&self) -> Option<&Arc<HoldState>> {
        match &self.0 {
            GrantShare::Owned(grant) => Some(grant.hold_state()),
            GrantShare::Borrowed(_) => None,
        }
    }

    /// It is about to lie there for somebody who waits.
    pub(super) fn mark_awaiting_receipt(&self) {
        if let Some(facts) = self.hold_state() {
            facts.mark_unreceived();
        }
    }

    /// Whoever has waited for it has it; false if it has ended meanwhile.
    pub(super) fn mark_received(&self) -> bool {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold().mark_received(),
            GrantShare::Borrowed(_) => true,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Arc<LockLease>> {
        self.hold_state().map(|facts| &facts.lease)
    }

    /// Its parts, if it is the only guard: they are not passed on when they are dropped.
    pub(super) fn into_parts(self) -> Result<(LockHold, Option<HandoverContext>), Self> {
        match self.0 {
            GrantShare::Owned(grant) => match Arc::try_unwrap(grant) {
                Ok(grant) => Ok(grant.into_parts()),
                Err(grant) => Err(Self::from_grant(grant)),
            },
            GrantShare::Borrowed(held) => Err(Self::borrowed(held)),
        }
    }

    /// The number of this grant: larger than that of every earlier grant of this lock.
    #[must_use]
    pub fn fence(&self) -> u64 {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold_state().fence,
            // What has none is never lent.
            GrantShare::Borrowed(held) => held.fence().unwrap_or_default(),
        }
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold_state().key(),
            GrantShare::Borrowed(held) => held.key(),
        }
    }

    /// How long it is sure to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held_lock().remaining()
    }

    /// Why it was lost, if it was: what [`lost`](Self::lost) waits for, asked at once.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold_state().loss(),
            GrantShare::Borrowed(held) => held.loss(),
        }
    }

    /// Resolves when the lock is lost, with the reason; never if it is released first. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        self.held_lock().lost().await
    }

    /// A copy to hand to code that must not give it back.
    #[must_use]
    pub fn held_lock(&self) -> HeldLock {
        match &self.0 {
            GrantShare::Owned(grant) => HeldLock::from_grant(grant),
            GrantShare::Borrowed(held) => held.clone(),
        }
    }

    /// Runs code that may acquire this lock again: it gets a guard on the same grant instead of waiting
    /// for itself. What runs in a `LockLayer` is within such a scope already; a guard that a handler
    /// takes for itself is not, so that futures joined in one task exclude each other. Tasks that
    /// the future spawns are outside. Cancel safe if the future is.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        HeldLocks::current().with_unique([self.held_lock()]).to_scope().run(future)
    }

    /// Makes the lease last for so long from now, once, at most until `max_hold`: before a step during
    /// which this process may not get to renewing it. False if the lock is lost. Cancel safe: it may or
    /// may not have been extended. The lease of a deferred run is its worker's and stays as it is: true
    /// if it lasts so long anyway.
    ///
    /// # Errors
    ///
    /// If the store could not be asked; the lock is held as before.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold().extend(lease).await,
            GrantShare::Borrowed(held) => Ok(held.remaining() >= lease),
        }
    }

    /// Makes an exclusive lock a shared one without a gap, and lets in the readers at the head of the
    /// line. The fence stays, and copies of it ([`held`](Self::held_lock)) are of the shared one from then on. Cancel safe: if the future is dropped, the lock is given back.
    ///
    /// While another guard on the same grant relies on being alone, or in a deferred run, it stays
    /// exclusive. There is no way up: two readers who both wanted to write would wait for each other.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Busy`] if it was lost before; [`AcquireError::Fault`] if the store could not be
    /// asked. Either way the lock is gone.
    pub async fn downgrade(self) -> Result<Self, AcquireError> {
        if self.lease().is_some_and(|lease| lease.terms.mode != LockMode::Exclusive) {
            return Ok(self);
        }
        let (hold, turn) = match self.into_parts() {
            Ok(parts) => parts,
            Err(shared) => return Ok(shared),
        };
        if let Some(HandoverContext { local_queues: lines, .. }) = turn {
            lines.stop_handovers(hold.lease());
        }
        let before = Arc::clone(hold.state());
        match hold.downgrade().await? {
            Some(hold) => Ok(Self::replacing(&before, hold)),
            None => Err(AcquireError::Busy(LockBusy {
                lease_remaining: Duration::ZERO,
                queue_length: 0,
                waited: None,
            })),
        }
    }

    /// Gives it back now, and says how that went. If this future is dropped, that happens all the same,
    /// in the background.
    ///
    /// Of several guards on one grant all but the last return [`Released::StillHeld`], by memory alone.
    pub async fn release(self) -> ReleaseStatus {
        self.begin_release().finish().await
    }

    /// The part of a release for which nothing is waited.
    pub(super) fn begin_release(self) -> PendingRelease {
        let (facts, last) = match self.0 {
            GrantShare::Borrowed(held) => return PendingRelease::still_held(held.loss()),
            // Of two that are released at once, exactly one is the last.
            GrantShare::Owned(grant) => (Arc::clone(grant.hold_state()), Arc::into_inner(grant)),
        };
        let Some((hold, turn)) = last.map(SharedGrant::into_parts) else {
            return PendingRelease::still_held(facts.loss());
        };
        match ReleaseAction::decide(hold, turn) {
            ReleaseAction::HandedOver => PendingRelease::Done(ReleaseStatus::Released),
            ReleaseAction::Release(hold) => PendingRelease::Release(facts, hold),
            ReleaseAction::ReleaseAndReacquire(pass) => {
                let (tell, told) = oneshot::channel();
                let store = pass.store().clone();
                pass.spawn(Some(tell));
                PendingRelease::ReleaseAndReacquire(store, told)
            }
        }
    }
}
