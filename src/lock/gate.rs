//! `LockGate`: the lock around a request.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    answer::{Answer, Busy, NotAcquired},
    ends::Ends,
    estimate::HoldTimes,
    guard::LockGuard,
    held::{HeldLock, HeldLocks},
    policy::Policy,
    several::{LockSet, LocksRequest},
    ticket::{LockTicket, Ticket},
};
use crate::{
    gate::{
        Asked, Begin, Begun, Gate, Head, KeyFault, KeySource, Outcome, Parked, Parting, Print,
        Replay, Scope, Slot, Trying, UnderLock, Verdict, View, current_replay, each_once,
    },
    key::Key,
    outage::LockOutage,
    reply::{Reply, problem},
    store::{Direct, JobId, Mode, Store},
};

/// Longest time for which the record of a request that runs keeps a retry off: a `max_hold` without end is
/// none for that.
const MAX_RUN: Duration = Duration::from_secs(24 * 60 * 60);

/// The policy of a `LockLayer`: which requests take which lock, and what they are told when it is busy.
pub struct LockGate<N: ?Sized> {
    pub(super) source: KeySource<N>,
    pub(super) policy: Arc<Policy>,
    pub(super) ends: Ends,
    /// Of all clones of this layer.
    times: Arc<HoldTimes>,
}

impl<N: ?Sized> LockGate<N> {
    /// A lock per key, tried once, on unsafe methods.
    ///
    /// # Panics
    ///
    /// If requests may have no key: see [`KeySource::never_absent`].
    #[must_use]
    pub fn new(source: KeySource<N>) -> Self {
        let (policy, ends, times) = (Arc::default(), Ends::default(), Arc::default());
        let source = source.never_absent();
        Self { source, policy, ends, times }
    }

    /// The locks of a request, in the names that this layer gives them.
    fn keys<V: View<Native = N>>(&self, view: &mut V) -> Result<Vec<Key>, KeyFault> {
        let mut keys = self.source.read_all(view)?;
        keys.iter_mut().for_each(|key| *key = self.policy.name(key));
        each_once(&mut keys);
        Ok(keys)
    }

    #[expect(clippy::indexing_slicing, reason = "a source reads at least one key")]
    async fn take(&self, facts: &LockFacts) -> Result<Answer<LockSet>, NotAcquired> {
        let LockFacts { store, keys, mode, slot, held, .. } = facts;
        let waits = slot.as_ref().map(|slot| match slot.trying() {
            Trying::For(wait) => wait,
            Trying::Never | Trying::Background => Duration::ZERO,
        });
        let request = self.policy.request(store, &keys[0], *mode, waits);
        if keys.len() > 1 {
            let several = LocksRequest::of(keys.clone(), request);
            return Box::pin(several.within(held)).await.map(Answer::Granted);
        }
        // A retry layer in between may come here again: the record is this request's own by then.
        let slot = slot.as_ref().filter(|slot| slot.record().is_some() && !slot.has_begun());
        let record = slot.and_then(Slot::record);
        let record = record.map(|record| Arc::clone(&record.name));
        // The future of a request has room for one call, which is all that most need: it is moved about.
        let answer = if request.is_one_call() {
            request.at_once(record).await?
        } else {
            Box::pin(request.ask(record)).await?
        };
        if let (Answer::Granted(guard), Some(slot)) = (&answer, slot)
            && let Some(call) = self.remembered(slot, guard)
        {
            match Box::pin(Begun::begin(store, call, self.policy.asking.terms.lease)).await? {
                Begin::Begun(begun) => slot.begin(begun),
                // Another request under the record, at the same time.
                Begin::Taken => return Ok(Answer::Known),
                Begin::Lost => {
                    let left = Duration::from_secs(1);
                    return Ok(Answer::Busy(Busy { left, line: 0, waited: None }));
                }
            }
        }
        Ok(answer.map(LockSet::one))
    }

    /// What is written down of a request that runs at once and is remembered. Until it has ended its record
    /// lives no longer than the lock may be held: if this process dies, a retry waits for that and no more.
    fn remembered(&self, slot: &Slot, guard: &LockGuard) -> Option<Direct> {
        let record = slot.record().filter(|_| !slot.has_begun())?;
        let owner = record.remember.as_ref()?.owner.clone();
        let (terms, key) = (&self.policy.asking.terms, guard.key());
        Some(Direct {
            key: key.clone(),
            me: guard.lease()?.me.clone(),
            record: Arc::clone(&record.name),
            id: JobId::new(key),
            owner,
            life: terms.max_hold.saturating_add(terms.lease).min(MAX_RUN),
            print: None,
        })
    }

    /// An outer layer takes it over untried.
    fn put_off(&self, facts: LockFacts) -> Verdict<LockTicket> {
        // Nothing is known of the lock; if nothing comes of the taking over, it may well be free.
        self.busy(facts, &Busy { left: Duration::from_secs(1), line: 0, waited: None }, false)
    }

    fn busy(&self, facts: LockFacts, busy: &Busy, known: bool) -> Verdict<LockTicket> {
        let LockFacts { store, mut keys, slot, replay, .. } = facts;
        // Deferred are requests of one lock alone; there is none without.
        let Some(key) = keys.pop() else { return Verdict::Answer(Reply::wiring_fault()) };
        tracing::debug!(
            node = %store.node(), lock = %key.hashed(), line = busy.line, "request refused: lock busy"
        );
        let status = self.policy.busy_status.code();
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
        if let Some(slot) = &slot {
            let usual = self.times.usual();
            slot.fill(Parked { store, key, status: reply.status, usual, known });
        }
        Verdict::Busy(reply, slot)
    }

    fn outage(&self, facts: LockFacts, error: &crate::Error) -> Verdict<LockTicket> {
        tracing::error!(
            node = %facts.store.node(), %error, policy = ?self.policy.outage, "no lock: store away"
        );
        match self.policy.outage {
            LockOutage::Refuse => {
                // Not kept for an outer layer, though this may be the status of a busy answer too.
                let away = Reply::store_away();
                if let Some(replay) = facts.replay {
                    // A run that could not even start is not charged.
                    replay.met_a_busy_lock(away.status);
                }
                Verdict::Answer(away)
            }
            LockOutage::Admit => {
                let held = facts.keys.into_iter().map(HeldLock::admitted).collect();
                let admitted = Ticket::Lent { held, shares: Vec::new() };
                Verdict::Pass(LockTicket::new(admitted, facts.held))
            }
        }
    }
}

/// What a lock needs of a request.
#[derive(Debug)]
pub struct LockFacts {
    store: Store,
    /// One at least, each once.
    keys: Vec<Key>,
    mode: Mode,
    /// An outer layer would take the request over, and says how long to wait before.
    slot: Option<Slot>,
    replay: Option<Replay>,
    /// What the request has already.
    held: HeldLocks,
    /// It has all of these already.
    lent: Option<Ticket>,
}

impl<N: ?Sized + 'static> Gate<N> for LockGate<N> {
    type Facts = LockFacts;
    type Ticket = LockTicket;
    type Quick = Infallible;
    type Parked = Infallible;

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<LockFacts, Infallible> {
        self.policy.clean(view);
        let Some(mode) = self.policy.mode(view.method()) else {
            return Asked::Skip;
        };
        let keys = match self.keys(view) {
            Ok(keys) => keys,
            Err(fault) => {
                return fault.answer("LockLayer").map_or(Asked::Skip, Asked::Answer);
            }
        };
        let Some(store) = self.policy.store.clone().or_else(|| view.store()) else {
            return Asked::Answer(crate::outage::no_store("LockLayer"));
        };
        // Taken out before it is filled: a request that holds the slot that holds it is never freed.
        let mut slot = Slot::arrive(view);
        // Whoever made a slot has seen that it is none.
        let replay = if slot.is_some() { None } else { current_replay(view) };
        let run = replay.as_ref().map_or(Ok(None), |replay| replay.hold_among(&store, &keys));
        let Ok(run) = run else { return Asked::Answer(given_up()) };
        let run = run.map(|facts| HeldLock::of_run(&store, facts));
        // A middleware may have rebuilt the request, or sent it to another task: one of the two is left. Or
        // it has a lock of its own, and has scoped what is further in: that is in the task alone.
        let mut held = view.get::<HeldLocks>().unwrap_or_default();
        held = held.and(HeldLocks::current().iter().cloned());
        held = held.and(self.policy.trusted(view, &store));
        let lent = Ticket::of_what_is_held(&store, &keys, mode, &held, run.as_ref());
        let Ok(lent) = lent else { return Asked::Answer(would_deadlock()) };
        if lent.is_none() {
            held = held.and(run);
        }
        // A job runs under one lock that it has alone, so what asks for anything else is not deferred.
        if let Some(found) = &slot {
            let fits = keys.len() == 1 && mode == Mode::Exclusive;
            match found.trying() {
                Trying::For(_) => {}
                Trying::Background if !fits => return Asked::Answer(cannot_be_put_off()),
                // Tells its layer that somebody has read the slot.
                Trying::Never | Trying::Background => found.note_seen(),
            }
            slot = slot.filter(|_| fits);
        }
        Asked::Enter(LockFacts { store, keys, mode, slot, replay, held, lent })
    }

    async fn enter(&self, mut facts: LockFacts) -> Verdict<LockTicket> {
        if let Some(replay) = &facts.replay {
            replay.asks_a_lock();
        }
        let tries = |slot: &Slot| matches!(slot.trying(), Trying::For(_));
        if !facts.slot.as_ref().is_none_or(tries) {
            return self.put_off(facts);
        }
        if let Some(lent) = facts.lent.take() {
            forget(facts.slot.as_ref());
            return Verdict::Pass(LockTicket::new(lent, facts.held));
        }
        let taken = self.take(&facts).await;
        forget(facts.slot.as_ref());
        match taken {
            Ok(Answer::Granted(guard)) => {
                let times = Arc::clone(&self.times);
                let own = Ticket::Own { guard, times, since: Instant::now() };
                Verdict::Pass(LockTicket::new(own, facts.held).of_slot(facts.slot))
            }
            Ok(Answer::Busy(busy)) | Err(NotAcquired::Busy(busy)) => self.busy(facts, &busy, false),
            // Accepted before: the outer layer answers with that job once it has read the body.
            Ok(Answer::Known) => {
                let busy = Busy { left: Duration::from_secs(1), line: 0, waited: None };
                self.busy(facts, &busy, true)
            }
            Err(NotAcquired::WouldDeadlock) => Verdict::Answer(would_deadlock()),
            Err(NotAcquired::Fault(error)) => self.outage(facts, &error),
        }
    }

    fn show<V: View<Native = N>>(&self, ticket: &LockTicket, view: &mut V) {
        let held = ticket.held();
        if let Some(first) = held.iter().next() {
            view.put(first.clone());
        }
        self.policy.tell_fences(&held, view);
        view.put(ticket.1.clone());
        UnderLock::note(view);
    }

    fn ticket(&self, quick: Infallible) -> LockTicket {
        match quick {}
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

    fn reads_along(
        &self,
        ticket: &LockTicket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<Print> {
        ticket.2.as_ref()?.print(head)
    }

    async fn leave(
        &self,
        ticket: LockTicket,
        outcome: Outcome,
    ) -> Parting<LockTicket, Self::Parked> {
        self.ends.leave(ticket, outcome).await
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
    }
}

/// Nobody reads it: the worker has gone on without this run.
fn given_up() -> Reply {
    tracing::debug!(
        "a run was stopped before its handler: its worker has given it up, or has lost its lock"
    );
    Reply::store_away()
}

fn cannot_be_put_off() -> Reply {
    tracing::error!(
        layer = "LockLayer",
        "request refused: the DeferLayer further out is set to `defer_always`, and this lock is shared, a \
         permit or several keys, under which nothing is deferred"
    );
    Reply::wiring_fault()
}

fn would_deadlock() -> Reply {
    tracing::error!(
        layer = "LockLayer",
        "request refused: a layer further out has this lock shared or by a permit, and this one asks for \
         it in another way, so the request would wait for itself; let the outer layer take it alone"
    );
    Reply::wiring_fault()
}

impl<N: ?Sized> Clone for LockGate<N> {
    fn clone(&self) -> Self {
        let (policy, times) = (Arc::clone(&self.policy), Arc::clone(&self.times));
        Self { source: self.source.clone(), policy, ends: self.ends, times }
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
