//! The rounds: which hold is to be looked at when, to be renewed or to end.
//!
//! A hold is renewed at a third of its lease, in batches. A renewal that fails is tried again until the
//! lease is no longer sure; then the hold is lost. "Not yours" loses it at once. A hold that is over
//! leaves the rounds, so they are as long as the number of holds.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    backend::{Backend, Renewal},
    facts::Loss,
    lease::{Lease, to_be_sure_of},
};
use crate::error::{Error, ErrorKind};

/// Leases renewed in one call: bounded as `renew.lua` is.
const BATCH: usize = 100;

/// Looks that are due within this of each other go together.
const SLACK: Duration = Duration::from_millis(20);

/// Renewals are brought forward to the beginning of their part of a lease, one in so many: leases that
/// were granted at different times are renewed together, in a tenth of a third.
const PARTS: u32 = 30;

pub(super) struct Rounds {
    backend: Arc<dyn Backend>,
    looks: Mutex<Looks>,
    numbers: AtomicUsize,
    sooner: Notify,
    /// What is held may be gone.
    doubted: AtomicBool,
    since: Instant,
}

#[derive(Default)]
struct Looks {
    /// The number only makes the times distinct.
    at: BTreeMap<(Instant, usize), Weak<Lease>>,
    /// Until when the agent sleeps: it need not be woken for what is later. (What it sleeps for may be
    /// gone: a lock that is given back at once costs it no waking, and this one in vain.)
    asleep_until: Option<Instant>,
}

impl Rounds {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            looks: Mutex::default(),
            numbers: AtomicUsize::new(0),
            sooner: Notify::new(),
            doubted: AtomicBool::new(false),
            since: Instant::now(),
        }
    }

    /// A new hold.
    pub(super) fn begin(&self, hold: &Arc<Lease>) {
        let (now, until) = (Instant::now(), hold.valid_until());
        // Of what it has, not of what it wants: a waiter may have been handed a shorter lease.
        let third = now + until.saturating_duration_since(now) / 3;
        let at = if hold.last.load(Ordering::Acquire) { until } else { self.part(third, hold) };
        self.schedule(at, hold);
    }

    /// The beginning of the part of a lease in which this moment lies.
    fn part(&self, at: Instant, hold: &Lease) -> Instant {
        let part = (hold.terms.lease / PARTS).max(Duration::from_millis(1));
        let into = at.saturating_duration_since(self.since).as_nanos() % part.as_nanos();
        at - Duration::from_nanos(u64::try_from(into).unwrap_or(0))
    }

    /// A hold that is over.
    pub(super) fn forget(&self, hold: &Lease) {
        if let Some(look) = hold.round.lock().take() {
            self.looks.lock().at.remove(&look);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.looks.lock().at.len()
    }

    /// Until when the agent may sleep.
    pub(super) fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut looks = self.looks.lock();
        let first = looks.at.first_key_value().map(|((at, _), _)| *at);
        // What it was to wake for may be gone. It sleeps on as if it were there: else every lock that is given
        // back at once would wake it, and another thread with it.
        let planned = looks.asleep_until.filter(|until| *until > now);
        let doubted = self.doubted.load(Ordering::Acquire).then_some(now);
        let next = first.into_iter().chain(planned).chain(doubted).min();
        looks.asleep_until = next;
        next
    }

    /// Resolves when `next` has become sooner.
    pub(super) async fn sooner(&self) {
        self.sooner.notified().await;
    }

    /// Renews what can be renewed or is doubted, and loses what is at its end.
    pub(super) fn look(self: &Arc<Self>) {
        let now = Instant::now();
        let mut to_renew = self.doubtful();
        for hold in self.due() {
            let until = hold.valid_until();
            let past_end = hold.last.load(Ordering::Acquire) || now >= hold.end();
            let left = !past_end && hold.skip_renewal();
            if !past_end && !left && !hold.renewing.swap(true, Ordering::AcqRel) {
                // Should its renewal hang, the hold still ends in time.
                self.schedule(until, &hold);
                to_renew.push(hold);
            } else if until > now + SLACK {
                self.schedule(until, &hold);
                // Who has come for it meanwhile may have had it scheduled before that.
                if left && !hold.skip_renewal() {
                    self.begin(&hold);
                }
            } else {
                hold.lose(if past_end { Loss::TooLong } else { Loss::Lapsed });
            }
        }
        for batch in self.batches(to_renew) {
            tokio::spawn(UnderWay::of(self, batch).renew());
        }
    }

    async fn renew(&self, holds: &[Arc<Lease>]) {
        let now = Instant::now();
        let left = |end: Instant| end.saturating_duration_since(now);
        // Near its end a hold gets what is left, so that the store ends it when the holder is told. One
        // that is renewed no more is only looked at. Never less than it is sure of: if the answer were
        // lost, the store would end what the holder believes in.
        let lease = |hold: &Arc<Lease>| {
            let last = hold.last.load(Ordering::Acquire);
            let wanted = if last { Duration::ZERO } else { hold.terms.lease };
            (last, wanted.min(left(hold.end())).max(to_be_sure_of(left(hold.valid_until()))))
        };
        let leases: Vec<_> = holds.iter().map(lease).collect();
        let items = holds.iter().zip(&leases).map(|(hold, (_, lease))| Renewal {
            key: hold.key.clone(),
            me: hold.me.clone(),
            mode: hold.terms.mode,
            lease: *lease,
            job: hold.terms.job.clone(),
        });
        let answer = self.backend.renew(items.collect()).await;
        if holds.len() > 1 && answer.as_ref().is_err_and(|no| no.kind() == ErrorKind::Protocol) {
            // One of the keys is not what it should be: it takes no other lock with it.
            let alone = |hold| Box::pin(self.renew(std::slice::from_ref(hold)));
            join_all(holds.iter().map(alone)).await;
            return;
        }
        for (i, (hold, (last, lease))) in holds.iter().zip(leases).enumerate() {
            hold.renewing.store(false, Ordering::Release);
            match answer.as_ref().map(|extended| extended.get(i).copied().unwrap_or(false)) {
                // Given back or lost while the renewal was under way: either is final.
                _ if hold.is_over() => {}
                Ok(true) if last => self.schedule(hold.valid_until(), hold),
                Ok(true) => self.renewed(hold, now, lease),
                Ok(false) => hold.lose(Loss::Taken),
                Err(_) => self.try_again(hold),
            }
        }
    }

    fn renewed(&self, hold: &Arc<Lease>, sent: Instant, lease: Duration) {
        let whole = hold.terms.lease;
        let last = hold.renewed(sent, lease);
        let third = self.part(sent + lease.min(whole) / 3, hold);
        self.schedule(if last { hold.valid_until() } else { third }, hold);
    }

    fn try_again(&self, hold: &Arc<Lease>) {
        let again = Instant::now() + hold.terms.lease / 10;
        self.schedule(again.min(hold.valid_until()), hold);
    }

    /// Has all that is held looked at at once: the server may have lost it. The agent does it, where it runs: the
    /// runtime that has met the new server may stand still from now on, and nobody else renews what is being renewed.
    pub(super) fn verify(&self) {
        self.doubted.store(true, Ordering::Release);
        self.sooner.notify_one();
    }

    /// All that is held and not being renewed, if it is doubted.
    fn doubtful(&self) -> Vec<Arc<Lease>> {
        if !self.doubted.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let all: Vec<_> = self.looks.lock().at.values().filter_map(Weak::upgrade).collect();
        let free =
            |hold: &Arc<Lease>| !hold.is_over() && !hold.renewing.swap(true, Ordering::AcqRel);
        all.into_iter().filter(free).collect()
    }

    /// What is renewed together. Where a shard may be away while others are there, none of them is with another's.
    fn batches(&self, mut holds: Vec<Arc<Lease>>) -> Vec<Vec<Arc<Lease>>> {
        let apart = self.backend.is_apart();
        if apart {
            holds.sort_by_key(|hold| hold.key.shard());
        }
        let together = |a: &Arc<Lease>, b: &Arc<Lease>| !apart || a.key.shard() == b.key.shard();
        let batches = holds.chunk_by(together).flat_map(|shard| shard.chunks(BATCH));
        batches.map(<[_]>::to_vec).collect()
    }

    /// Makes a lease last for so long from now; false if it is lost. One renewal at a time; one that got no answer in
    /// time may run after this one, and shortens nothing then: the store never does.
    pub(super) async fn extend(
        self: &Arc<Self>,
        hold: &Arc<Lease>,
        by: Duration,
    ) -> Result<bool, Error> {
        while hold.renewing.swap(true, Ordering::AcqRel) {
            // Where it is renewed the runtime may stand still, and the agent with it.
            if Instant::now() >= hold.valid_until() {
                hold.lose(Loss::Lapsed);
            }
            if hold.is_over() {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _mine = Renewing { rounds: self, hold };
        if hold.is_over() {
            return Ok(false);
        }
        let sent = Instant::now();
        // Never less than it is sure of, as any renewal.
        let by = by.max(to_be_sure_of(hold.valid_until().saturating_duration_since(sent)));
        let (key, me, job) = (hold.key.clone(), hold.me.clone(), hold.terms.job.clone());
        let item = Renewal { key, me, mode: hold.terms.mode, lease: by, job };
        let stands = self.backend.renew(vec![item]).await?.first() == Some(&true);
        if hold.is_over() {
            return Ok(false);
        }
        if stands {
            hold.extended(sent, by);
        } else {
            hold.lose(Loss::Taken);
        }
        Ok(stands)
    }

    /// Looks at the hold at this time, and not at the one that was set before.
    fn schedule(&self, at: Instant, hold: &Arc<Lease>) {
        let look = (at, self.numbers.fetch_add(1, Ordering::Relaxed));
        let before = hold.round.lock().replace(look);
        let mut looks = self.looks.lock();
        if let Some(before) = before {
            looks.at.remove(&before);
        }
        // Given back meanwhile: `forget` has been here already.
        if hold.is_over() {
            return;
        }
        looks.at.insert(look, Arc::downgrade(hold));
        let sooner = looks.asleep_until.is_none_or(|until| at < until);
        if sooner {
            looks.asleep_until = Some(at);
        }
        drop(looks);
        if sooner {
            self.sooner.notify_one();
        }
    }

    /// Takes out what is due.
    fn due(&self) -> Vec<Arc<Lease>> {
        let end = Instant::now() + SLACK;
        let mut looks = self.looks.lock();
        let later = looks.at.split_off(&(end, 0));
        let due = std::mem::replace(&mut looks.at, later);
        drop(looks);
        due.into_values().filter_map(|f| f.upgrade()).filter(|f| !f.is_over()).collect()
    }
}

/// An extension under way; when it is over, done or dropped, the rounds go on from what is left.
struct Renewing<'a> {
    rounds: &'a Arc<Rounds>,
    hold: &'a Arc<Lease>,
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        let Self { rounds, hold } = self;
        hold.renewing.store(false, Ordering::Release);
        let until = hold.valid_until();
        let whole = hold.terms.lease;
        // As ever when two thirds are left.
        let now = Instant::now();
        let usual = until.checked_sub(whole * 2 / 3).unwrap_or(now);
        let at = if hold.last.load(Ordering::Acquire) { until } else { usual };
        rounds.schedule(at.max(now), hold);
    }
}

/// Renewals under way, from before there is a task for them. Dropped with the runtime they were to run on, they are tried
/// again.
struct UnderWay {
    rounds: Arc<Rounds>,
    holds: Vec<Arc<Lease>>,
}

impl UnderWay {
    fn of(rounds: &Arc<Rounds>, holds: Vec<Arc<Lease>>) -> Self {
        Self { rounds: Arc::clone(rounds), holds }
    }

    async fn renew(mut self) {
        self.rounds.renew(&self.holds).await;
        // Each is looked at when its answer says.
        self.holds.clear();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        for hold in &self.holds {
            hold.renewing.store(false, Ordering::Release);
            self.rounds.try_again(hold);
        }
    }
}
