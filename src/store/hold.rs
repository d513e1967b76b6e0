//! A lease that this process has: who holds it, how long it is sure to be valid, and what ends it.
//!
//! A [`Hold`] is given back when it is dropped. Dropping never waits, needs no runtime and can't fail:
//! it puts one message into the agent's mailbox.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{
    Store,
    backend::{GaveBack, JobId, Token},
};
use crate::{error::Error, key::Key};

/// An acquisition that has been sent, or is about to be. If its future is dropped before the outcome
/// is known, the agent gives back whatever the call may have taken.
#[derive(Debug)]
pub(crate) struct Attempt {
    store: Store,
    pub(crate) key: Key,
    pub(crate) me: Token,
    pub(crate) sent: Instant,
    lease: Duration,
    settled: bool,
    doubtful: bool,
}

impl Attempt {
    pub(crate) fn new(store: &Store, key: &Key, lease: Duration) -> Self {
        let me = Token::new(store.node());
        Self {
            store: store.clone(),
            key: key.clone(),
            me,
            sent: Instant::now(),
            lease,
            settled: false,
            doubtful: false,
        }
    }

    /// The call goes out again: validity counts from now.
    pub(crate) fn resent(&mut self) {
        self.sent = Instant::now();
    }

    /// The call failed. What it may have done is undone when this is dropped.
    pub(crate) fn failed(&mut self, error: &Error) {
        self.doubtful |= error.may_have_run();
    }

    /// The store said that this nonce has nothing there.
    pub(crate) fn refused(mut self) {
        self.settled = true;
    }

    /// The store granted it.
    pub(crate) fn granted(mut self, fence: u64, terms: Terms) -> Hold {
        self.settled = true;
        Hold::new(&self, fence, terms)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.settled {
            let until = Instant::now() + self.lease;
            let (key, me) = (self.key.clone(), self.me.clone());
            self.store.agent().give_back(key, me, until, self.doubtful);
        }
    }
}

/// How a lease is kept alive.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// False: the lease ends at its end, whoever holds it.
    pub(crate) renew: bool,
    /// Renewal stops after this; bounds a holder that lives and never ends.
    pub(crate) max_hold: Duration,
    /// The job whose own lease is renewed in the same step.
    pub(crate) job: Option<JobId>,
}

/// How a hold ended before it was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The store says that it is somebody else's, or nobody's.
    Taken,
    /// It could not be renewed while it was sure to be valid.
    Lapsed,
    /// It was held for longer than `max_hold`, or its fixed lease ended.
    TooLong,
}

/// The shared facts of a hold; what handlers see of it.
pub(crate) struct Facts {
    pub(crate) key: Key,
    pub(crate) me: Token,
    pub(crate) fence: u64,
    pub(crate) terms: Terms,
    pub(crate) since: Instant,
    valid_until: Mutex<Instant>,
    lost: watch::Sender<Option<Loss>>,
    over: AtomicBool,
}

impl Facts {
    pub(crate) fn valid_until(&self) -> Instant {
        *self.valid_until.lock()
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        *self.lost.borrow()
    }

    /// Resolves when the hold is lost; never if it is given back first.
    pub(crate) async fn lost(&self) -> Loss {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await.map(|loss| *loss) {
            Ok(Some(loss)) => loss,
            // The sender lives in `self`, which is borrowed here: it can't have been dropped.
            _ => std::future::pending().await,
        }
    }

    /// True once it was given back or lost: nobody renews it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn extended(&self, sent: Instant) {
        *self.valid_until.lock() = sent + sure(self.terms.lease);
    }

    /// Loss is terminal: the first reason stands, and nothing un-loses a hold.
    pub(crate) fn lose(&self, loss: Loss) {
        if !self.over.swap(true, Ordering::AcqRel) {
            tracing::warn!(node = self.me.node(), lock = %self.key.hashed(), ?loss, "lock lost");
            self.lost.send_replace(Some(loss));
        }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, fence, .. } = self;
        f.debug_struct("Hold")
            .field("key", key)
            .field("fence", fence)
            .finish_non_exhaustive()
    }
}

/// A lease that is held, and given back when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    store: Store,
    facts: Arc<Facts>,
    /// Nothing is left to give back.
    settled: bool,
}

impl Hold {
    fn new(attempt: &Attempt, fence: u64, terms: Terms) -> Self {
        let facts = Arc::new(Facts {
            key: attempt.key.clone(),
            me: attempt.me.clone(),
            fence,
            since: Instant::now(),
            valid_until: Mutex::new(attempt.sent + sure(terms.lease)),
            lost: watch::Sender::new(None),
            over: AtomicBool::new(false),
            terms,
        });
        attempt.store.agent().watch_over(&facts, attempt.sent);
        tracing::debug!(
            node = %attempt.store.node(), lock = %facts.key.hashed(), fence, "lock granted"
        );
        Self {
            store: attempt.store.clone(),
            facts,
            settled: false,
        }
    }

    pub(crate) fn facts(&self) -> &Arc<Facts> {
        &self.facts
    }

    /// Gives it back now and says how that went.
    ///
    /// If this future is dropped, the agent gives it back. A lost hold is given back all the same: the
    /// store decides whether there is something to give.
    pub(crate) async fn release(mut self) -> Result<GaveBack, Error> {
        let (key, me) = (self.facts.key.clone(), self.facts.me.clone());
        let outcome = self.store.backend().release(key, me).await?;
        // Only now: until here `Drop` had to see to it.
        self.forget();
        tracing::debug!(
            node = %self.store.node(), lock = %self.facts.key.hashed(), ?outcome,
            held_ms = self.facts.since.elapsed().as_millis(), "lock released"
        );
        Ok(outcome)
    }

    /// Ends the hold without giving it back: another step has done so, or the store has it no more.
    pub(crate) fn forget(&mut self) {
        self.settled = true;
        self.facts.over.store(true, Ordering::Release);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.settled {
            self.facts.over.store(true, Ordering::Release);
            let until = self.facts.valid_until() + self.facts.terms.lease / 8;
            let (key, me) = (self.facts.key.clone(), self.facts.me.clone());
            self.store.agent().give_back(key, me, until, false);
        }
    }
}

/// The part of a lease that is sure: the server's clock may run a little faster than ours.
pub(crate) fn sure(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}
