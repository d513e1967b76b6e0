//! `LockGate`: the lock around a request.

mod taking;

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    answer::{Answer, Busy, NotAcquired},
    ends::Ends,
    estimate::HoldTimes,
    facts::{LockFacts, Undecided},
    held::HeldLocks,
    policy::Policy,
    several::LockSet,
    ticket::{LockTicket, Ticket, Unlocked},
};
use crate::{
    gate::{
        Asked, Gate, GateId, Head, KeySource, Outcome, Parked, Parting, Print, RememberedRun,
        Scope, Slot, Trying, UnderLock, Verdict, View,
    },
    reply::{Reply, problem},
};

/// The policy of a `LockLayer`: which requests take which lock, and what they are told when it is busy.
pub struct LockGate<N: ?Sized> {
    pub(super) source: KeySource<N>,
    pub(super) policy: Arc<Policy>,
    pub(super) ends: Ends,
    /// Of all clones of this layer.
    times: Arc<HoldTimes>,
    /// As well: a request has passed that no route was seen of, and was served.
    unlocked: Arc<AtomicBool>,
}

impl<N: ?Sized> LockGate<N> {
    /// A lock per key, tried once, on unsafe methods.
    ///
    /// # Panics
    ///
    /// If requests may have no key: see [`KeySource::never_absent`].
    #[must_use]
    pub fn new(source: KeySource<N>) -> Self {
        let (policy, ends) = (Arc::default(), Ends::default());
        let (times, unlocked) = (Arc::default(), Arc::default());
        let source = source.never_absent();
        Self { source, policy, ends, times, unlocked }
    }

    fn id(&self) -> GateId {
        GateId::of(&self.times)
    }

    /// Notes a refusal for the remembered run that the request belongs to.
    fn note_refused(&self, facts: &LockFacts, status: u16) {
        if let Some(run) = facts.run() {
            run.note_refused(self.id(), status);
        }
    }

    /// An outer layer takes it over untried.
    fn put_off(&self, facts: LockFacts) -> Verdict<LockTicket> {
        // Nothing is known of the lock; if nothing comes of the taking over, it may well be free.
        self.busy(facts, &Busy { left: Duration::from_secs(1), line: 0, waited: None }, false)
    }

    fn busy(&self, facts: LockFacts, busy: &Busy, known: bool) -> Verdict<LockTicket> {
        let status = self.policy.busy_status.code();
        self.note_refused(&facts, status);
        let replay = facts.replay().cloned();
        let unfit = !facts.fits_a_job();
        let LockFacts { store, keys, slot, .. } = facts;
        // Of several the one that the record is kept beside; there is none without.
        let first = keys.into_iter().min_by(LockSet::order);
        let Some(key) = first else { return Verdict::Answer(Reply::wiring_fault()) };
        tracing::debug!(
            node = %store.node(), lock = %key.hashed(), line = busy.line, "request refused: lock busy"
        );
        if let Some(replay) = replay {
            replay.met_a_busy_lock(status);
        }
        let wait = self.times.retry_after(busy);
        let mut reply =
            Reply::problem(status, problem::BUSY, "The resource is busy").retry_after(wait);
        if let Some(waited) = busy.waited {
            let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            reply = reply.member("waited_ms", waited);
        }
        // Deferred are requests of one lock alone.
        let slot = slot.filter(|_| known || !unfit);
        // What says that it runs and is not believed is busy, and no more.
        let slot = slot.filter(|slot| {
            if slot.is_said_to_run() {
                crate::throttle::throttled!(
                    warn,
                    layer = "LockLayer",
                    "a request that says it is a run is not deferred, and not believed: if it is one, trust its \
                     worker's secret here"
                );
            }
            !slot.is_said_to_run()
        });
        if let Some(slot) = &slot {
            let usual = self.times.usual();
            slot.fill(Parked { store, key, status: reply.status, usual, known, unfit });
        }
        Verdict::Busy(reply, slot)
    }

    fn outage(&self, mut facts: LockFacts, error: &crate::Error) -> Verdict<LockTicket> {
        crate::throttle::throttled!(
            error,
            node = %facts.store.node(), %error, policy = ?self.policy.outage, "no lock: store away"
        );
        if self.policy.outage.admits(error) {
            let outer = facts.take_held();
            let admitted = Ticket::admitted(&facts.store, facts.keys, facts.mode, &outer);
            return Verdict::Pass(LockTicket::new(admitted, outer));
        }
        // Not kept for an outer layer, though this may be the status of a busy answer too.
        let away = Reply::store_away();
        self.note_refused(&facts, away.status);
        if let Some(replay) = facts.replay() {
            // A run that could not even start is not charged.
            replay.met_a_busy_lock(away.status);
        }
        Verdict::Answer(away)
    }
}

impl<N: ?Sized + 'static> Gate<N> for LockGate<N> {
    type Facts = LockFacts;
    type Ticket = LockTicket;
    type Quick = Unlocked;
    type Parked = Infallible;

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<LockFacts, Unlocked> {
        self.read(view)
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice, and that of a request must stay below 1 KiB"
    )]
    fn enter(&self, mut facts: LockFacts) -> impl Future<Output = Verdict<LockTicket>> + Send {
        async move {
            if let Some(replay) = facts.replay() {
                replay.asks_a_lock();
            }
            if facts.is_undecided() {
                match Box::pin(facts.decide()).await {
                    Ok(()) => {}
                    Err(Undecided::Answer(reply)) => return Verdict::Answer(reply),
                    Err(Undecided::Fault(error)) => return self.outage(facts, &error),
                }
            }
            let tries = |slot: &Slot| matches!(slot.trying(), Trying::For(_));
            if facts.fits_a_job() && !facts.slot.as_ref().is_none_or(tries) {
                return self.put_off(facts);
            }
            if let Some(lent) = facts.lent() {
                return Box::pin(self.lend(facts, lent)).await;
            }
            let taken = self.take(&facts).await;
            forget(facts.slot.as_ref());
            match taken {
                Ok(Answer::Granted(guard)) => {
                    let times = Arc::clone(&self.times);
                    let own = Ticket::Own { guard, times, since: Instant::now() };
                    Verdict::Pass(LockTicket::new(own, facts.take_held()).of_slot(facts.slot))
                }
                Ok(Answer::Busy(busy)) | Err(NotAcquired::Busy(busy)) => {
                    self.busy(facts, &busy, false)
                }
                Ok(Answer::Known) => self.known(facts),
                Ok(Answer::TooManyKeys(left)) => {
                    let reply = Reply::too_many_keys(left);
                    self.note_refused(&facts, reply.status);
                    Verdict::Answer(reply)
                }
                Err(NotAcquired::WouldDeadlock) => Verdict::Answer(would_deadlock()),
                Err(NotAcquired::Fault(error)) => self.outage(facts, &error),
            }
        }
    }

    fn show<V: View<Native = N>>(&self, ticket: &LockTicket, view: &mut V) {
        let held = ticket.held();
        if let Some(first) = held.iter().next() {
            view.put(first.clone());
        }
        self.policy.tell_fences(&held, view);
        view.put(ticket.1.clone());
        if let Some(run) = RememberedRun::of(view) {
            run.note_passed(self.id());
        }
        if let Some(slot) = &ticket.2 {
            slot.start();
            if let Some(run) = slot.run() {
                run.put(view, self.id());
            }
        }
        UnderLock::note(view);
    }

    fn ticket(&self, _: Unlocked) -> LockTicket {
        LockTicket::new(Ticket::Unmatched(Arc::clone(&self.unlocked)), HeldLocks::default())
    }

    fn within(&self, ticket: &LockTicket) -> Scope {
        ticket.1.scope()
    }

    fn watch(&self, ticket: &LockTicket) -> impl Future<Output = ()> + Send + 'static {
        self.ends.watch(ticket)
    }

    fn body_deadline(&self, ticket: &LockTicket) -> Option<Duration> {
        self.ends.body_deadline(ticket)
    }

    fn hear(&self, ticket: &mut LockTicket, fields: impl FnOnce() -> Vec<(String, Vec<u8>)>) {
        self.ends.hear(ticket, fields);
    }

    fn reads_along(
        &self,
        ticket: &LockTicket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<Print> {
        ticket.2.as_ref()?.print(head)
    }

    fn leave(
        &self,
        ticket: LockTicket,
        outcome: Outcome,
    ) -> impl Future<Output = Parting<LockTicket, Self::Parked>> + Send {
        let slot = ticket.2.clone();
        self.ends.leave(ticket, outcome).inspect(move |parting| {
            // Else it is unknown how far the handler came.
            let stands = outcome != Outcome::Stopped && !matches!(parting, Parting::Replace(_));
            if let Some(slot) = slot.filter(|_| stands || outcome == Outcome::TooSlow) {
                slot.note_answered();
            }
        })
    }

    async fn accept(&self, parked: Self::Parked, _: Head, _: Option<Bytes>) -> Option<Reply> {
        match parked {}
    }
}

/// A retry layer in between may have come here before, to a busy lock: what runs now, under whatever lock or
/// because the store is away, must not be accepted too.
fn forget(slot: Option<&Slot>) {
    if let Some(slot) = slot {
        slot.empty();
        slot.note_unanswered();
    }
}

pub(super) fn would_deadlock() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "LockLayer",
        "request refused: a layer further out has this lock shared or by a permit, and this one asks for \
         it alone, in another way or by fewer permits, so the request would wait for itself; let the outer \
         layer take it as this one does, or alone"
    );
    Reply::wiring_fault()
}

impl<N: ?Sized> Clone for LockGate<N> {
    fn clone(&self) -> Self {
        let (policy, times) = (Arc::clone(&self.policy), Arc::clone(&self.times));
        let (source, unlocked) = (self.source.clone(), Arc::clone(&self.unlocked));
        Self { source, policy, ends: self.ends, times, unlocked }
    }
}

impl<N: ?Sized> fmt::Debug for LockGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGate")
            .field("source", &self.source)
            .field("policy", &self.policy)
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}
