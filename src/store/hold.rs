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
    agent::GiveBack,
    backend::{GaveBack, JobId, Mode, Token},
};
use crate::{error::Error, key::Key};

/// How a lease is kept alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// False: the lease ends at its end, whoever holds it.
    pub(crate) renew: bool,
    /// Renewal stops after this; bounds a holder that lives and never ends.
    pub(crate) max_hold: Duration,
    /// The job whose own lease is renewed in the same step.
    pub(crate) job: Option<JobId>,
    pub(crate) mode: Mode,
}

impl Terms {
    /// The lease to ask for: no longer than it may be held.
    pub(crate) fn for_the_first_time(&self) -> Duration {
        self.lease.min(self.max_hold)
    }
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
    /// When the hold is over, renewed or not.
    pub(super) end: Instant,
    valid_until: Mutex<Instant>,
    lost: watch::Sender<Option<Loss>>,
    over: AtomicBool,
    /// What it has is its last lease: renewed no more.
    pub(super) last: AtomicBool,
    /// A renewal is under way.
    pub(super) renewing: AtomicBool,
    /// Where the agent has it in its rounds.
    pub(super) round: Mutex<Option<(Instant, usize)>>,
}

impl Facts {
    pub(crate) fn valid_until(&self) -> Instant {
        *self.valid_until.lock()
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        // Not only when the agent says so: its runtime may stand still.
        if Instant::now() >= self.valid_until() + BEHIND {
            self.lose(Loss::Lapsed);
        }
        *self.lost.borrow()
    }

    /// Resolves when the hold is lost; never if it is given back first.
    pub(crate) async fn lost(&self) -> Loss {
        let mut lost = self.lost.subscribe();
        loop {
            if let Some(loss) = self.loss() {
                return loss;
            }
            let until = self.valid_until();
            if self.is_over() {
                // Given back: there is nothing left to lose.
                return std::future::pending().await;
            }
            tokio::select! {
                _ = lost.changed() => {}
                () = tokio::time::sleep_until(until + BEHIND) => {}
            }
        }
    }

    /// True once it was given back or lost: nobody renews it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// A renewal that was sent at this time, for this lease, has gone well.
    pub(super) fn extended(&self, sent: Instant, lease: Duration) {
        *self.valid_until.lock() = sent + sure(lease);
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
        f.debug_struct("Hold").field("key", key).field("fence", fence).finish_non_exhaustive()
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
    pub(super) fn new(
        store: &Store,
        key: &Key,
        me: &Token,
        fence: u64,
        valid_until: Instant,
        terms: Terms,
    ) -> Self {
        let since = Instant::now();
        let facts = Arc::new(Facts {
            key: key.clone(),
            me: me.clone(),
            fence,
            since,
            end: since + terms.max_hold,
            valid_until: Mutex::new(valid_until.min(since + sure(terms.lease))),
            lost: watch::Sender::new(None),
            over: AtomicBool::new(false),
            last: AtomicBool::new(!terms.renew || terms.max_hold <= terms.lease),
            renewing: AtomicBool::new(false),
            round: Mutex::new(None),
            terms,
        });
        store.agent().watch_over(&facts);
        tracing::debug!(node = %store.node(), lock = %key.hashed(), fence, "lock granted");
        Self { store: store.clone(), facts, settled: false }
    }

    /// The same hold, for somebody who asked for other terms.
    pub(crate) fn on_terms(mut self, terms: Terms) -> Self {
        if self.facts.terms == terms {
            return self;
        }
        let Facts { key, me, fence, .. } = &*self.facts;
        let valid_until = self.facts.valid_until();
        let next = Self::new(&self.store, key, me, *fence, valid_until, terms);
        self.forget();
        next
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
        // Before the call: a renewal that it overtakes would be told "not yours", and that is no loss.
        self.end();
        let outcome = self.store.backend().release(key, me, self.facts.terms.mode).await?;
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
        self.end();
    }

    /// Nobody renews it any more.
    fn end(&self) {
        self.facts.over.store(true, Ordering::Release);
        self.store.agent().look_away(&self.facts);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.settled {
            self.end();
            let facts = &self.facts;
            self.store.agent().give_back(GiveBack {
                key: facts.key.clone(),
                me: facts.me.clone(),
                mode: facts.terms.mode,
                job: None,
                until: facts.valid_until() + facts.terms.lease / 8,
                doubtful: false,
            });
        }
    }
}

/// How much later than the agent a hold notices its own end: the agent knows the reason.
const BEHIND: Duration = Duration::from_millis(5);

/// The part of a lease that is sure: the server's clock may run a little faster than ours.
pub(crate) fn sure(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}
