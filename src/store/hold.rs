//! A hold: the turn of one guard on a lease, and what gives the lease back.
//!
//! A [`Hold`] is given back when it is dropped. Dropping never waits, needs no runtime and can't fail:
//! it puts one message into the agent's mailbox.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    Store,
    agent::{GiveBack, Told, Undo},
    attempt::Attempt,
    backend::{Acquire, Acquired, GaveBack, JobId, Mode},
    facts::Facts,
    lease::{Lease, LossWatcher, Terms, to_be_sure_of},
};
use crate::error::Error;

/// The turn on a lease that is held, and given back when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    store: Store,
    facts: Arc<Facts>,
    /// Nothing is left to give back.
    settled: bool,
}

impl Hold {
    pub(super) fn new(store: &Store, lease: Arc<Lease>, fence: u64) -> Self {
        let facts = Facts::new(lease, fence);
        facts.lease.begin(&facts);
        store.agent().watch_over(&facts.lease);
        let lock = facts.key().hashed();
        tracing::debug!(node = %store.node(), %lock, fence, "lock granted");
        Self { store: store.clone(), facts, settled: false }
    }

    /// The lease passes on to the next turn, with the next fence; `Err` if it was lost or given back, or has come to its end.
    pub(crate) fn hand_on(mut self, fence: u64) -> Result<Self, Self> {
        let next = Facts::new(Arc::clone(&self.facts.lease), fence);
        if !self.facts.lease.begin_next(&next) {
            return Err(self);
        }
        self.settled = true;
        // After the next turn has begun: a loss in between is told to that one.
        self.facts.close();
        if self.facts.fetch() {
            // Nobody came for the turn before, so the lease was not renewed.
            self.store.agent().watch_over(&next.lease);
        }
        Ok(Self { store: self.store.clone(), facts: next, settled: false })
    }

    /// Whoever has waited for it has it, from now on it is renewed; false if it has ended meanwhile.
    pub(crate) fn fetch(&self) -> bool {
        if self.facts.fetch() {
            self.store.agent().watch_over(&self.facts.lease);
            return self.facts.loss().is_none();
        }
        self.facts.told_loss().is_none()
    }

    /// The turn ends then, and not later because it was begun anew.
    fn end_at(&mut self, end: Instant) {
        let lease = Arc::clone(&self.facts.lease);
        let facts = Facts::until(Arc::clone(&lease), self.facts.fence, end);
        // If it is lost already, whoever has it is told by the old facts.
        if lease.begin(&facts) {
            self.facts = facts;
        }
    }

    pub(crate) fn facts(&self) -> &Arc<Facts> {
        &self.facts
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.facts.lease
    }

    /// Tells this one too if the lease is lost.
    pub(crate) fn watched_by(&self, watcher: std::sync::Weak<dyn LossWatcher>) {
        self.lease().watched_by(watcher);
    }

    /// Gives it back now and says how that went.
    ///
    /// If this future is dropped, the agent gives it back. A lost hold is given back all the same: the
    /// store decides whether there is something to give.
    pub(crate) async fn release(mut self) -> Result<GaveBack, Error> {
        let lease = Arc::clone(self.lease());
        let (key, me, mode) = (lease.key.clone(), lease.me.clone(), lease.terms.mode);
        // Before the call: a renewal that it overtakes would be told "not yours", and that is no loss.
        self.end();
        let outcome = self.store.backend().release(key, me, mode).await?;
        self.given_back(outcome);
        Ok(outcome)
    }

    /// Makes the lease last for so long from now; false if it is lost.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let lease = lease.min(self.facts.end.saturating_duration_since(Instant::now()));
        self.store.agent().extend(self.lease(), lease).await
    }

    /// The same hold, shared; `None` if it was lost. If this future is dropped, it is given back.
    pub(crate) async fn downgrade(mut self) -> Result<Option<Self>, Error> {
        let lease = Arc::clone(self.lease());
        // Loss is terminal, whatever the store has still.
        let lost = self.facts.loss().is_some();
        if !self.end() || lost {
            return Ok(None);
        }
        // Either may be in the store until there is an answer: both have their undo.
        let terms = Terms { mode: Mode::Shared, ..lease.terms.clone() };
        let mut attempt = Attempt::of(&self.store, &lease, Mode::Shared);
        let now = Instant::now();
        let left = |end: Instant| end.saturating_duration_since(now);
        // It is the same turn: what ends it stays. A fixed lease gets no longer by it.
        let more = if terms.renew { terms.lease } else { Duration::ZERO };
        let time = more.min(left(self.facts.end)).max(to_be_sure_of(left(lease.valid_until())));
        let backend = self.store.backend();
        let call = || backend.downgrade(lease.key.clone(), lease.me.clone(), time);
        let stands = attempt.send(time, call).await?;
        self.forget();
        if stands {
            // What it was extended to, too.
            let mut hold = attempt.held(self.facts.fence, terms, attempt.sure_until())?;
            hold.end_at(self.facts.end);
            Ok(Some(hold))
        } else {
            attempt.refused();
            self.facts.had_been_lost();
            Ok(None)
        }
    }

    /// Gives it back, and asks for the next of this process, in one call.
    pub(crate) async fn pass(mut self, next: Acquire) -> Result<(GaveBack, Acquired), Error> {
        let lease = Arc::clone(self.lease());
        self.end();
        let call = self.store.backend().pass(lease.me.clone(), lease.terms.mode, next);
        let (outcome, answer) = call.await?;
        self.given_back(outcome);
        Ok((outcome, answer))
    }

    /// The run of this job, which had it, was settled. A copy of its claim is refused as long as the job has had no other run,
    /// and was not put back; after that nobody knows the token any more, and it would begin a run that nobody executes.
    pub(crate) fn run_settled(&mut self, job: JobId) {
        self.forget();
        self.looks_for_strays(Undo::Unclaim(Some(job)));
    }

    fn looks_for_strays(&self, undo: Undo) {
        if let Some(until) = self.lease().strays.as_ref().map(|strays| strays.until) {
            let now = Instant::now();
            if until > now {
                self.undo(undo, 0, now, None);
            }
        }
    }

    /// Only now: until here `Drop` had to see to it.
    fn given_back(&mut self, outcome: GaveBack) {
        self.forget();
        self.looks_for_strays(Undo::Release);
        tracing::debug!(
            node = %self.store.node(), lock = %self.facts.key().hashed(), ?outcome,
            held_ms = self.facts.since.elapsed().as_millis(), "lock released"
        );
    }

    /// Ends the hold without giving it back: another step has done so, or the store has it no more.
    pub(crate) fn forget(&mut self) {
        self.settled = true;
        self.end();
    }

    /// Nobody renews it any more. False if it had ended before.
    fn end(&self) -> bool {
        self.facts.close();
        let ends = self.facts.lease.close();
        self.store.agent().look_away(&self.facts.lease);
        ends
    }
}

impl Hold {
    /// As dropping it, and somebody is told what the first call came to. Nothing is told where there is no
    /// runtime that would send it.
    pub(crate) fn send_release(mut self) -> oneshot::Receiver<Result<GaveBack, Error>> {
        let (tell, told) = oneshot::channel();
        self.give_back(Some(tell));
        told
    }

    fn give_back(&mut self, tell: Option<Told>) {
        if !std::mem::replace(&mut self.settled, true) {
            self.end();
            let lease = self.lease();
            self.undo(Undo::Release, 1, lease.valid_until() + lease.terms.lease / 8, tell);
        }
    }

    /// Of what it has in the store, if it has it still, and of what may come behind that.
    fn undo(&self, undo: Undo, has: u32, until: Instant, tell: Option<Told>) {
        let lease = self.lease();
        // A copy of a claim is no acquisition: while its job has this run it is the same claim, and refused after that.
        let strays = lease.strays.as_deref();
        let strays = strays.filter(|_| lease.terms.job.is_none() || !matches!(undo, Undo::Release));
        let number = strays.map_or(0, |strays| strays.number);
        self.store.agent().give_back(GiveBack {
            key: lease.key.clone(),
            me: lease.me.clone(),
            // They ask in the mode that it had before it was downgraded, whose release finds either.
            mode: strays.map_or(lease.terms.mode, |strays| strays.mode),
            undo,
            until: strays.map_or(until, |strays| strays.until.max(until)),
            finds: number + has,
            doubtful: number > 0,
            silences: None,
            is_known: has > 0,
            tell,
        });
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.settled && self.facts.lapses() {
            self.forget();
        }
        self.give_back(None);
    }
}
