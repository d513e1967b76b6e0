//! The guard of a lock, and what handlers see of it.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    key::Key,
    store::{GaveBack, Hold, HoldFacts, Loss},
};

/// A lock that is held, and renewed, until this is dropped or released.
///
/// Dropping it never waits and needs no runtime: one message goes to the store's background agent,
/// which gives the lock back. If the process dies instead, the lock ends with its lease.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct LockGuard {
    pub(super) hold: Hold,
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was held to the end, and is given back.
    Released,
    /// It had been lost before: somebody else may have had it meanwhile.
    AlreadyLost,
    /// The store did not answer. It is tried again in the background, until the lease has ended.
    Unknown,
}

impl LockGuard {
    /// The number of this grant: larger than that of every earlier grant of this lock.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.hold.facts().fence
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.hold.facts().key
    }

    /// How long it is sure to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        remaining(self.hold.facts())
    }

    /// Resolves when the lock is lost, with the reason; never if it is released first. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.hold.facts().lost().await
    }

    /// A copy to hand to code that must not give it back.
    #[must_use]
    pub fn held(&self) -> HeldLock {
        HeldLock::of(self.hold.facts())
    }

    /// Gives it back now, and says how that went. If this future is dropped, the agent gives it back.
    pub async fn release(self) -> Released {
        let facts = Arc::clone(self.hold.facts());
        match self.hold.release().await {
            Ok(GaveBack::Released) => Released::Released,
            // The first of two calls may have done it: within the lease nobody else can have.
            Ok(GaveBack::NothingOnRetry) if facts.loss().is_none() => {
                if facts.valid_until() > Instant::now() {
                    Released::Released
                } else {
                    Released::Unknown
                }
            }
            Ok(_) => {
                facts.lose(Loss::Taken);
                Released::AlreadyLost
            }
            Err(_) if facts.loss().is_some() => Released::AlreadyLost,
            Err(_) => Released::Unknown,
        }
    }
}

/// The lock this request runs under, as its handler sees it. Cloning it holds nothing.
#[derive(Clone)]
pub struct HeldLock {
    key: Key,
    /// `None`: the store was away and the layer's policy let the request pass without a lock.
    facts: Option<Arc<HoldFacts>>,
}

impl HeldLock {
    pub(crate) fn of(facts: &Arc<HoldFacts>) -> Self {
        Self { key: facts.key.clone(), facts: Some(Arc::clone(facts)) }
    }

    pub(super) fn admitted(key: Key) -> Self {
        Self { key, facts: None }
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
        self.facts.as_ref().map(|facts| facts.fence)
    }

    /// How long the lock is sure to be held if no renewal succeeds from now on; zero without a lock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.facts.as_deref().map_or(Duration::ZERO, remaining)
    }

    /// Why it was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.facts.as_ref().and_then(|facts| facts.loss())
    }

    /// Resolves when the lock is lost; never if it is given back first, or was never held.
    pub async fn lost(&self) -> Loss {
        match &self.facts {
            Some(facts) => facts.lost().await,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence();
        f.debug_struct("HeldLock").field("key", &self.key).field("fence", &fence).finish()
    }
}

fn remaining(facts: &HoldFacts) -> Duration {
    // Lost, or given back: a copy in a handler's own task may outlive the request.
    if facts.loss().is_some() || facts.is_over() {
        return Duration::ZERO;
    }
    facts.valid_until().saturating_duration_since(Instant::now())
}
