//! View of a lock that a request holds, for its handler and inner layers; it releases nothing.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

pub use super::held_locks::HeldLocks;
use super::{lock_guard::LockGuard, shared_grant::SharedGrant};
use crate::{
    error::Error,
    key::{Key, LogName},
    store::{HoldState, LockLoss, LockMode, Store, WeakStore, ensure_replicated},
};

/// Lock that a request runs under, as its handler sees it. A clone does not keep it held.
#[derive(Clone)]
pub struct HeldLock {
    key: Key,
    view: GrantView,
}

/// Grant that a held lock is a view of: of this process, of another service, or none.
#[derive(Clone)]
enum GrantView {
    /// Admitted without a lock by the layer's policy, because the store was unavailable.
    AdmittedWithoutLock,
    Local {
        hold_state: Arc<HoldState>,
        store: WeakStore,
        owner: GrantOwner,
    },
    /// Held by another service, which delegated it.
    Delegated(Arc<DelegationClaims>),
}

/// Owner that renews and releases the grant.
#[derive(Clone)]
enum GrantOwner {
    Guards(Weak<SharedGrant>),
    /// Worker of a deferred run.
    Worker,
}

/// Claims of a delegation header about another service's lock.
#[derive(Debug)]
pub(super) struct DelegationClaims {
    /// Identity of the store that has the lock.
    pub(super) store_identity: Arc<str>,
    pub(super) fence: u64,
    pub(super) mode: LockMode,
    pub(super) expires_at: Instant,
}

impl HeldLock {
    pub(super) fn from_grant(grant: &Arc<SharedGrant>) -> Self {
        let (hold_state, owner) =
            (Arc::clone(grant.hold_state()), GrantOwner::Guards(Arc::downgrade(grant)));
        let store = grant.hold().store().downgrade();
        Self { key: hold_state.key().clone(), view: GrantView::Local { hold_state, store, owner } }
    }

    /// Creates the lock of a deferred run in this store.
    pub(crate) fn from_run(store: &Store, hold_state: Arc<HoldState>) -> Self {
        let (store, owner) = (store.downgrade(), GrantOwner::Worker);
        Self { key: hold_state.key().clone(), view: GrantView::Local { hold_state, store, owner } }
    }

    pub(super) fn admitted(key: Key) -> Self {
        Self { key, view: GrantView::AdmittedWithoutLock }
    }

    pub(super) fn delegated(key: Key, delegated: DelegationClaims) -> Self {
        Self { key, view: GrantView::Delegated(Arc::new(delegated)) }
    }

    /// Returns the lock's name for log records. Its store says whether that is hashed.
    pub(super) fn log_name(&self) -> LogName<'_> {
        let is_shown = match &self.view {
            GrantView::Local { store, .. } => {
                store.upgrade().is_some_and(|store| store.shows_log_names())
            }
            GrantView::AdmittedWithoutLock | GrantView::Delegated(_) => false,
        };
        self.key.log_name(is_shown)
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
        match &self.view {
            GrantView::AdmittedWithoutLock => None,
            GrantView::Local { hold_state, .. } => Some(hold_state.fence),
            GrantView::Delegated(delegated) => Some(delegated.fence),
        }
    }

    /// Returns how long the lock is certain to be held if no renewal succeeds from now on; zero
    /// without a lock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match &self.view {
            // Zero after a loss or release: a copy in a task of the handler may outlive the
            // request.
            GrantView::Local { hold_state, .. } => match hold_state.current() {
                current if current.loss().is_none() && !current.is_closed() => {
                    current.valid_until().saturating_duration_since(Instant::now())
                }
                _ => Duration::ZERO,
            },
            GrantView::Delegated(delegated) => {
                delegated.expires_at.saturating_duration_since(Instant::now())
            }
            GrantView::AdmittedWithoutLock => Duration::ZERO,
        }
    }

    /// Returns the reason of the loss, if the lock was lost.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        match &self.view {
            GrantView::AdmittedWithoutLock => None,
            GrantView::Local { hold_state, .. } => hold_state.current().loss(),
            GrantView::Delegated(delegated) => {
                (Instant::now() >= delegated.expires_at).then_some(LockLoss::Lapsed)
            }
        }
    }

    /// Resolves when the lock is lost; never if it is released first or was never held. A lock that
    /// is delegated by another service is lost when the delegation ends. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        match &self.view {
            GrantView::AdmittedWithoutLock => std::future::pending().await,
            GrantView::Local { hold_state, .. } => hold_state.wait_for_loss().await,
            GrantView::Delegated(delegated) => {
                tokio::time::sleep_until(delegated.expires_at).await;
                LockLoss::Lapsed
            }
        }
    }

    /// Returns true if the lock is in this store, through any handle. `None` if that is unknown
    /// because a handle has never connected: see [`identify_stores`](Self::identify_stores).
    pub(super) fn is_in_store(&self, store: &Store) -> Option<bool> {
        match &self.view {
            GrantView::AdmittedWithoutLock => Some(false),
            GrantView::Local { store: lock_store, .. } => match lock_store.upgrade() {
                Some(lock_store) => lock_store.is_same_as(store),
                None => Some(false),
            },
            GrantView::Delegated(delegated) => {
                let identities = store.backend().identities();
                (!identities.is_empty()).then(|| identities.contains(&delegated.store_identity))
            }
        }
    }

    pub(super) fn is_delegated(&self) -> bool {
        matches!(self.view, GrantView::Delegated(_))
    }

    /// Connects the handles that [`is_in_store`](Self::is_in_store) compares.
    pub(super) async fn identify_stores(&self, store: &Store) -> Result<(), Error> {
        if let GrantView::Local { store: lock_store, .. } = &self.view
            && let Some(lock_store) = lock_store.upgrade()
        {
            lock_store.identify().await?;
        }
        store.identify().await
    }

    /// Returns true if both belong to one grant, and so count once.
    pub(super) fn is_same_grant(&self, other: &Self) -> bool {
        (&self.key, self.fence()) == (&other.key, other.fence())
            && match (&self.view, &other.view) {
                (GrantView::AdmittedWithoutLock, GrantView::AdmittedWithoutLock) => true,
                (
                    GrantView::Local { hold_state, .. },
                    GrantView::Local { hold_state: other_hold_state, .. },
                ) => hold_state.lease.token == other_hold_state.lease.token,
                (GrantView::Delegated(delegated), GrantView::Delegated(other)) => {
                    delegated.store_identity == other.store_identity
                }
                (GrantView::Delegated(delegated), GrantView::Local { store, .. })
                | (GrantView::Local { store, .. }, GrantView::Delegated(delegated)) => {
                    store.upgrade().is_some_and(|store| {
                        store.backend().identities().contains(&delegated.store_identity)
                    })
                }
                _ => false,
            }
    }

    /// Waits until `min_replicas` replicas have the grant. For a delegated lock, asks the server
    /// that `store` reaches now.
    pub(super) async fn await_replicas(
        &self,
        store: &Store,
        min_replicas: u32,
    ) -> Result<(), Error> {
        match &self.view {
            GrantView::AdmittedWithoutLock => Ok(()),
            GrantView::Local { hold_state, store: lock_store, .. } => {
                let lock_store = lock_store.upgrade().unwrap_or_else(|| store.clone());
                hold_state.current().lease.ensure_replicated(&lock_store, min_replicas).await
            }
            GrantView::Delegated(_) => {
                let server_generation = store.backend().server_generation();
                ensure_replicated(store, &self.key, min_replicas, server_generation).await.map(drop)
            }
        }
    }

    /// Returns the mode, or `None` without a lock.
    pub(super) fn mode(&self) -> Option<LockMode> {
        match &self.view {
            GrantView::AdmittedWithoutLock => None,
            GrantView::Local { hold_state, .. } => Some(hold_state.current().lease.terms.mode),
            GrantView::Delegated(delegated) => Some(delegated.mode),
        }
    }

    /// Returns a guard on the lock, or `None` once it has ended.
    pub(super) fn share_guard(&self) -> Option<LockGuard> {
        match &self.view {
            GrantView::Local { hold_state, .. }
                if hold_state.current().is_closed() || hold_state.current().loss().is_some() =>
            {
                None
            }
            GrantView::Local { hold_state, owner: GrantOwner::Guards(grant), .. } => {
                let grant = match hold_state.successor() {
                    Some((_, successor)) => successor.upgrade()?.downcast().ok(),
                    None => grant.upgrade(),
                };
                grant.map(LockGuard::from_grant)
            }
            GrantView::Local { owner: GrantOwner::Worker, .. } => {
                Some(LockGuard::borrowed(self.clone()))
            }
            GrantView::Delegated(delegated) if Instant::now() >= delegated.expires_at => None,
            GrantView::Delegated(_) => Some(LockGuard::borrowed(self.clone())),
            GrantView::AdmittedWithoutLock => None,
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence();
        f.debug_struct("HeldLock").field("key", &self.key).field("fence", &fence).finish()
    }
}
