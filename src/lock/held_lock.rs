//! Lock that a request holds, as its handler and inner layers see it.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

pub use super::held_locks::HeldLocks;
use super::{guard::LockGuard, shared_grant::SharedGrant};
use crate::{
    error::Error,
    key::Key,
    store::{HoldState, LockLoss, LockMode, Store, WeakStore, ensure_replicated},
};

/// Lock that a request runs under, as its handler sees it. A clone does not keep it held.
#[derive(Clone)]
pub struct HeldLock {
    key: Key,
    kind: HeldLockKind,
}

#[derive(Clone)]
enum HeldLockKind {
    /// Admitted without a lock by the layer's policy, because the store was unavailable.
    Admitted,
    Local {
        hold_state: Arc<HoldState>,
        store: WeakStore,
        owner: GrantOwner,
    },
    /// Held by another service, which delegated it.
    Delegated(Arc<DelegatedLock>),
}

/// Owner of the grant, which releases it.
#[derive(Clone)]
enum GrantOwner {
    Guards(Weak<SharedGrant>),
    /// Worker of a deferred run.
    Worker,
}

/// Claims of a delegation header about another service's lock.
#[derive(Debug)]
pub(super) struct DelegatedLock {
    /// Identity of the store that has the lock.
    pub(super) store_identity: Arc<str>,
    pub(super) fence: u64,
    pub(super) mode: LockMode,
    pub(super) expires_at: Instant,
}

impl HeldLock {
    pub(super) fn from_grant(grant: &Arc<SharedGrant>) -> Self {
        let (facts, of) =
            (Arc::clone(grant.hold_state()), GrantOwner::Guards(Arc::downgrade(grant)));
        let store = grant.hold().store().downgrade();
        Self {
            key: facts.key().clone(),
            kind: HeldLockKind::Local { hold_state: facts, store, owner: of },
        }
    }

    /// Creates the lock of a deferred run in this store.
    pub(crate) fn from_run(store: &Store, facts: Arc<HoldState>) -> Self {
        let (store, of) = (store.downgrade(), GrantOwner::Worker);
        Self {
            key: facts.key().clone(),
            kind: HeldLockKind::Local { hold_state: facts, store, owner: of },
        }
    }

    pub(super) fn admitted(key: Key) -> Self {
        Self { key, kind: HeldLockKind::Admitted }
    }

    pub(super) fn delegated(key: Key, said: DelegatedLock) -> Self {
        Self { key, kind: HeldLockKind::Delegated(Arc::new(said)) }
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the fence of this grant, which is larger than that of every earlier grant of this
    /// lock. `None` if the store was unavailable and the request was admitted without a lock.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        match &self.kind {
            HeldLockKind::Admitted => None,
            HeldLockKind::Local { hold_state: facts, .. } => Some(facts.fence),
            HeldLockKind::Delegated(said) => Some(said.fence),
        }
    }

    /// Returns how long the lock is certain to be held if no renewal succeeds from now on; zero
    /// without a lock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match &self.kind {
            // Zero after a loss or release: a copy in a task of the handler may outlive the
            // request.
            HeldLockKind::Local { hold_state: facts, .. } => match facts.current() {
                now if now.loss().is_none() && !now.is_closed() => {
                    now.valid_until().saturating_duration_since(Instant::now())
                }
                _ => Duration::ZERO,
            },
            HeldLockKind::Delegated(said) => {
                said.expires_at.saturating_duration_since(Instant::now())
            }
            HeldLockKind::Admitted => Duration::ZERO,
        }
    }

    /// Returns the reason of the loss, if the lock was lost.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        match &self.kind {
            HeldLockKind::Admitted => None,
            HeldLockKind::Local { hold_state: facts, .. } => facts.current().loss(),
            HeldLockKind::Delegated(said) => {
                (Instant::now() >= said.expires_at).then_some(LockLoss::Lapsed)
            }
        }
    }

    /// Resolves when the lock is lost; never if it is released first or was never held. A lock that
    /// is delegated by another service is lost when the delegation ends. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        match &self.kind {
            HeldLockKind::Admitted => std::future::pending().await,
            HeldLockKind::Local { hold_state: facts, .. } => facts.wait_for_loss().await,
            HeldLockKind::Delegated(said) => {
                tokio::time::sleep_until(said.expires_at).await;
                LockLoss::Lapsed
            }
        }
    }

    /// Returns true if the lock is in this store, through any handle. `None` if that is unknown
    /// because a handle has never connected: see [`identify_stores`](Self::identify_stores).
    pub(super) fn is_in_store(&self, store: &Store) -> Option<bool> {
        match &self.kind {
            HeldLockKind::Admitted => Some(false),
            HeldLockKind::Local { store: own, .. } => match own.upgrade() {
                Some(own) => own.is_same_as(store),
                None => Some(false),
            },
            HeldLockKind::Delegated(said) => {
                let spaces = store.backend().identities();
                (!spaces.is_empty()).then(|| spaces.contains(&said.store_identity))
            }
        }
    }

    pub(super) fn is_delegated(&self) -> bool {
        matches!(self.kind, HeldLockKind::Delegated(_))
    }

    /// Connects the handles that [`is_in_store`](Self::is_in_store) compares.
    pub(super) async fn identify_stores(&self, store: &Store) -> Result<(), Error> {
        if let HeldLockKind::Local { store: own, .. } = &self.kind
            && let Some(own) = own.upgrade()
        {
            own.identify().await?;
        }
        store.identify().await
    }

    /// Returns true if both belong to one grant, and so count once.
    pub(super) fn is_same_grant(&self, other: &Self) -> bool {
        (&self.key, self.fence()) == (&other.key, other.fence())
            && match (&self.kind, &other.kind) {
                (HeldLockKind::Admitted, HeldLockKind::Admitted) => true,
                (
                    HeldLockKind::Local { hold_state: facts, .. },
                    HeldLockKind::Local { hold_state: others, .. },
                ) => facts.lease.token == others.lease.token,
                (HeldLockKind::Delegated(said), HeldLockKind::Delegated(others)) => {
                    said.store_identity == others.store_identity
                }
                (HeldLockKind::Delegated(said), HeldLockKind::Local { store, .. })
                | (HeldLockKind::Local { store, .. }, HeldLockKind::Delegated(said)) => {
                    store.upgrade().is_some_and(|store| {
                        store.backend().identities().contains(&said.store_identity)
                    })
                }
                _ => false,
            }
    }

    /// Waits until `wanted` replicas have the grant. For a delegated lock, asks the server that
    /// `store` reaches now.
    pub(super) async fn await_replicas(&self, store: &Store, wanted: u32) -> Result<(), Error> {
        match &self.kind {
            HeldLockKind::Admitted => Ok(()),
            HeldLockKind::Local { hold_state: facts, store: own, .. } => {
                let own = own.upgrade().unwrap_or_else(|| store.clone());
                facts.current().lease.ensure_replicated(&own, wanted).await
            }
            HeldLockKind::Delegated(_) => {
                let servers = store.backend().server_generation();
                ensure_replicated(store, &self.key, wanted, servers).await.map(drop)
            }
        }
    }

    /// Returns the mode, or `None` without a lock.
    pub(super) fn mode(&self) -> Option<LockMode> {
        match &self.kind {
            HeldLockKind::Admitted => None,
            HeldLockKind::Local { hold_state: facts, .. } => Some(facts.current().lease.terms.mode),
            HeldLockKind::Delegated(said) => Some(said.mode),
        }
    }

    /// Returns a guard on the lock, or `None` once it has ended.
    pub(super) fn share_guard(&self) -> Option<LockGuard> {
        match &self.kind {
            HeldLockKind::Local { hold_state: facts, .. }
                if facts.current().is_closed() || facts.current().loss().is_some() =>
            {
                None
            }
            HeldLockKind::Local { hold_state: facts, owner: GrantOwner::Guards(grant), .. } => {
                let grant = match facts.successor() {
                    Some((_, owner)) => owner.upgrade()?.downcast().ok(),
                    None => grant.upgrade(),
                };
                grant.map(LockGuard::from_grant)
            }
            HeldLockKind::Local { owner: GrantOwner::Worker, .. } => {
                Some(LockGuard::borrowed(self.clone()))
            }
            HeldLockKind::Delegated(said) if Instant::now() >= said.expires_at => None,
            HeldLockKind::Delegated(_) => Some(LockGuard::borrowed(self.clone())),
            HeldLockKind::Admitted => None,
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence();
        f.debug_struct("HeldLock").field("key", &self.key).field("fence", &fence).finish()
    }
}
