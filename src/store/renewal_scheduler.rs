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
    backend::{Backend, LeaseRenewal},
    hold_state::LockLoss,
    lock_lease::{LockLease, lease_for_validity},
};
use crate::error::{Error, ErrorKind};

/// Leases renewed in one call: bounded as `renew.lua` is.
const MAX_BATCH: usize = 100;

/// Looks that are due within this of each other go together.
const TIMER_SLACK: Duration = Duration::from_millis(20);

/// Renewals are brought forward to the beginning of their part of a lease, one in so many: leases that
/// were granted at different times are renewed together, in a tenth of a third.
const SLOTS_PER_LEASE: u32 = 30;

pub(super) struct RenewalScheduler {
    backend: Arc<dyn Backend>,
    timers: Mutex<RenewalTimers>,
    next_timer_id: AtomicUsize,
    rescheduled: Notify,
    /// What is held may be gone.
    recheck_requested: AtomicBool,
    started_at: Instant,
}

#[derive(Default)]
struct RenewalTimers {
    /// The number only makes the times distinct.
    entries: BTreeMap<(Instant, usize), Weak<LockLease>>,
    /// Until when the agent sleeps: it need not be woken for what is later. (What it sleeps for may be
    /// gone: a lock that is given back at once costs it no waking, and this one in vain.)
    sleeping_until: Option<Instant>,
}

impl RenewalScheduler {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            timers: Mutex::default(),
            next_timer_id: AtomicUsize::new(0),
            rescheduled: Notify::new(),
            recheck_requested: AtomicBool::new(false),
            started_at: Instant::now(),
        }
    }

    /// A new hold.
    pub(super) fn track(&self, hold: &Arc<LockLease>) {
        let (now, until) = (Instant::now(), hold.valid_until());
        // Of what it has, not of what it wants: a waiter may have been handed a shorter lease.
        let third = now + until.saturating_duration_since(now) / 3;
        let at = if hold.is_final.load(Ordering::Acquire) {
            until
        } else {
            self.align_to_slot(third, hold)
        };
        self.schedule(at, hold);
    }

    /// The beginning of the part of a lease in which this moment lies.
    fn align_to_slot(&self, at: Instant, hold: &LockLease) -> Instant {
        let part = (hold.terms.lease / SLOTS_PER_LEASE).max(Duration::from_millis(1));
        let into = at.saturating_duration_since(self.started_at).as_nanos() % part.as_nanos();
        at - Duration::from_nanos(u64::try_from(into).unwrap_or(0))
    }

    /// A hold that is over.
    pub(super) fn untrack(&self, hold: &LockLease) {
        if let Some(look) = hold.timer_key.lock().take() {
            self.timers.lock().entries.remove(&look);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.timers.lock().entries.len()
    }

    /// Until when the agent may sleep.
    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut looks = self.timers.lock();
        let first = looks.entries.first_key_value().map(|((at, _), _)| *at);
        // What it was to wake for may be gone. It sleeps on as if it were there: else every lock that is given
        // back at once would wake it, and another thread with it.
        let planned = looks.sleeping_until.filter(|until| *until > now);
        let doubted = self.recheck_requested.load(Ordering::Acquire).then_some(now);
        let next = first.into_iter().chain(planned).chain(doubted).min();
        looks.sleeping_until = next;
        next
    }

    /// Resolves when `next` has become sooner.
    pub(super) async fn rescheduled(&self) {
        self.rescheduled.notified().await;
    }

    /// Renews what can be renewed or is doubted, and loses what is at its end.
    pub(super) fn tick(self: &Arc<Self>) {
        let now = Instant::now();
        let mut to_renew = self.take_rechecks();
        for hold in self.take_due() {
            let until = hold.valid_until();
            let past_end = hold.is_final.load(Ordering::Acquire) || now >= hold.hold_ends_at();
            let left = !past_end && hold.skip_renewal_if_unreceived();
            if !past_end && !left && !hold.renewing.swap(true, Ordering::AcqRel) {
                // Should its renewal hang, the hold still ends in time.
                self.schedule(until, &hold);
                to_renew.push(hold);
            } else if until > now + TIMER_SLACK {
                self.schedule(until, &hold);
                // Who has come for it meanwhile may have had it scheduled before that.
                if left && !hold.skip_renewal_if_unreceived() {
                    self.track(&hold);
                }
            } else {
                hold.mark_lost(if past_end { LockLoss::HeldTooLong } else { LockLoss::Lapsed });
            }
        }
        for batch in self.split_batches(to_renew) {
            tokio::spawn(RenewalBatch::new(self, batch).run());
        }
    }

    async fn renew_batch(&self, holds: &[Arc<LockLease>]) {
        let now = Instant::now();
        let left = |end: Instant| end.saturating_duration_since(now);
        // Near its end a hold gets what is left, so that the store ends it when the holder is told. One
        // that is renewed no more is only looked at. Never less than it is sure of: if the answer were
        // lost, the store would end what the holder believes in.
        let lease = |hold: &Arc<LockLease>| {
            let last = hold.is_final.load(Ordering::Acquire);
            let wanted = if last { Duration::ZERO } else { hold.terms.lease };
            (
                last,
                wanted
                    .min(left(hold.hold_ends_at()))
                    .max(lease_for_validity(left(hold.valid_until()))),
            )
        };
        let leases: Vec<_> = holds.iter().map(lease).collect();
        let items = holds.iter().zip(&leases).map(|(hold, (_, lease))| LeaseRenewal {
            key: hold.key.clone(),
            token: hold.token.clone(),
            mode: hold.terms.mode,
            lease: *lease,
            job: hold.terms.job.clone(),
        });
        let answer = self.backend.renew(items.collect()).await;
        if holds.len() > 1 && answer.as_ref().is_err_and(|no| no.kind() == ErrorKind::Protocol) {
            // One of the keys is not what it should be: it takes no other lock with it.
            let alone = |hold| Box::pin(self.renew_batch(std::slice::from_ref(hold)));
            join_all(holds.iter().map(alone)).await;
            return;
        }
        for (i, (hold, (last, lease))) in holds.iter().zip(leases).enumerate() {
            hold.renewing.store(false, Ordering::Release);
            match answer.as_ref().map(|extended| extended.get(i).copied().unwrap_or(false)) {
                // Given back or lost while the renewal was under way: either is final.
                _ if hold.is_closed() => {}
                Ok(true) if last => self.schedule(hold.valid_until(), hold),
                Ok(true) => self.apply_renewal(hold, now, lease),
                Ok(false) => hold.mark_lost(LockLoss::Taken),
                Err(_) => self.schedule_retry(hold),
            }
        }
    }

    fn apply_renewal(&self, hold: &Arc<LockLease>, sent: Instant, lease: Duration) {
        let whole = hold.terms.lease;
        let last = hold.apply_renewal(sent, lease);
        let third = self.align_to_slot(sent + lease.min(whole) / 3, hold);
        self.schedule(if last { hold.valid_until() } else { third }, hold);
    }

    fn schedule_retry(&self, hold: &Arc<LockLease>) {
        let again = Instant::now() + hold.terms.lease / 10;
        self.schedule(again.min(hold.valid_until()), hold);
    }

    /// Has all that is held looked at at once: the server may have lost it. The agent does it, where it runs: the
    /// runtime that has met the new server may stand still from now on, and nobody else renews what is being renewed.
    pub(super) fn recheck_all(&self) {
        self.recheck_requested.store(true, Ordering::Release);
        self.rescheduled.notify_one();
    }

    /// All that is held and not being renewed, if it is doubted.
    fn take_rechecks(&self) -> Vec<Arc<LockLease>> {
        if !self.recheck_requested.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let all: Vec<_> = self.timers.lock().entries.values().filter_map(Weak::upgrade).collect();
        let free = |hold: &Arc<LockLease>| {
            !hold.is_closed() && !hold.renewing.swap(true, Ordering::AcqRel)
        };
        all.into_iter().filter(free).collect()
    }

    /// What is renewed together. Where a shard may be away while others are there, none of them is with another's.
    fn split_batches(&self, mut holds: Vec<Arc<LockLease>>) -> Vec<Vec<Arc<LockLease>>> {
        let apart = self.backend.is_clustered();
        if apart {
            holds.sort_by_key(|hold| hold.key.shard());
        }
        let together =
            |a: &Arc<LockLease>, b: &Arc<LockLease>| !apart || a.key.shard() == b.key.shard();
        let batches = holds.chunk_by(together).flat_map(|shard| shard.chunks(MAX_BATCH));
        batches.map(<[_]>::to_vec).collect()
    }

    /// Makes a lease last for so long from now; false if it is lost. One renewal at a time; one that got no answer in
    /// time may run after this one, and shortens nothing then: the store never does.
    pub(super) async fn extend(
        self: &Arc<Self>,
        hold: &Arc<LockLease>,
        by: Duration,
    ) -> Result<bool, Error> {
        while hold.renewing.swap(true, Ordering::AcqRel) {
            // Where it is renewed the runtime may stand still, and the agent with it.
            if Instant::now() >= hold.valid_until() {
                hold.mark_lost(LockLoss::Lapsed);
            }
            if hold.is_closed() {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _mine = ExtensionGuard { scheduler: self, lease: hold };
        if hold.is_closed() {
            return Ok(false);
        }
        let sent = Instant::now();
        // Never less than it is sure of, as any renewal.
        let by = by.max(lease_for_validity(hold.valid_until().saturating_duration_since(sent)));
        let (key, me, job) = (hold.key.clone(), hold.token.clone(), hold.terms.job.clone());
        let item = LeaseRenewal { key, token: me, mode: hold.terms.mode, lease: by, job };
        let stands = self.backend.renew(vec![item]).await?.first() == Some(&true);
        if hold.is_closed() {
            return Ok(false);
        }
        if stands {
            hold.apply_extension(sent, by);
        } else {
            hold.mark_lost(LockLoss::Taken);
        }
        Ok(stands)
    }

    /// Looks at the hold at this time, and not at the one that was set before.
    fn schedule(&self, at: Instant, hold: &Arc<LockLease>) {
        let look = (at, self.next_timer_id.fetch_add(1, Ordering::Relaxed));
        let before = hold.timer_key.lock().replace(look);
        let mut looks = self.timers.lock();
        if let Some(before) = before {
            looks.entries.remove(&before);
        }
        // Given back meanwhile: `untrack` has been here already.
        if hold.is_closed() {
            return;
        }
        looks.entries.insert(look, Arc::downgrade(hold));
        let sooner = looks.sleeping_until.is_none_or(|until| at < until);
        if sooner {
            looks.sleeping_until = Some(at);
        }
        drop(looks);
        if sooner {
            self.rescheduled.notify_one();
        }
    }

    /// Takes out what is due.
    fn take_due(&self) -> Vec<Arc<LockLease>> {
        let end = Instant::now() + TIMER_SLACK;
        let mut looks = self.timers.lock();
        let later = looks.entries.split_off(&(end, 0));
        let due = std::mem::replace(&mut looks.entries, later);
        drop(looks);
        due.into_values().filter_map(|f| f.upgrade()).filter(|f| !f.is_closed()).collect()
    }
}

/// An extension under way; when it is over, done or dropped, the rounds go on from what is left.
struct ExtensionGuard<'a> {
    scheduler: &'a Arc<RenewalScheduler>,
    lease: &'a Arc<LockLease>,
}

impl Drop for ExtensionGuard<'_> {
    fn drop(&mut self) {
        let Self { scheduler: rounds, lease: hold } = self;
        hold.renewing.store(false, Ordering::Release);
        let until = hold.valid_until();
        let whole = hold.terms.lease;
        // As ever when two thirds are left.
        let now = Instant::now();
        let usual = until.checked_sub(whole * 2 / 3).unwrap_or(now);
        let at = if hold.is_final.load(Ordering::Acquire) { until } else { usual };
        rounds.schedule(at.max(now), hold);
    }
}

/// Renewals under way, from before there is a task for them. Dropped with the runtime they were to run on, they are tried
/// again.
struct RenewalBatch {
    scheduler: Arc<RenewalScheduler>,
    leases: Vec<Arc<LockLease>>,
}

impl RenewalBatch {
    fn new(rounds: &Arc<RenewalScheduler>, holds: Vec<Arc<LockLease>>) -> Self {
        Self { scheduler: Arc::clone(rounds), leases: holds }
    }

    async fn run(mut self) {
        self.scheduler.renew_batch(&self.leases).await;
        // Each is looked at when its answer says.
        self.leases.clear();
    }
}

impl Drop for RenewalBatch {
    fn drop(&mut self) {
        for hold in &self.leases {
            hold.renewing.store(false, Ordering::Release);
            self.scheduler.schedule_retry(hold);
        }
    }
}
