//! Guard that holds a lock until it is dropped or released.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    held_lock_view::{HeldLock, HeldLocks},
    lock_outcome::{AcquireError, LockBusy},
    lock_span::LockSpan,
    pending_releases::PendingRelease,
    release_status::ReleaseStatus,
    shared_grant::{HandoverContext, ReleaseAction, SharedGrant},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{HoldState, LockLease, LockLoss, LockMode, OwnedHold},
};

/// Lock that is held, and renewed, until the guard is dropped or released.
///
/// Dropping the guard never waits and needs no runtime: the lock is handed over to the next waiter
/// of this process, or one message asks the store's lease agent to release it. If the process dies,
/// the lock ends with its lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use lockgate::{ReleaseStatus, Store};
/// let store = Store::memory();
/// let guard = store.lock("order:7").acquire().await?;
/// println!("write with fence {}", guard.fence());
/// // Before a step that may keep this process from renewing the lease:
/// assert!(guard.extend(Duration::from_secs(30)).await?);
/// assert_eq!(guard.release().await, ReleaseStatus::Released);
/// # Ok(()) }
/// ```
///
/// # Reentrant acquires
///
/// Code inside a `LockLayer` that holds the lock, or within [`scope`](Self::scope), does not wait
/// for itself if it acquires the same lock again. It gets another guard on the same grant, with the
/// same fence and without a call to the store.
///
/// - The grant ends with its last guard, in any order of dropping, because code with a guard relies
///   on being alone. An inner guard that outlives the request, such as one in a spawned task, keeps
///   the lock until it is dropped or `max_hold` ends.
/// - Lease and `max_hold` are those of the first guard.
/// - In a deferred run the worker owns the lock, and an inner guard ends with the run.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard(GrantShare, LockSpan);

#[derive(Debug)]
enum GrantShare {
    /// The last guard ends the grant.
    Owned(Arc<SharedGrant>),
    /// Another owner ends the grant.
    Borrowed(HeldLock),
}

impl LockGuard {
    pub(super) fn new(hold: OwnedHold, handover: Option<HandoverContext>) -> Self {
        Self::from_grant(Arc::new(SharedGrant::new(hold, handover)))
    }

    /// Creates a guard for the same hold on another lease. Copies of the previous hold follow it.
    fn replacing(previous: &HoldState, hold: OwnedHold, span: LockSpan) -> Self {
        let (hold_state, grant) =
            (Arc::clone(hold.state()), Arc::new(SharedGrant::new(hold, None)));
        let weak_grant = Arc::downgrade(&grant);
        if let Some(route) = previous.route() {
            hold_state.record_route(route);
        }
        previous.set_successor(&hold_state, weak_grant);
        Self(GrantShare::Owned(grant), span)
    }

    /// Creates another guard on a grant.
    pub(super) fn from_grant(grant: Arc<SharedGrant>) -> Self {
        Self(GrantShare::Owned(grant), LockSpan::default())
    }

    /// Returns the guard if it is still certain after another call was awaited; otherwise drops it,
    /// which releases the lock.
    pub(super) fn ensure_valid(self) -> Result<Self, AcquireError> {
        if self.remaining().is_zero() {
            return Err(Error::new(ErrorKind::Timeout, "grant").into());
        }
        Ok(self)
    }

    /// Creates a guard on a lock that another owner releases.
    pub(super) fn borrowed(held_lock: HeldLock) -> Self {
        Self(GrantShare::Borrowed(held_lock), LockSpan::default())
    }

    /// Sets the span that ends with this guard.
    pub(super) fn set_span(&mut self, span: LockSpan) {
        self.1 = span;
    }

    /// Returns the hold, if the guard is on a grant of this process.
    pub(crate) fn hold_state(&self) -> Option<&Arc<HoldState>> {
        match &self.0 {
            GrantShare::Owned(grant) => Some(grant.hold_state()),
            GrantShare::Borrowed(_) => None,
        }
    }

    /// Marks the hold as sent to a waiter that has not received it yet.
    pub(super) fn mark_awaiting_receipt(&self) {
        if let Some(hold_state) = self.hold_state() {
            hold_state.mark_unreceived();
        }
    }

    /// Marks the hold as received by its waiter. Returns false if it has ended in the meantime.
    pub(super) fn mark_received(&self) -> bool {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold().mark_received(),
            GrantShare::Borrowed(_) => true,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Arc<LockLease>> {
        self.hold_state().map(|hold_state| &hold_state.lease)
    }

    /// Returns the parts if this is the only guard. They are neither handed over nor released when
    /// they are dropped.
    pub(super) fn into_parts(self) -> Result<(OwnedHold, Option<HandoverContext>), Self> {
        match self.0 {
            GrantShare::Owned(grant) => match Arc::try_unwrap(grant) {
                Ok(grant) => Ok(grant.into_parts()),
                Err(grant) => Err(Self(GrantShare::Owned(grant), self.1)),
            },
            borrowed @ GrantShare::Borrowed(_) => Err(Self(borrowed, self.1)),
        }
    }

    /// Returns the fence of this grant, which is larger than that of every earlier grant of this
    /// lock.
    #[must_use]
    pub fn fence(&self) -> u64 {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold_state().fence,
            // A lock without a fence is never borrowed.
            GrantShare::Borrowed(held_lock) => held_lock.fence().unwrap_or_default(),
        }
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold_state().key(),
            GrantShare::Borrowed(held_lock) => held_lock.key(),
        }
    }

    /// Returns how long the lock is certain to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held_lock().remaining()
    }

    /// Returns the reason of the loss, if the lock was lost. Does not wait, unlike
    /// [`lost`](Self::lost).
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold_state().loss(),
            GrantShare::Borrowed(held_lock) => held_lock.loss(),
        }
    }

    /// Resolves when the lock is lost, with the reason; never if it is released first. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        self.held_lock().lost().await
    }

    /// Returns a view of the lock for code that must not release it.
    #[must_use]
    pub fn held_lock(&self) -> HeldLock {
        match &self.0 {
            GrantShare::Owned(grant) => HeldLock::from_grant(grant),
            GrantShare::Borrowed(held_lock) => held_lock.clone(),
        }
    }

    /// Runs a future in which acquiring this lock again returns a guard on the same grant, instead
    /// of waiting for itself.
    ///
    /// Code inside a `LockLayer` runs in such a scope already. A guard that a handler acquires does
    /// not create one by itself, so futures that are joined in one task exclude each other. Tasks
    /// that the future spawns are outside of the scope. Cancel safe if the future is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let guard = store.lock("order:7").acquire().await?;
    /// let inner = guard.scope(store.lock("order:7").acquire()).await?;
    /// assert_eq!(inner.fence(), guard.fence());
    /// # Ok(()) }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        HeldLocks::current().with_unique([self.held_lock()]).to_scope().run(future)
    }

    /// Extends the lease once, to `lease` from now, but not beyond `max_hold`. For use before a
    /// step that may keep this process from renewing it.
    ///
    /// Returns false if the lock is lost. The lease of a deferred run belongs to its worker and is
    /// not extended: returns true if it lasts that long anyway. Cancel safe: the lease may or may
    /// not have been extended.
    ///
    /// # Errors
    ///
    /// If the store could not be asked; the lock is held as before.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        match &self.0 {
            GrantShare::Owned(grant) => grant.hold().extend(lease).await,
            GrantShare::Borrowed(held_lock) => Ok(held_lock.remaining() >= lease),
        }
    }

    /// Turns an exclusive lock into a shared one without a gap, and admits the readers at the head
    /// of the wait queue.
    ///
    /// The fence stays the same, and views of the guard ([`held_lock`](Self::held_lock)) are of the
    /// shared lock from then on. The lock stays exclusive in a deferred run, and while another
    /// guard on the same grant relies on it. There is no upgrade: two readers that both want to
    /// write would wait for each other. Cancel safe: if the future is dropped, the lock is
    /// released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let writer = store.lock("catalog").acquire().await?;
    /// let first_reader = writer.downgrade().await?;
    /// let second_reader = store.lock("catalog").shared().acquire().await?;
    /// # drop((first_reader, second_reader));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AcquireError::Busy`] if the lock was lost before; [`AcquireError::Fault`] if the store
    /// could not be asked. In both cases the lock is no longer held.
    pub async fn downgrade(mut self) -> Result<Self, AcquireError> {
        if self.lease().is_some_and(|lease| lease.terms.mode != LockMode::Exclusive) {
            return Ok(self);
        }
        let span = std::mem::take(&mut self.1);
        let (hold, handover) = match self.into_parts() {
            Ok(parts) => parts,
            Err(shared) => return Ok(Self(shared.0, span)),
        };
        if let Some(HandoverContext { local_queues, .. }) = handover {
            local_queues.stop_handovers(hold.lease());
        }
        let previous = Arc::clone(hold.state());
        match hold.downgrade().await? {
            Some(hold) => Ok(Self::replacing(&previous, hold, span)),
            None => Err(AcquireError::Busy(LockBusy {
                lease_remaining: Duration::ZERO,
                queue_length: 0,
                waited: None,
            })),
        }
    }

    /// Releases the lock now and returns the status. If the future is dropped, the release
    /// continues in the background.
    ///
    /// Of several guards on one grant, all but the last return [`ReleaseStatus::StillHeld`] without
    /// a call to the store.
    pub async fn release(self) -> ReleaseStatus {
        self.begin_release().finish().await
    }

    /// Does the part of a release that needs no waiting.
    pub(super) fn begin_release(self) -> PendingRelease {
        let mut span = self.1;
        span.end_hold();
        let (hold_state, last_grant) = match self.0 {
            GrantShare::Borrowed(held_lock) => return PendingRelease::still_held(held_lock.loss()),
            // Of two guards that are released at the same time, exactly one is the last.
            GrantShare::Owned(grant) => (Arc::clone(grant.hold_state()), Arc::into_inner(grant)),
        };
        let Some((hold, handover)) = last_grant.map(SharedGrant::into_parts) else {
            return PendingRelease::still_held(hold_state.loss());
        };
        match ReleaseAction::decide(hold, handover) {
            ReleaseAction::HandedOver => PendingRelease::Done(ReleaseStatus::Released),
            ReleaseAction::Release(hold) => PendingRelease::Release { hold_state, hold, span },
            ReleaseAction::ReleaseAndReacquire(reacquire) => {
                let (status_sender, status_receiver) = oneshot::channel();
                let store = reacquire.store().clone();
                reacquire.spawn(Some(status_sender));
                PendingRelease::ReleaseAndReacquire { store, status_receiver, span }
            }
        }
    }
}
