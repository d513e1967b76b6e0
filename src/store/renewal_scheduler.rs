//! `RenewalScheduler`: timers of the leases, for their renewal and their end.
//!
//! A lease is renewed after a third of its length, in batches. A failed renewal is retried until
//! the validity time is over; then the lock is lost. A refused renewal loses it at once. A closed
//! lease is removed, so there are no more timers than leases.

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

/// Maximum number of leases renewed in one call, which `Backend::renew` allows.
const MAX_BATCH: usize = 100;

/// Timers due within this time of each other are handled together.
const TIMER_SLACK: Duration = Duration::from_millis(20);

/// Slots in a lease. Renewals are brought forward to the start of their slot, so leases granted at
/// different times are renewed together. A slot is a tenth of the time between renewals.
const SLOTS_PER_LEASE: u32 = 30;

pub(super) struct RenewalScheduler {
    backend: Arc<dyn Backend>,
    timers: Mutex<RenewalTimers>,
    next_timer_id: AtomicUsize,
    rescheduled: Notify,
    /// All leases must be checked, because the server may have lost them.
    recheck_requested: AtomicBool,
    started_at: Instant,
}

#[derive(Default)]
struct RenewalTimers {
    /// The number only makes the keys unique.
    entries: BTreeMap<(Instant, usize), Weak<LockLease>>,
    /// Time until which the agent sleeps; later timers do not wake it. The timer for this time may
    /// have been removed: a lock that is released at once does not wake the agent then, but makes
    /// it wake once in vain.
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

    /// Schedules the renewal of a new lease, or its end.
    pub(super) fn track(&self, hold: &Arc<LockLease>) {
        let (now, until) = (Instant::now(), hold.valid_until());
        // A third of the remaining time, and not of the terms' lease: a waiter may have been handed
        // a shorter one.
        let third = now + until.saturating_duration_since(now) / 3;
        let at = if hold.is_final.load(Ordering::Acquire) {
            until
        } else {
            self.align_to_slot(third, hold)
        };
        self.schedule(at, hold);
    }

    /// Returns the start of the slot that contains `at`.
    fn align_to_slot(&self, at: Instant, hold: &LockLease) -> Instant {
        let part = (hold.terms.lease / SLOTS_PER_LEASE).max(Duration::from_millis(1));
        let into = at.saturating_duration_since(self.started_at).as_nanos() % part.as_nanos();
        at - Duration::from_nanos(u64::try_from(into).unwrap_or(0))
    }

    /// Removes the timer of a closed lease.
    pub(super) fn untrack(&self, hold: &LockLease) {
        if let Some(look) = hold.timer_key.lock().take() {
            self.timers.lock().entries.remove(&look);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.timers.lock().entries.len()
    }

    /// Returns the time until which the agent may sleep.
    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut looks = self.timers.lock();
        let first = looks.entries.first_key_value().map(|((at, _), _)| *at);
        // The timer for this time may have been removed. The agent sleeps until then anyway:
        // otherwise every lock that is released at once would wake it, and another thread with it.
        let planned = looks.sleeping_until.filter(|until| *until > now);
        let doubted = self.recheck_requested.load(Ordering::Acquire).then_some(now);
        let next = first.into_iter().chain(planned).chain(doubted).min();
        looks.sleeping_until = next;
        next
    }

    /// Resolves when `next_wakeup` has become earlier.
    pub(super) async fn rescheduled(&self) {
        self.rescheduled.notified().await;
    }

    /// Renews the leases that are due or must be checked, and marks those at their end as lost.
    pub(super) fn tick(self: &Arc<Self>) {
        let now = Instant::now();
        let mut to_renew = self.take_rechecks();
        for hold in self.take_due() {
            let until = hold.valid_until();
            let past_end = hold.is_final.load(Ordering::Acquire) || now >= hold.hold_ends_at();
            let left = !past_end && hold.skip_renewal_if_unreceived();
            if !past_end && !left && !hold.renewing.swap(true, Ordering::AcqRel) {
                // If the renewal hangs, the hold still ends in time.
                self.schedule(until, &hold);
                to_renew.push(hold);
            } else if until > now + TIMER_SLACK {
                self.schedule(until, &hold);
                // The waiter may have received the grant, and set the timer, just before the line
                // above.
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
        // Near its end, a hold is renewed for the time left, so that the store ends it when the
        // holder learns of the loss. A lease that is final is checked without being extended. No
        // request is for less than the validity time left: if its reply were lost, the store would
        // end a lease that the holder still relies on.
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
            // One of the keys is invalid. It must not affect the other locks.
            let alone = |hold| Box::pin(self.renew_batch(std::slice::from_ref(hold)));
            join_all(holds.iter().map(alone)).await;
            return;
        }
        for (i, (hold, (last, lease))) in holds.iter().zip(leases).enumerate() {
            hold.renewing.store(false, Ordering::Release);
            match answer.as_ref().map(|extended| extended.get(i).copied().unwrap_or(false)) {
                // Released or lost while the renewal was in flight; both are final.
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

    /// Requests a check of all leases, because the server may have lost them. The agent makes it,
    /// on its own runtime: the runtime that has detected the new server may stall, and a lease with
    /// a renewal in flight is renewed by no other task.
    pub(super) fn recheck_all(&self) {
        self.recheck_requested.store(true, Ordering::Release);
        self.rescheduled.notify_one();
    }

    /// Returns the open leases without a renewal in flight, if a check was requested, and marks
    /// them as being renewed.
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

    /// Splits leases into batches. In a cluster a batch has one shard only, since some shards may
    /// be unavailable while others are not.
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

    /// Extends the lease to last `by` from now. Returns false if it is lost.
    ///
    /// A lease has one renewal in flight at a time. An earlier one that was not answered in time
    /// may run after this one, but the store never shortens a lease.
    pub(super) async fn extend(
        self: &Arc<Self>,
        hold: &Arc<LockLease>,
        by: Duration,
    ) -> Result<bool, Error> {
        while hold.renewing.swap(true, Ordering::AcqRel) {
            // The runtime of the renewal may have stalled, and the agent with it.
            if Instant::now() >= hold.valid_until() {
                hold.mark_lost(LockLoss::Lapsed);
            }
            if hold.is_closed() {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _mine = ExtensionInFlight { scheduler: self, lease: hold };
        if hold.is_closed() {
            return Ok(false);
        }
        let sent = Instant::now();
        // At least the validity time left, as in any renewal.
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

    /// Sets the timer of a lease to `at`, in place of its earlier timer.
    fn schedule(&self, at: Instant, hold: &Arc<LockLease>) {
        let look = (at, self.next_timer_id.fetch_add(1, Ordering::Relaxed));
        let before = hold.timer_key.lock().replace(look);
        let mut looks = self.timers.lock();
        if let Some(before) = before {
            looks.entries.remove(&before);
        }
        // Closed meanwhile: `untrack` has run already.
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

    /// Removes and returns the leases that are due.
    fn take_due(&self) -> Vec<Arc<LockLease>> {
        let end = Instant::now() + TIMER_SLACK;
        let mut looks = self.timers.lock();
        let later = looks.entries.split_off(&(end, 0));
        let due = std::mem::replace(&mut looks.entries, later);
        drop(looks);
        due.into_values().filter_map(|f| f.upgrade()).filter(|f| !f.is_closed()).collect()
    }
}

/// Extension in flight. When it ends or is dropped, the timer is set from the time left.
struct ExtensionInFlight<'a> {
    scheduler: &'a Arc<RenewalScheduler>,
    lease: &'a Arc<LockLease>,
}

impl Drop for ExtensionInFlight<'_> {
    fn drop(&mut self) {
        let Self { scheduler: rounds, lease: hold } = self;
        hold.renewing.store(false, Ordering::Release);
        let until = hold.valid_until();
        let whole = hold.terms.lease;
        // Renewed as usual when two thirds are left.
        let now = Instant::now();
        let usual = until.checked_sub(whole * 2 / 3).unwrap_or(now);
        let at = if hold.is_final.load(Ordering::Acquire) { until } else { usual };
        rounds.schedule(at.max(now), hold);
    }
}

/// Renewals in flight, from before their task is spawned. If they are dropped with their runtime,
/// they are retried.
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
        // `renew_batch` has set a timer for each.
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
