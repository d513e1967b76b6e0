//! `LockGate`: the lock around a request.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    ends::Ends,
    estimate::HoldTimes,
    guard::{HeldLock, LockGuard},
    policy::Policy,
    request::{Answer, Busy, NotAcquired},
};
use crate::{
    gate::{
        Asked, Gate, Head, KeySource, Outcome, Parked, Parting, Replay, Slot, UnderLock, Verdict,
        View, current_replay,
    },
    key::Key,
    outage::Outage,
    reply::{Reply, problem},
    store::Store,
};

/// The policy of a `LockLayer`: which requests take which lock, and what they are told when it is busy.
pub struct LockGate<N: ?Sized> {
    source: KeySource<N>,
    pub(super) policy: Arc<Policy>,
    pub(super) ends: Ends,
}

impl<N: ?Sized> LockGate<N> {
    /// A lock per key, tried once, on unsafe methods.
    #[must_use]
    pub fn new(source: KeySource<N>) -> Self {
        Self { source, policy: Arc::default(), ends: Ends::default() }
    }

    fn busy(&self, facts: LockFacts, busy: &Busy) -> Verdict<LockTicket> {
        let LockFacts { store, key, slot, replay, .. } = facts;
        tracing::debug!(
            node = %store.node(), lock = %key.hashed(), line = busy.line, "request refused: lock busy"
        );
        if let Some(replay) = replay {
            replay.met_a_busy_lock();
        }
        let wait = store.room::<HoldTimes>().retry_after(busy);
        let status = self.policy.busy_status.code();
        let mut reply =
            Reply::problem(status, problem::BUSY, "The resource is busy").retry_after(wait);
        if let Some(waited) = busy.waited {
            let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            reply = reply.member("waited_ms", waited);
        }
        if let Some(slot) = slot {
            slot.fill(Parked { store, key, status: reply.status });
        }
        Verdict::Busy(reply)
    }

    fn outage(&self, facts: LockFacts, error: &crate::Error) -> Verdict<LockTicket> {
        tracing::error!(
            node = %facts.store.node(), %error, policy = ?self.policy.outage, "no lock: store away"
        );
        match self.policy.outage {
            Outage::Refuse => {
                // As below in `enter`; and this may be the status of a busy answer too.
                if let Some(slot) = facts.slot {
                    slot.empty();
                }
                if let Some(replay) = facts.replay {
                    // A run that could not even start is not charged.
                    replay.met_a_busy_lock();
                }
                Verdict::Answer(Reply::store_away())
            }
            Outage::Admit => Verdict::Pass(LockTicket(Ticket::Lent(HeldLock::admitted(facts.key)))),
        }
    }
}

/// What a lock needs of a request.
#[derive(Debug)]
pub struct LockFacts {
    store: Store,
    key: Key,
    /// An outer layer would take the request over if the lock is busy: then don't wait.
    slot: Option<Slot>,
    replay: Option<Replay>,
    /// The lock is held for this request already.
    lent: Option<Ticket>,
}

/// The lock of a request that passed; dropping it gives the lock back.
#[derive(Debug)]
pub struct LockTicket(pub(super) Ticket);

#[derive(Debug)]
pub(super) enum Ticket {
    Own {
        guard: LockGuard,
        store: Store,
        since: Instant,
    },
    /// Somebody further out gives it back, or nobody has to.
    Lent(HeldLock),
    /// A worker gives it back, when it has seen the answer of this run.
    Run(HeldLock),
}

/// All locks of a request, outermost first: a nested layer with the same key must not wait for itself.
#[derive(Debug, Clone, Default)]
struct AllHeld(Vec<HeldLock>);

impl<N: ?Sized + 'static> Gate<N> for LockGate<N> {
    type Facts = LockFacts;
    type Ticket = LockTicket;
    type Parked = std::convert::Infallible;

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<LockFacts> {
        if !self.policy.is_about(view.method()) {
            return Asked::Skip;
        }
        let key = match self.source.read(view) {
            Ok(key) => self.policy.scope.as_deref().map_or(key.clone(), |scope| key.scope(scope)),
            Err(fault) => {
                return fault.answer("LockLayer").map_or(Asked::Skip, Asked::Answer);
            }
        };
        let Some(store) = self.policy.store.clone().or_else(|| view.store()) else {
            return Asked::Answer(crate::outage::no_store("LockLayer"));
        };
        let replay = current_replay(view);
        let held = view.get::<AllHeld>().unwrap_or_default();
        let lent = match replay.as_ref().and_then(|replay| replay.hold_of(&key)) {
            Some(facts) => Some(Ticket::Run(HeldLock::of(&facts))),
            None => held.0.into_iter().find(|held| *held.key() == key).map(Ticket::Lent),
        };
        // Taken out before it is filled: a request that holds the slot that holds it is never freed.
        let slot = view.take::<Slot>();
        Asked::Enter(LockFacts { store, key, slot, replay, lent })
    }

    async fn enter(&self, mut facts: LockFacts) -> Verdict<LockTicket> {
        if let Some(lent) = facts.lent.take() {
            return Verdict::Pass(LockTicket(lent));
        }
        let record = facts.slot.as_ref().and_then(Slot::record);
        let request = self.policy.request(&facts.store, &facts.key, facts.slot.is_some());
        match request.ask(record).await {
            Ok(Answer::Granted(guard)) => {
                // A retry layer in between may have come here before, to a busy lock: what runs now must
                // not be accepted too.
                if let Some(slot) = &facts.slot {
                    slot.empty();
                }
                let store = facts.store;
                let own = Ticket::Own { guard, store, since: Instant::now() };
                Verdict::Pass(LockTicket(own))
            }
            Ok(Answer::Busy(busy)) => self.busy(facts, &busy),
            // Accepted before: the outer layer answers with that job once it has read the body.
            Ok(Answer::Known) => {
                let busy = Busy { left: Duration::from_secs(1), line: 0, waited: None };
                self.busy(facts, &busy)
            }
            Err(NotAcquired::Busy(busy)) => self.busy(facts, &busy),
            Err(NotAcquired::Fault(error)) => self.outage(facts, &error),
        }
    }

    fn show<V: View<Native = N>>(&self, ticket: &LockTicket, view: &mut V) {
        let held = match &ticket.0 {
            Ticket::Own { guard, .. } => guard.held(),
            Ticket::Lent(held) | Ticket::Run(held) => held.clone(),
        };
        let mut all = view.take::<AllHeld>().unwrap_or_default();
        all.0.push(held.clone());
        view.put(all);
        view.put(held);
        view.put(UnderLock);
    }

    fn watch(&self, ticket: &LockTicket) -> impl Future<Output = ()> + Send + 'static {
        self.ends.watch(ticket)
    }

    async fn leave(
        &self,
        ticket: LockTicket,
        outcome: Outcome,
    ) -> Parting<LockTicket, Self::Parked> {
        self.ends.leave(ticket, outcome).await
    }

    async fn accept(&self, parked: Self::Parked, _: Head, _: Bytes) -> Option<Reply> {
        match parked {}
    }
}

impl<N: ?Sized> Clone for LockGate<N> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), policy: Arc::clone(&self.policy), ends: self.ends }
    }
}

impl<N: ?Sized> fmt::Debug for LockGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGate")
            .field("source", &self.source)
            .field("policy", &self.policy)
            .field("ends", &self.ends)
            .finish()
    }
}
