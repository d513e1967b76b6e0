//! The guard of a lock, and what handlers see of it.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    line::{Fences, Keeper, Lines, Start, TurnEnd},
    request::{Busy, NotAcquired},
};
use crate::{
    error::Error,
    key::Key,
    store::{GaveBack, Hold, HoldFacts, Lease, Loss, Mode},
};

/// A lock that is held, and renewed, until this is dropped or released.
///
/// Dropping it never waits and needs no runtime: the lock passes to the next who waits in this process, or
/// one message goes to the store's background agent, which gives it back. If the process dies instead,
/// the lock ends with its lease.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct LockGuard {
    /// `None` once it is released.
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    hold: Hold,
    /// `None`: it is given back, whoever waits.
    turn: Option<Turn>,
}

/// The way to the next of this process.
pub(super) struct Turn {
    pub(super) lines: Arc<Lines>,
    pub(super) fences: Fences,
    pub(super) linger: Duration,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("fences", &self.fences).finish_non_exhaustive()
    }
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was held to the end, and is given back, or the next of this process has it.
    Released,
    /// It had been lost before: somebody else may have had it meanwhile.
    AlreadyLost,
    /// The store did not answer. It is tried again in the background, until the lease has ended.
    Unknown,
}

impl LockGuard {
    pub(super) fn new(hold: Hold, turn: Option<Turn>) -> Self {
        Self { held: Some(Held { hold, turn }) }
    }

    fn hold(&self) -> &Hold {
        // Only what consumes the guard takes it.
        &self.held.as_ref().expect("the guard is held until it is consumed").hold
    }

    pub(super) fn facts(&self) -> &Arc<HoldFacts> {
        self.hold().facts()
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        self.hold().lease()
    }

    /// Its parts: they are not passed on when they are dropped.
    pub(super) fn into_parts(mut self) -> (Hold, Option<Turn>) {
        let Held { hold, turn } = self.held.take().expect("the guard is held until it is consumed");
        (hold, turn)
    }

    /// The number of this grant: larger than that of every earlier grant of this lock.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.facts().fence
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.facts().key()
    }

    /// How long it is sure to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        remaining(self.facts())
    }

    /// Resolves when the lock is lost, with the reason; never if it is released first. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.facts().lost().await
    }

    /// A copy to hand to code that must not give it back.
    #[must_use]
    pub fn held(&self) -> HeldLock {
        HeldLock::of(self.facts())
    }

    /// Makes the lease last for so long from now, once, at most until `max_hold`: before a step during
    /// which this process may not get to renewing it. False if the lock is lost. Cancel safe: it may or
    /// may not have been extended.
    ///
    /// # Errors
    ///
    /// If the store could not be asked; the lock is held as before.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.hold().extend(lease).await
    }

    /// Makes an exclusive lock a shared one without a gap, and lets in the readers at the head of the
    /// line. The fence stays. Cancel safe: if the future is dropped, the lock is given back.
    ///
    /// There is no way up: two readers who both wanted to write would wait for each other.
    ///
    /// # Errors
    ///
    /// [`NotAcquired::Busy`] if it was lost before; [`NotAcquired::Fault`] if the store could not be
    /// asked. Either way the lock is gone.
    pub async fn downgrade(self) -> Result<Self, NotAcquired> {
        if self.lease().terms.mode != Mode::Exclusive {
            return Ok(self);
        }
        let (hold, turn) = self.into_parts();
        if let Some(Turn { lines, .. }) = turn {
            lines.leave_turn(hold.lease());
        }
        match hold.downgrade().await? {
            Some(hold) => Ok(Self::new(hold, None)),
            None => Err(NotAcquired::Busy(Busy { left: Duration::ZERO, line: 0, waited: None })),
        }
    }

    /// Gives it back now, and says how that went. If this future is dropped, that happens all the same,
    /// in the background.
    pub async fn release(mut self) -> Released {
        let Some(held) = self.held.take() else {
            return Released::Unknown;
        };
        let facts = Arc::clone(held.hold.facts());
        match held.end() {
            Ended::HandedOver => Released::Released,
            Ended::GiveBack(hold) => outcome(&facts, hold.release().await),
            Ended::Pass(pass) => {
                let (tell, told) = oneshot::channel();
                pass.start(Some(tell));
                told.await.unwrap_or(Released::Unknown)
            }
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            match held.end() {
                // A hold that is dropped is given back by the agent.
                Ended::HandedOver | Ended::GiveBack(_) => {}
                Ended::Pass(pass) => pass.start(None),
            }
        }
    }
}

enum Ended {
    HandedOver,
    GiveBack(Hold),
    Pass(Pass),
}

/// It is given back, and the next of this process asks for it, in one call.
struct Pass {
    lines: Arc<Lines>,
    hold: Hold,
    bell: Arc<Notify>,
}

impl Pass {
    fn start(self, tell: Option<oneshot::Sender<Released>>) {
        let Self { lines, hold, bell } = self;
        let (store, lease) = (hold.store().clone(), Arc::clone(hold.lease()));
        let name = (lease.key.clone(), lease.terms.mode);
        Keeper::spawn(&lines, &store, &name, bell, Start::Pass(hold, tell));
    }
}

impl Held {
    fn end(self) -> Ended {
        let Self { hold, turn } = self;
        let Some(turn) = turn else {
            return Ended::GiveBack(hold);
        };
        let lines = Arc::clone(&turn.lines);
        match lines.end_turn(hold, turn) {
            TurnEnd::HandedOver => Ended::HandedOver,
            TurnEnd::GiveBack(hold) => Ended::GiveBack(hold),
            TurnEnd::Pass(hold, bell) => Ended::Pass(Pass { lines, hold, bell }),
        }
    }
}

/// What a release came to, for its holder.
pub(super) fn outcome(facts: &HoldFacts, gave_back: Result<GaveBack, Error>) -> Released {
    match gave_back {
        _ if facts.loss().is_some() => Released::AlreadyLost,
        Ok(GaveBack::Released) => Released::Released,
        // The first of two calls may have done it: within the lease nobody else can have.
        Ok(GaveBack::NothingOnRetry) if facts.valid_until() > Instant::now() => Released::Released,
        Ok(GaveBack::NothingOnRetry) | Err(_) => Released::Unknown,
        Ok(_) => {
            facts.had_been_lost();
            Released::AlreadyLost
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
        Self { key: facts.key().clone(), facts: Some(Arc::clone(facts)) }
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
