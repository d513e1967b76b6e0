//! A lock that a request has, as its handler and the layers further in see it.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

pub use super::held_locks::HeldLocks;
use super::{grant::Grant, guard::LockGuard};
use crate::{
    error::Error,
    key::Key,
    store::{HoldState, LockLoss, LockMode, Store, WeakStore, ensure_replicated},
};

/// The lock this request runs under, as its handler sees it. Cloning it holds nothing.
#[derive(Clone)]
pub struct HeldLock {
    key: Key,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// The store was away and the layer's policy let the request pass without a lock.
    Admitted,
    Here {
        facts: Arc<HoldState>,
        store: WeakStore,
        of: Owner,
    },
    /// Another service said so.
    Elsewhere(Arc<Elsewhere>),
}

/// Who gives it back.
#[derive(Clone)]
enum Owner {
    Guards(Weak<Grant>),
    /// The worker of a deferred run.
    Worker,
}

/// What another service has said of its lock.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// Identity of the store that the lock is in.
    pub(super) space: Arc<str>,
    pub(super) fence: u64,
    pub(super) mode: LockMode,
    pub(super) until: Instant,
}

impl HeldLock {
    pub(super) fn own(grant: &Arc<Grant>) -> Self {
        let (facts, of) = (Arc::clone(grant.facts()), Owner::Guards(Arc::downgrade(grant)));
        let store = grant.hold().store().downgrade();
        Self { key: facts.key().clone(), kind: Kind::Here { facts, store, of } }
    }

    /// The lock of a deferred run, which is in this store.
    pub(crate) fn of_run(store: &Store, facts: Arc<HoldState>) -> Self {
        let (store, of) = (store.downgrade(), Owner::Worker);
        Self { key: facts.key().clone(), kind: Kind::Here { facts, store, of } }
    }

    pub(super) fn admitted(key: Key) -> Self {
        Self { key, kind: Kind::Admitted }
    }

    pub(super) fn elsewhere(key: Key, said: Elsewhere) -> Self {
        Self { key, kind: Kind::Elsewhere(Arc::new(said)) }
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The number of this grant, larger than that of every earlier grant of this lock; `None` if the
    /// store was away and the request was let through without a lock.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        match &self.kind {
            Kind::Admitted => None,
            Kind::Here { facts, .. } => Some(facts.fence),
            Kind::Elsewhere(said) => Some(said.fence),
        }
    }

    /// How long the lock is sure to be held if no renewal succeeds from now on; zero without a lock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match &self.kind {
            // Lost, or given back: a copy in a handler's own task may outlive the request.
            Kind::Here { facts, .. } => match facts.current() {
                now if now.loss().is_none() && !now.is_closed() => {
                    now.valid_until().saturating_duration_since(Instant::now())
                }
                _ => Duration::ZERO,
            },
            Kind::Elsewhere(said) => said.until.saturating_duration_since(Instant::now()),
            Kind::Admitted => Duration::ZERO,
        }
    }

    /// Why it was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        match &self.kind {
            Kind::Admitted => None,
            Kind::Here { facts, .. } => facts.current().loss(),
            Kind::Elsewhere(said) => (Instant::now() >= said.until).then_some(LockLoss::Lapsed),
        }
    }

    /// Resolves when the lock is lost; never if it is given back first, or was never held. A lock that
    /// another service has ends here when that service's word for it does. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        match &self.kind {
            Kind::Admitted => std::future::pending().await,
            Kind::Here { facts, .. } => facts.wait_for_loss().await,
            Kind::Elsewhere(said) => {
                tokio::time::sleep_until(said.until).await;
                LockLoss::Lapsed
            }
        }
    }

    /// Returns true if the lock is in this store, by whichever handle. `None` while a handle that never
    /// connected leaves that open: see [`identify`](Self::identify).
    pub(super) fn is_in(&self, store: &Store) -> Option<bool> {
        match &self.kind {
            Kind::Admitted => Some(false),
            Kind::Here { store: own, .. } => match own.upgrade() {
                Some(own) => own.is_same_as(store),
                None => Some(false),
            },
            Kind::Elsewhere(said) => {
                let spaces = store.backend().identities();
                (!spaces.is_empty()).then(|| spaces.contains(&said.space))
            }
        }
    }

    pub(super) fn is_delegated(&self) -> bool {
        matches!(self.kind, Kind::Elsewhere(_))
    }

    /// Connects the handles that [`is_in`](Self::is_in) compares.
    pub(super) async fn identify(&self, store: &Store) -> Result<(), Error> {
        if let Kind::Here { store: own, .. } = &self.kind
            && let Some(own) = own.upgrade()
        {
            own.identify().await?;
        }
        store.identify().await
    }

    /// Returns true if both are of one grant, and so count once.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        (&self.key, self.fence()) == (&other.key, other.fence())
            && match (&self.kind, &other.kind) {
                (Kind::Admitted, Kind::Admitted) => true,
                (Kind::Here { facts, .. }, Kind::Here { facts: others, .. }) => {
                    facts.lease.token == others.lease.token
                }
                (Kind::Elsewhere(said), Kind::Elsewhere(others)) => said.space == others.space,
                (Kind::Elsewhere(said), Kind::Here { store, .. })
                | (Kind::Here { store, .. }, Kind::Elsewhere(said)) => store
                    .upgrade()
                    .is_some_and(|store| store.backend().identities().contains(&said.space)),
                _ => false,
            }
    }

    /// Waits until so many replicas have the grant. The server that another service was granted its lock by
    /// is asked as `store` reaches it now.
    pub(super) async fn replicate(&self, store: &Store, wanted: u32) -> Result<(), Error> {
        match &self.kind {
            Kind::Admitted => Ok(()),
            Kind::Here { facts, store: own, .. } => {
                let own = own.upgrade().unwrap_or_else(|| store.clone());
                facts.current().lease.ensure_replicated(&own, wanted).await
            }
            Kind::Elsewhere(_) => {
                let servers = store.backend().server_generation();
                ensure_replicated(store, &self.key, wanted, servers).await.map(drop)
            }
        }
    }

    /// How it is held, if it is.
    pub(super) fn mode(&self) -> Option<LockMode> {
        match &self.kind {
            Kind::Admitted => None,
            Kind::Here { facts, .. } => Some(facts.current().lease.terms.mode),
            Kind::Elsewhere(said) => Some(said.mode),
        }
    }

    /// A guard on it; `None` once it has ended.
    pub(super) fn share(&self) -> Option<LockGuard> {
        match &self.kind {
            Kind::Here { facts, .. } if facts.current().is_closed() || facts.current().loss().is_some() => {
                None
            }
            Kind::Here { facts, of: Owner::Guards(grant), .. } => {
                let grant = match facts.successor() {
                    Some((_, owner)) => owner.upgrade()?.downcast().ok(),
                    None => grant.upgrade(),
                };
                grant.map(LockGuard::share)
            }
            Kind::Here { of: Owner::Worker, .. } => Some(LockGuard::lent(self.clone())),
            Kind::Elsewhere(said) if Instant::now() >= said.until => None,
            Kind::Elsewhere(_) => Some(LockGuard::lent(self.clone())),
            Kind::Admitted => None,
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence();
        f.debug_struct("HeldLock").field("key", &self.key).field("fence", &fence).finish()
    }
}
