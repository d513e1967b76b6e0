//! The guard of a lock.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::held::{HeldLock, HeldLocks};
use crate::{
    key::Key,
    store::{GaveBack, Hold, Loss},
};

/// A lock that is held, and renewed, until this is dropped or released.
///
/// Dropping it never waits and needs no runtime: one message goes to the store's background agent,
/// which gives the lock back. If the process dies instead, the lock ends with its lease.
///
/// # One lock, several guards
///
/// Code within a request whose `LockLayer` has the lock, or within [`scope`](Self::scope), that acquires
/// the same lock again does not wait for itself: it gets a guard on the same grant, with the same fence, by
/// memory alone. The lock is given back when the last of them ends, in whatever order they do, because
/// whoever has a guard relies on being alone. So an inner guard that outlives the request (in a task
/// that was spawned, say) keeps the lock until it ends itself, or `max_hold` does; the terms are those
/// of the first. In a deferred run the lock is the worker's, and an inner guard ends with the run.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct LockGuard {
    held: HeldLock,
    /// `None`: a share in what is not this handle's to give back.
    hold: Option<Arc<Hold>>,
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was held to the end, and is given back.
    Released,
    /// It is held still: another guard of the same request has it, and the last one gives it back.
    StillHeld,
    /// It had been lost before: somebody else may have had it meanwhile.
    AlreadyLost,
    /// The store did not answer. It is tried again in the background, until the lease has ended.
    Unknown,
}

impl LockGuard {
    pub(super) fn new(hold: Hold) -> Self {
        let hold = Arc::new(hold);
        Self { held: HeldLock::own(&hold), hold: Some(hold) }
    }

    /// Another guard on what is held already.
    pub(super) fn share(held: HeldLock, hold: Option<Arc<Hold>>) -> Self {
        Self { held, hold }
    }

    /// The number of this grant: larger than that of every earlier grant of this lock.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.fence().unwrap_or_default()
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.held.key()
    }

    /// How long it is sure to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Resolves when the lock is lost, with the reason; never if it is released first. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.held.lost().await
    }

    /// A copy to hand to code that must not give it back.
    #[must_use]
    pub fn held(&self) -> HeldLock {
        self.held.clone()
    }

    /// Runs code that may acquire this lock again: it gets a guard on the same grant instead of waiting
    /// for itself. What runs in a `LockLayer` is within such a scope already; a guard that a handler
    /// takes for itself is not, so that futures joined in one task exclude each other. Tasks that
    /// the future spawns are outside. Cancel safe if the future is.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        HeldLocks::current().and([self.held()]).scope().run(future)
    }

    /// Gives it back now, and says how that went. If this future is dropped, the agent gives it back.
    ///
    /// Of several guards on one grant all but the last return [`Released::StillHeld`] without asking the
    /// store.
    pub async fn release(self) -> Released {
        // Of two that are released at once, exactly one is the last.
        let Some(hold) = self.hold.and_then(Arc::into_inner) else {
            return match self.held.loss() {
                Some(_) => Released::AlreadyLost,
                None => Released::StillHeld,
            };
        };
        let facts = Arc::clone(hold.facts());
        match hold.release().await {
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

    /// What the store room knows of it.
    #[cfg(test)]
    pub(super) fn facts(&self) -> &Arc<crate::store::HoldFacts> {
        self.hold.as_ref().expect("it is this handle's own").facts()
    }
}
