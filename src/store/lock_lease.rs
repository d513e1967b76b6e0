//! `LockLease`: ownership of a lock under one token, until a deadline on the local clock.
//!
//! Several guards may use a lease in succession, each in a hold of its own ([`HoldState`]).
//! Renewal, loss and release concern the lease. They happen under its mutex, so no hold starts on a
//! lost lease, and a loss is reported to the current hold.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Store,
    backend::{JobId, LockMode, LockToken},
    grant_attempt::LateCalls,
    hold_state::{HoldState, LockLoss},
};
use crate::{
    error::{Error, ErrorKind},
    instruments::StoreCounters,
    key::Key,
};

/// Terms of a lease: its length, renewal and bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    pub(crate) lease: Duration,
    /// False if the lease is fixed and ends at its deadline.
    pub(crate) renews: bool,
    /// Time after which renewal stops. It bounds a live holder that never releases.
    pub(crate) max_hold: Duration,
    /// Job that runs under the lock, and is renewed in the same operation.
    pub(crate) job: Option<JobId>,
    pub(crate) mode: LockMode,
}

impl LeaseTerms {
    /// Returns the first lease to request, at most `max_hold`.
    pub(crate) fn initial_lease(&self) -> Duration {
        self.lease.min(self.max_hold)
    }

    /// Returns true if the first lease is followed by a renewal.
    fn is_renewable(&self) -> bool {
        self.renews && self.max_hold > self.lease
    }
}

/// Observer of the loss of a lease, besides its holder.
pub(crate) trait LossWatcher: Send + Sync {
    fn on_loss(self: Arc<Self>, lease: &LockLease);
}

pub(crate) struct LockLease {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) terms: LeaseTerms,
    /// [`Backend::server_generation`](super::backend::Backend::server_generation) when the grant
    /// was requested.
    server_generation: u64,
    /// Largest number of replicas known to have the grant.
    confirmed_replicas: AtomicU32,
    state: Mutex<LeaseState>,
    /// Released or lost, so it is not renewed any more.
    closed: AtomicBool,
    /// The current lease is the last one: it is not renewed.
    pub(super) is_final: AtomicBool,
    /// A renewal is in flight.
    pub(super) renewing: AtomicBool,
    /// Timer of the lease in the renewal scheduler.
    pub(super) timer_key: Mutex<Option<(Instant, usize)>>,
    loss_watcher: OnceLock<Weak<dyn LossWatcher>>,
    /// Counters of the store handle that holds it.
    counters: OnceLock<Arc<StoreCounters>>,
    /// Log records show the lock's name: see [`Store::log_names`].
    shows_log_name: AtomicBool,
    /// Calls under its token that may arrive after its release; usually `None`.
    pub(super) late_calls: Option<Box<LateCalls>>,
}

struct LeaseState {
    valid_until: Instant,
    hold: Weak<HoldState>,
}

impl LockLease {
    pub(super) fn new(
        key: &Key,
        token: &LockToken,
        valid_until: Instant,
        terms: LeaseTerms,
        server_generation: u64,
        late_calls: Option<Box<LateCalls>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: key.clone(),
            token: token.clone(),
            server_generation,
            confirmed_replicas: AtomicU32::new(0),
            state: Mutex::new(LeaseState { valid_until, hold: Weak::new() }),
            closed: AtomicBool::new(false),
            is_final: AtomicBool::new(!terms.is_renewable()),
            renewing: AtomicBool::new(false),
            timer_key: Mutex::new(None),
            loss_watcher: OnceLock::new(),
            counters: OnceLock::new(),
            shows_log_name: AtomicBool::new(false),
            late_calls,
            terms,
        })
    }

    /// Returns the hold that uses the lease now.
    pub(super) fn current_hold(&self) -> Option<Arc<HoldState>> {
        self.state.lock().hold.upgrade()
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.state.lock().valid_until
    }

    /// Waits until `wanted` replicas have the grant.
    ///
    /// # Errors
    ///
    /// `Unavailable` if fewer replicas have it, or if the server is not the one that granted it.
    pub(crate) async fn ensure_replicated(&self, store: &Store, wanted: u32) -> Result<(), Error> {
        if self.confirmed_replicas.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let confirmed = ensure_replicated(store, &self.key, wanted, self.server_generation).await?;
        self.record_replicas(confirmed, self.server_generation);
        Ok(())
    }

    /// Records that `confirmed` replicas have all writes of the server of this generation.
    pub(crate) fn record_replicas(&self, confirmed: u32, server_generation: u64) {
        if server_generation == self.server_generation {
            self.confirmed_replicas.fetch_max(confirmed, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns true if the lease may be handed over:
    ///
    /// - it will be renewed
    /// - at least a third of its length is left
    /// - at most its length is left: an extension was made for one holder, and if this process
    ///   died, other processes would have to wait for it
    pub(crate) fn allows_handover(&self) -> bool {
        let remaining = self.valid_until().saturating_duration_since(Instant::now());
        !self.is_closed()
            && !self.is_final.load(Ordering::Acquire)
            && remaining >= self.terms.lease / 3
            && remaining <= self.terms.lease
    }

    /// Sets a watcher that is notified if the lease is lost.
    pub(crate) fn set_loss_watcher(&self, watcher: Weak<dyn LossWatcher>) {
        let _ = self.loss_watcher.set(watcher);
    }

    /// Sets the counters in which a loss is recorded.
    pub(super) fn set_counters(&self, counters: &Arc<StoreCounters>) {
        let _ = self.counters.set(Arc::clone(counters));
    }

    /// Sets whether the loss is logged with the lock's name.
    pub(super) fn set_log_names(&self, shown: bool) {
        self.shows_log_name.store(shown, Ordering::Relaxed);
    }

    /// Returns the end of the current hold, renewed or not.
    pub(super) fn hold_ends_at(&self) -> Instant {
        let state = self.state.lock();
        state.hold.upgrade().map_or(state.valid_until, |hold| hold.ends_at)
    }

    /// Skips a renewal if the current hold's grant was not received. Returns false if it was.
    pub(super) fn skip_renewal_if_unreceived(&self) -> bool {
        self.state.lock().hold.upgrade().is_some_and(|hold| hold.skip_renewal_if_unreceived())
    }

    /// Begins a hold. Returns false if the lease is closed.
    pub(super) fn begin_hold(&self, hold: &Arc<HoldState>) -> bool {
        let mut state = self.state.lock();
        if self.is_closed() {
            return false;
        }
        state.hold = Arc::downgrade(hold);
        true
    }

    /// Begins the next hold of a handover. Returns false if the lease is closed, or had its last
    /// renewal meanwhile.
    pub(super) fn begin_next_hold(&self, hold: &Arc<HoldState>) -> bool {
        let mut state = self.state.lock();
        if self.is_closed() || self.is_final.load(Ordering::Acquire) {
            return false;
        }
        state.hold = Arc::downgrade(hold);
        true
    }

    /// Applies a renewal by the agent. Returns true if it was the last: it reaches the end of the
    /// current hold.
    pub(super) fn apply_renewal(&self, sent_at: Instant, lease: Duration) -> bool {
        let mut state = self.state.lock();
        state.valid_until = sent_at + validity_time(lease);
        let ends_at = state.hold.upgrade().map_or(state.valid_until, |hold| hold.ends_at);
        let is_final = lease < self.terms.lease && sent_at + lease >= ends_at;
        self.is_final.store(is_final, Ordering::Release);
        is_final
    }

    /// Applies a successful renewal for `lease`, sent at `sent_at`.
    pub(super) fn apply_extension(&self, sent_at: Instant, lease: Duration) {
        self.state.lock().valid_until = sent_at + validity_time(lease);
    }

    /// Closes the lease without a loss. Returns false if it was closed before.
    pub(super) fn close(&self) -> bool {
        let _state = self.state.lock();
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Marks the lease as lost. A loss is final, and the first reason stands.
    pub(crate) fn mark_lost(&self, loss: LockLoss) {
        let state = self.state.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let hold = state.hold.upgrade();
        drop(state);
        let lock = self.key.log_name(self.shows_log_name.load(Ordering::Relaxed));
        tracing::warn!(node = self.token.node(), %lock, ?loss, "lock lost");
        if let Some(counters) = self.counters.get() {
            counters.record_lock_loss(self.key.without_value(), loss as usize);
        }
        if let Some(hold) = hold {
            hold.mark_lost(loss);
        }
        if let Some(watcher) = self.loss_watcher.get().and_then(Weak::upgrade) {
            watcher.on_loss(self);
        }
    }
}

/// Waits until `wanted` replicas have the writes about this key, and returns how many do.
/// `server_generation` is that of the time of the writes.
///
/// # Errors
///
/// As for [`LockLease::ensure_replicated`].
pub(crate) async fn ensure_replicated(
    store: &Store,
    key: &Key,
    wanted: u32,
    server_generation: u64,
) -> Result<u32, Error> {
    let confirmed =
        store.backend().wait_for_replicas(key.shard(), wanted, server_generation).await?;
    if confirmed < wanted {
        crate::throttle::throttled!(
            warn,
            have = confirmed,
            wanted,
            "lock refused: too few replicas acknowledged the grant"
        );
        return Err(Error::new(ErrorKind::Unavailable, "replicas"));
    }
    Ok(confirmed)
}

impl fmt::Debug for LockLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLease").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Allowance for clock drift: this part of the lease, as its divisor, and `MIN_DRIFT_ALLOWANCE`.
const DRIFT_DIVISOR: u32 = 100;

/// Allowance for clock drift that does not depend on the lease.
const MIN_DRIFT_ALLOWANCE: Duration = Duration::from_millis(2);

/// Returns the part of a lease that is certain: the server's clock may run a little faster than the
/// local one.
pub(crate) fn validity_time(lease: Duration) -> Duration {
    lease.saturating_sub(lease / DRIFT_DIVISOR + MIN_DRIFT_ALLOWANCE)
}

/// Returns the lease to request so that its [`validity_time`] is at least `min_validity`. A renewal
/// for less could make the store end a lease that its holder still relies on.
pub(super) fn lease_for_validity(min_validity: Duration) -> Duration {
    if min_validity.is_zero() {
        return min_validity;
    }
    let lease = min_validity.saturating_add(MIN_DRIFT_ALLOWANCE);
    // Fractions are rounded down.
    lease.saturating_add(lease / (DRIFT_DIVISOR - 1) + Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_for_validity_inverts_validity_time() {
        let max_duration = crate::durations::MAX_DURATION;
        for micros in (2_200..40_000).step_by(37).chain([10_000_000, 60_000_000, 86_400_000_000]) {
            let lease = Duration::from_micros(micros);
            let again = lease_for_validity(validity_time(lease));
            assert!(validity_time(again) >= validity_time(lease), "{lease:?}, {again:?}");
            assert!(again <= lease + Duration::from_nanos(3), "{lease:?}, {again:?}");
        }
        assert!(validity_time(lease_for_validity(max_duration)) >= max_duration);
        assert_eq!(lease_for_validity(Duration::ZERO), Duration::ZERO);
    }
}
