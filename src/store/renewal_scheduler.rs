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
    hold_state::{HoldState, LockLoss},
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
    pub(super) fn track(&self, lease: &Arc<LockLease>) {
        let (now, valid_until) = (Instant::now(), lease.valid_until());
        // A third of the remaining time, and not of the terms' lease: a waiter may have been handed
        // a shorter one.
        let third = now + valid_until.saturating_duration_since(now) / 3;
        let due_at = if lease.is_final.load(Ordering::Acquire) {
            valid_until
        } else {
            self.align_to_slot(third, lease)
        };
        self.schedule(due_at, lease);
    }

    /// Returns the start of the slot that contains `due_at`.
    fn align_to_slot(&self, due_at: Instant, lease: &LockLease) -> Instant {
        let slot = (lease.terms.lease / SLOTS_PER_LEASE).max(Duration::from_millis(1));
        let offset_ns =
            due_at.saturating_duration_since(self.started_at).as_nanos() % slot.as_nanos();
        due_at - Duration::from_nanos(u64::try_from(offset_ns).unwrap_or(0))
    }

    /// Removes the timer of a closed lease.
    pub(super) fn untrack(&self, lease: &LockLease) {
        if let Some(timer_key) = lease.timer_key.lock().take() {
            self.timers.lock().entries.remove(&timer_key);
        }
    }

    /// Returns the current hold of each lease.
    pub(super) fn holds(&self) -> Vec<Arc<HoldState>> {
        let leases: Vec<_> = self.timers.lock().entries.values().cloned().collect();
        leases.iter().filter_map(|lease| lease.upgrade()?.current_hold()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.timers.lock().entries.len()
    }

    /// Returns the time until which the agent may sleep.
    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut timers = self.timers.lock();
        let first_due = timers.entries.first_key_value().map(|((due_at, _), _)| *due_at);
        // The timer for this time may have been removed. The agent sleeps until then anyway:
        // otherwise every lock that is released at once would wake it, and another thread with it.
        let planned = timers.sleeping_until.filter(|until| *until > now);
        let recheck = self.recheck_requested.load(Ordering::Acquire).then_some(now);
        let next_wakeup = first_due.into_iter().chain(planned).chain(recheck).min();
        timers.sleeping_until = next_wakeup;
        next_wakeup
    }

    /// Resolves when `next_wakeup` has become earlier.
    pub(super) async fn rescheduled(&self) {
        self.rescheduled.notified().await;
    }

    /// Renews the leases that are due or must be checked, and marks those at their end as lost.
    pub(super) fn tick(self: &Arc<Self>) {
        let now = Instant::now();
        let mut to_renew = self.take_rechecks();
        for lease in self.take_due() {
            let valid_until = lease.valid_until();
            let past_end = lease.is_final.load(Ordering::Acquire) || now >= lease.hold_ends_at();
            let is_skipped = !past_end && lease.skip_renewal_if_unreceived();
            if !past_end && !is_skipped && !lease.renewing.swap(true, Ordering::AcqRel) {
                // If the renewal hangs, the hold still ends in time.
                self.schedule(valid_until, &lease);
                to_renew.push(lease);
            } else if valid_until > now + TIMER_SLACK {
                self.schedule(valid_until, &lease);
                // The waiter may have received the grant, and set the timer, just before the
                // previous statement.
                if is_skipped && !lease.skip_renewal_if_unreceived() {
                    self.track(&lease);
                }
            } else {
                lease.mark_lost(if past_end { LockLoss::HeldTooLong } else { LockLoss::Lapsed });
            }
        }
        for batch in self.split_batches(to_renew) {
            tokio::spawn(RenewalBatch::new(self, batch).run());
        }
    }

    async fn renew_batch(&self, leases: &[Arc<LockLease>]) {
        let sent_at = Instant::now();
        let requests: Vec<_> =
            leases.iter().map(|lease| RenewalRequest::new(lease, sent_at)).collect();
        let items = leases.iter().zip(&requests).map(|(lease, request)| LeaseRenewal {
            key: lease.key.clone(),
            token: lease.token.clone(),
            mode: lease.terms.mode,
            lease: request.duration,
            job: lease.terms.job.clone(),
        });
        let reply = self.backend.renew(items.collect()).await;
        if leases.len() > 1
            && reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Protocol)
        {
            // One of the keys is invalid. It must not affect the other locks.
            let renew_alone = |lease| Box::pin(self.renew_batch(std::slice::from_ref(lease)));
            join_all(leases.iter().map(renew_alone)).await;
            return;
        }
        for (i, (lease, request)) in leases.iter().zip(requests).enumerate() {
            lease.renewing.store(false, Ordering::Release);
            match reply.as_ref().map(|renewed| renewed.get(i).copied().unwrap_or(false)) {
                // Released or lost while the renewal was in flight; both are final.
                _ if lease.is_closed() => {}
                Ok(true) if request.is_final => self.schedule(lease.valid_until(), lease),
                Ok(true) => self.apply_renewal(lease, sent_at, request.duration),
                Ok(false) => lease.mark_lost(LockLoss::Taken),
                Err(_) => self.schedule_retry(lease),
            }
        }
    }

    fn apply_renewal(&self, lease: &Arc<LockLease>, sent_at: Instant, duration: Duration) {
        let is_final = lease.apply_renewal(sent_at, duration);
        let third = self.align_to_slot(sent_at + duration.min(lease.terms.lease) / 3, lease);
        self.schedule(if is_final { lease.valid_until() } else { third }, lease);
    }

    fn schedule_retry(&self, lease: &Arc<LockLease>) {
        let retry_at = Instant::now() + lease.terms.lease / 10;
        self.schedule(retry_at.min(lease.valid_until()), lease);
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
        let tracked: Vec<_> =
            self.timers.lock().entries.values().filter_map(Weak::upgrade).collect();
        let begin_renewal = |lease: &Arc<LockLease>| {
            !lease.is_closed() && !lease.renewing.swap(true, Ordering::AcqRel)
        };
        tracked.into_iter().filter(begin_renewal).collect()
    }

    /// Splits leases into batches. In a cluster a batch has one shard only, since some shards may
    /// be unavailable while others are not.
    fn split_batches(&self, mut leases: Vec<Arc<LockLease>>) -> Vec<Vec<Arc<LockLease>>> {
        let is_clustered = self.backend.is_clustered();
        if is_clustered {
            leases.sort_by_key(|lease| lease.key.shard());
        }
        let may_share_call = |a: &Arc<LockLease>, b: &Arc<LockLease>| {
            !is_clustered || a.key.shard() == b.key.shard()
        };
        let batches = leases.chunk_by(may_share_call).flat_map(|shard| shard.chunks(MAX_BATCH));
        batches.map(<[_]>::to_vec).collect()
    }

    /// Extends the lease to last `duration` from now. Returns false if it is lost.
    ///
    /// A lease has one renewal in flight at a time. An earlier one that was not answered in time
    /// may run after this one, but the store never shortens a lease.
    pub(super) async fn extend(
        self: &Arc<Self>,
        lease: &Arc<LockLease>,
        duration: Duration,
    ) -> Result<bool, Error> {
        while lease.renewing.swap(true, Ordering::AcqRel) {
            // The runtime of the renewal may have stalled, and the agent with it.
            if Instant::now() >= lease.valid_until() {
                lease.mark_lost(LockLoss::Lapsed);
            }
            if lease.is_closed() {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _in_flight = ExtensionInFlight { scheduler: self, lease };
        if lease.is_closed() {
            return Ok(false);
        }
        let sent_at = Instant::now();
        // At least the remaining validity time, as in any renewal.
        let remaining = lease.valid_until().saturating_duration_since(sent_at);
        let duration = duration.max(lease_for_validity(remaining));
        let item = LeaseRenewal {
            key: lease.key.clone(),
            token: lease.token.clone(),
            mode: lease.terms.mode,
            lease: duration,
            job: lease.terms.job.clone(),
        };
        let is_extended = self.backend.renew(vec![item]).await?.first() == Some(&true);
        if lease.is_closed() {
            return Ok(false);
        }
        if is_extended {
            lease.apply_extension(sent_at, duration);
        } else {
            lease.mark_lost(LockLoss::Taken);
        }
        Ok(is_extended)
    }

    /// Sets the timer of a lease to `due_at`, in place of its earlier timer.
    fn schedule(&self, due_at: Instant, lease: &Arc<LockLease>) {
        let timer_key = (due_at, self.next_timer_id.fetch_add(1, Ordering::Relaxed));
        let previous_key = lease.timer_key.lock().replace(timer_key);
        let mut timers = self.timers.lock();
        if let Some(previous_key) = previous_key {
            timers.entries.remove(&previous_key);
        }
        // Closed meanwhile: `untrack` has run already.
        if lease.is_closed() {
            return;
        }
        timers.entries.insert(timer_key, Arc::downgrade(lease));
        let is_sooner = timers.sleeping_until.is_none_or(|until| due_at < until);
        if is_sooner {
            timers.sleeping_until = Some(due_at);
        }
        drop(timers);
        if is_sooner {
            self.rescheduled.notify_one();
        }
    }

    /// Removes and returns the leases that are due.
    fn take_due(&self) -> Vec<Arc<LockLease>> {
        let end = Instant::now() + TIMER_SLACK;
        let mut timers = self.timers.lock();
        let later = timers.entries.split_off(&(end, 0));
        let due = std::mem::replace(&mut timers.entries, later);
        drop(timers);
        due.into_values()
            .filter_map(|lease| lease.upgrade())
            .filter(|lease| !lease.is_closed())
            .collect()
    }
}

/// Request of one lease in a batch.
struct RenewalRequest {
    /// The lease is only checked, and not extended.
    is_final: bool,
    duration: Duration,
}

impl RenewalRequest {
    /// Returns the request for a lease.
    ///
    /// - Near its end, a hold is renewed for its remaining time, so that the store ends it when the
    ///   holder learns of the loss.
    /// - A lease that is final is checked without being extended.
    /// - No request is for less than the remaining validity time: if its reply were lost, the store
    ///   would end a lease that the holder still relies on.
    fn new(lease: &LockLease, now: Instant) -> Self {
        let remaining = |end: Instant| end.saturating_duration_since(now);
        let is_final = lease.is_final.load(Ordering::Acquire);
        let extension = if is_final { Duration::ZERO } else { lease.terms.lease };
        let duration = extension
            .min(remaining(lease.hold_ends_at()))
            .max(lease_for_validity(remaining(lease.valid_until())));
        Self { is_final, duration }
    }
}

/// Extension in flight. When it ends or is dropped, the timer is set from the remaining time.
struct ExtensionInFlight<'a> {
    scheduler: &'a Arc<RenewalScheduler>,
    lease: &'a Arc<LockLease>,
}

impl Drop for ExtensionInFlight<'_> {
    fn drop(&mut self) {
        let Self { scheduler, lease } = self;
        lease.renewing.store(false, Ordering::Release);
        let valid_until = lease.valid_until();
        // Renewed as usual when two thirds are left.
        let now = Instant::now();
        let renew_at = valid_until.checked_sub(lease.terms.lease * 2 / 3).unwrap_or(now);
        let due_at = if lease.is_final.load(Ordering::Acquire) { valid_until } else { renew_at };
        scheduler.schedule(due_at.max(now), lease);
    }
}

/// Renewals in flight, from before their task is spawned. If they are dropped with their runtime,
/// they are retried.
struct RenewalBatch {
    scheduler: Arc<RenewalScheduler>,
    leases: Vec<Arc<LockLease>>,
}

impl RenewalBatch {
    fn new(scheduler: &Arc<RenewalScheduler>, leases: Vec<Arc<LockLease>>) -> Self {
        Self { scheduler: Arc::clone(scheduler), leases }
    }

    async fn run(mut self) {
        self.scheduler.renew_batch(&self.leases).await;
        // `renew_batch` has set a timer for each.
        self.leases.clear();
    }
}

impl Drop for RenewalBatch {
    fn drop(&mut self) {
        for lease in &self.leases {
            lease.renewing.store(false, Ordering::Release);
            self.scheduler.schedule_retry(lease);
        }
    }
}
