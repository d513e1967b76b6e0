//! How a request gets its locks, or hears that it is known by its key.

use std::{sync::Arc, time::Duration};

use super::{LockGate, forget};
use crate::{
    error::Error,
    gate::{Begin, Begun, Remember, RunLimits, Slot, Trying, Verdict},
    lock::{
        answer::{Answer, Busy, NotAcquired},
        facts::LockFacts,
        guard::LockGuard,
        line::Lines,
        several::{LockSet, LocksRequest},
        ticket::{LockTicket, Ticket},
    },
    reply::Reply,
    store::{DirectRunCommand, JobId, Store},
};

/// Longest time that a request goes on without its client, where `max_hold` has no end.
const MAX_RUN: Duration = Duration::from_secs(24 * 60 * 60);

/// What a request is told that has its locks, and is not to run.
enum Instead {
    /// It is known by its key.
    Known,
    /// They were lost before it was written down that it runs, or there is no room for it to run.
    Busy(Busy),
    /// No more keys are kept of its owner.
    TooManyKeys(Duration),
}

impl<N: ?Sized> LockGate<N> {
    #[expect(clippy::indexing_slicing, reason = "a source reads at least one key")]
    pub(super) async fn take(&self, facts: &LockFacts) -> Result<Answer<LockSet>, NotAcquired> {
        let LockFacts { store, keys, mode, slot, .. } = facts;
        // Who can't be deferred waits as the lock says.
        let deferring = slot.as_ref().filter(|_| facts.fits_a_job());
        let waits = deferring.map(|slot| match slot.trying() {
            Trying::For(wait) => wait,
            Trying::Never | Trying::Background => Duration::ZERO,
        });
        let request = self.policy.request(store, &keys[0], *mode, waits);
        // A retry layer in between may come here again: the record is this request's own by then.
        let slot = slot.as_ref().filter(|slot| slot.record().is_some() && !slot.has_begun());
        if keys.len() > 1 {
            let several = LocksRequest::of(keys.clone(), request);
            let held = facts.held().cloned().unwrap_or_default();
            let set = Box::pin(several.within(&held)).await?;
            return Box::pin(self.begun(store, slot, set)).await;
        }
        let record = slot.and_then(Slot::record).map(|record| &record.name);
        // The future of a request has room for one call, which is all that most need: it is moved about.
        let answer = if request.is_one_call() {
            request.at_once(record).await?
        } else {
            Box::pin(request.ask(record.cloned())).await?
        };
        match answer {
            Answer::Granted(guard) if slot.is_some_and(Slot::remembers) => {
                Box::pin(self.begun(store, slot, LockSet::one(guard))).await
            }
            answer => Ok(answer.map(LockSet::one)),
        }
    }

    /// What was granted, if the request is to run. Else it is given back before the answer: whoever sees that may ask for
    /// one of them at once.
    async fn begun(
        &self,
        store: &Store,
        slot: Option<&Slot>,
        set: LockSet,
    ) -> Result<Answer<LockSet>, NotAcquired> {
        let Some(instead) = self.begin(store, slot, set.first()).await? else {
            return Ok(Answer::Granted(set));
        };
        set.release().await;
        Ok(match instead {
            Instead::Known => Answer::Known,
            Instead::Busy(busy) => Answer::Busy(busy),
            Instead::TooManyKeys(left) => Answer::TooManyKeys(left),
        })
    }

    /// Passes under locks that the request has already, unless it is known by its key: it may have been accepted when whoever
    /// lends them now did not have them.
    pub(super) async fn lend(&self, mut facts: LockFacts, lent: Ticket) -> Verdict<LockTicket> {
        forget(facts.slot.as_ref());
        if let Err(error) = self.replicate(&facts.store, &lent).await {
            return self.outage(facts, &error);
        }
        match self.is_known(&facts, &lent).await {
            Ok(Some(Instead::Known)) => return self.known(facts),
            Ok(Some(Instead::Busy(busy))) => return self.busy(facts, &busy, false),
            Ok(Some(Instead::TooManyKeys(left))) => {
                return Verdict::Answer(Reply::too_many_keys(left));
            }
            Ok(None) => {}
            // It has the lock, and what is to be admitted without one is so with it.
            Err(error) if !self.policy.outage.admits(&error) => {
                return self.outage(facts, &error);
            }
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    %error, "the key of a request was not looked up: store away"
                );
            }
        }
        let ticket = LockTicket::new(lent, facts.take_held());
        Verdict::Pass(ticket.of_slot(facts.slot))
    }

    /// Waits until as many replicas have the grants of these locks as this layer asks for.
    async fn replicate(&self, store: &Store, lent: &Ticket) -> Result<(), Error> {
        let wanted = self.policy.asking.replicas;
        if wanted == 0 {
            return Ok(());
        }
        if let Ticket::Lent { held, .. } | Ticket::Scoped { held, .. } | Ticket::Run(held, _) = lent
        {
            for held in held {
                held.replicate(store, wanted).await?;
            }
        }
        Ok(())
    }

    /// What a request under these locks is told instead of running, by its key.
    #[expect(clippy::indexing_slicing, reason = "a source reads at least one key")]
    async fn is_known(&self, facts: &LockFacts, lent: &Ticket) -> Result<Option<Instead>, Error> {
        let LockFacts { store, keys, mode, slot, .. } = facts;
        let slot = slot.as_ref().filter(|slot| !slot.has_begun());
        let Some((slot, record)) = slot.and_then(|slot| Some((slot, slot.record()?))) else {
            return Ok(None);
        };
        if facts.fits_a_job() {
            let request = self.policy.request(store, &keys[0], *mode, Some(Duration::ZERO));
            // The lock itself is not to be had, as whoever lends it has it. Or had it: then it is given back at once.
            let lines = store.extension::<Lines>();
            if matches!(request.once(&lines, Some(&record.name)).await?, Answer::Known) {
                return Ok(Some(Instead::Known));
            }
        }
        // What is lent by another service has no token here: that it ran is not remembered.
        let share = match lent {
            // The one beside whose lock the record is kept, and looked for.
            Ticket::Lent { shares, .. } | Ticket::Scoped { shares, .. } => {
                shares.iter().min_by(|one, other| LockSet::order(one.key(), other.key()))
            }
            _ => None,
        };
        self.begin(store, Some(slot), share).await
    }

    /// Accepted before: the outer layer answers with that job once it has read the body.
    pub(super) fn known(&self, facts: LockFacts) -> Verdict<LockTicket> {
        let busy = Busy { left: Duration::from_secs(1), line: 0, waited: None };
        self.busy(facts, &busy, true)
    }

    /// Under a lock that is held, begins what is remembered of the request; what it is told instead, if it is not to run.
    async fn begin(
        &self,
        store: &Store,
        slot: Option<&Slot>,
        guard: Option<&LockGuard>,
    ) -> Result<Option<Instead>, Error> {
        let Some((slot, guard)) = slot.zip(guard) else { return Ok(None) };
        let Some((call, limits)) = self.remembered(slot, guard) else { return Ok(None) };
        match Box::pin(Begun::begin(store, call, limits)).await? {
            Begin::Begun(begun) => {
                slot.begin(begun);
                Ok(None)
            }
            // Another request under the record, at the same time; or before it, where the locks were taken without a look.
            Begin::Taken => Ok(Some(Instead::Known)),
            Begin::TooManyKeys(left) => Ok(Some(Instead::TooManyKeys(left))),
            Begin::Lost | Begin::Full => {
                let left = Duration::from_secs(1);
                Ok(Some(Instead::Busy(Busy { left, line: 0, waited: None })))
            }
        }
    }

    /// The record of a request that runs at once and is remembered. It outlives the lock, and the process: a run that is
    /// not renewed within the lease has crashed.
    fn remembered(&self, slot: &Slot, guard: &LockGuard) -> Option<(DirectRunCommand, RunLimits)> {
        let record = slot.record().filter(|_| !slot.has_begun())?;
        let Remember { owner, life, again, runs, caps, .. } = record.remember.as_ref()?;
        let (terms, key, lease) = (&self.policy.asking.terms, guard.key(), guard.lease()?);
        let time = terms.max_hold.saturating_add(terms.lease).min(MAX_RUN);
        let call = DirectRunCommand {
            key: key.clone(),
            token: lease.token.clone(),
            mode: lease.terms.mode,
            record_name: Arc::clone(&record.name),
            id: JobId::new(key),
            owner: owner.clone(),
            retention: *life,
            lease: terms.lease,
            retry_after_crash: *again,
            limits: *caps,
            fingerprint: None,
        };
        Some((call, RunLimits { most: *runs, time }))
    }
}
