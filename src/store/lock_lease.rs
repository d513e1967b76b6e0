//! A lease: what this process has in the store, under one token, until a moment on our own clock.
//!
//! Several guards may use it one after the other, each in a turn of its own ([`HoldState`]); renewal, loss
//! and giving back are about the lease. What happens to it happens under its mutex, so that a turn is
//! never begun on a lease that is lost already, and a loss is told to whoever's turn it is.

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
    key::Key,
};

/// How a lease is kept alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    pub(crate) lease: Duration,
    /// False: the lease ends at its end, whoever holds it.
    pub(crate) renews: bool,
    /// Renewal stops after this; bounds a holder that lives and never ends.
    pub(crate) max_hold: Duration,
    /// The job whose own lease is renewed in the same step.
    pub(crate) job: Option<JobId>,
    pub(crate) mode: LockMode,
}

impl LeaseTerms {
    /// The lease to ask for: no longer than it may be held.
    pub(crate) fn initial_lease(&self) -> Duration {
        self.lease.min(self.max_hold)
    }

    /// Whether there is a renewal after the first lease.
    fn is_renewable(&self) -> bool {
        self.renews && self.max_hold > self.lease
    }
}

/// Who is told when a lease is lost, besides the holder.
pub(crate) trait LossWatcher: Send + Sync {
    fn on_loss(self: Arc<Self>, lease: &LockLease);
}

pub(crate) struct LockLease {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) terms: LeaseTerms,
    /// [`Backend::server_generation`](super::backend::Backend::server_generation) when the grant was asked for.
    server_generation: u64,
    /// Most replicas that were seen to have the grant.
    confirmed_replicas: AtomicU32,
    state: Mutex<LeaseState>,
    /// Given back, or lost: nobody renews it any more.
    closed: AtomicBool,
    /// What it has is its last: renewed no more.
    pub(super) is_final: AtomicBool,
    /// A renewal is under way.
    pub(super) renewing: AtomicBool,
    /// Where the agent has it in its rounds.
    pub(super) timer_key: Mutex<Option<(Instant, usize)>>,
    loss_watcher: OnceLock<Weak<dyn LossWatcher>>,
    /// Calls of its token that may arrive after it was given back; mostly none.
    pub(super) late_calls: Option<Box<LateCalls>>,
}

struct LeaseState {
    valid_until: Instant,
    hold: Weak<HoldState>,
}

impl LockLease {
    pub(super) fn new(
        key: &Key,
        me: &LockToken,
        valid_until: Instant,
        terms: LeaseTerms,
        servers: u64,
        strays: Option<Box<LateCalls>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: key.clone(),
            token: me.clone(),
            server_generation: servers,
            confirmed_replicas: AtomicU32::new(0),
            state: Mutex::new(LeaseState { valid_until, hold: Weak::new() }),
            closed: AtomicBool::new(false),
            is_final: AtomicBool::new(!terms.is_renewable()),
            renewing: AtomicBool::new(false),
            timer_key: Mutex::new(None),
            loss_watcher: OnceLock::new(),
            late_calls: strays,
            terms,
        })
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.state.lock().valid_until
    }

    /// Waits until so many replicas have the grant.
    ///
    /// # Errors
    ///
    /// `Unavailable` if too few have it, or if the server is another one than it was granted by.
    pub(crate) async fn ensure_replicated(&self, store: &Store, wanted: u32) -> Result<(), Error> {
        if self.confirmed_replicas.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let have = ensure_replicated(store, &self.key, wanted, self.server_generation).await?;
        self.record_replicas(have, self.server_generation);
        Ok(())
    }

    /// So many replicas of the server of this number had all that was written there.
    pub(crate) fn record_replicas(&self, have: u32, servers: u64) {
        if servers == self.server_generation {
            self.confirmed_replicas.fetch_max(have, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether a third of it is left, and there will be more: what a next turn has to begin with. Nor is more left than it
    /// was asked for: who extends it does so for himself, and should this process die others wait for what is left.
    pub(crate) fn allows_handover(&self) -> bool {
        let (left, lease) =
            (self.valid_until().saturating_duration_since(Instant::now()), self.terms.lease);
        !self.is_closed()
            && !self.is_final.load(Ordering::Acquire)
            && left >= lease / 3
            && left <= lease
    }

    /// Tells this one too if the lease is lost.
    pub(crate) fn set_loss_watcher(&self, watcher: Weak<dyn LossWatcher>) {
        let _ = self.loss_watcher.set(watcher);
    }

    /// When whoever's turn it is must be done, renewed or not.
    pub(super) fn hold_ends_at(&self) -> Instant {
        let state = self.state.lock();
        state.hold.upgrade().map_or(state.valid_until, |turn| turn.ends_at)
    }

    /// Leaves it unrenewed if whoever's turn it is has not come for it; false if he has.
    pub(super) fn skip_renewal_if_unreceived(&self) -> bool {
        self.state.lock().hold.upgrade().is_some_and(|turn| turn.skip_renewal_if_unreceived())
    }

    /// Begins a turn, unless the lease is over.
    pub(super) fn begin_hold(&self, turn: &Arc<HoldState>) -> bool {
        let mut state = self.state.lock();
        if self.is_closed() {
            return false;
        }
        state.hold = Arc::downgrade(turn);
        true
    }

    /// Begins the turn after another one, unless the lease is over, or was renewed for the last time meanwhile.
    pub(super) fn begin_next_hold(&self, turn: &Arc<HoldState>) -> bool {
        let mut state = self.state.lock();
        if self.is_closed() || self.is_final.load(Ordering::Acquire) {
            return false;
        }
        state.hold = Arc::downgrade(turn);
        true
    }

    /// As [`Lease::apply_extension`], by the agent. Whether that was the last time: whoever's turn it is now has come to its end.
    pub(super) fn apply_renewal(&self, sent: Instant, lease: Duration) -> bool {
        let mut state = self.state.lock();
        state.valid_until = sent + validity_time(lease);
        let end = state.hold.upgrade().map_or(state.valid_until, |turn| turn.ends_at);
        let last = lease < self.terms.lease && sent + lease >= end;
        self.is_final.store(last, Ordering::Release);
        last
    }

    /// A renewal that was sent at this time, for this long, has gone well.
    pub(super) fn apply_extension(&self, sent: Instant, lease: Duration) {
        self.state.lock().valid_until = sent + validity_time(lease);
    }

    /// Ends it without a loss; false if it was over before.
    pub(super) fn close(&self) -> bool {
        let _state = self.state.lock();
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Loss is terminal: the first reason stands, and nothing un-loses a lease.
    pub(crate) fn mark_lost(&self, loss: LockLoss) {
        let state = self.state.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let turn = state.hold.upgrade();
        drop(state);
        tracing::warn!(node = self.token.node(), lock = %self.key.log_hash(), ?loss, "lock lost");
        if let Some(turn) = turn {
            turn.mark_lost(loss);
        }
        if let Some(watcher) = self.loss_watcher.get().and_then(Weak::upgrade) {
            watcher.on_loss(self);
        }
    }
}

/// Waits until so many replicas have what was written about this key, since the server had this
/// number.
///
/// # Errors
///
/// As [`Lease::ensure_replicated`].
pub(crate) async fn ensure_replicated(
    store: &Store,
    key: &Key,
    wanted: u32,
    servers: u64,
) -> Result<u32, Error> {
    let have = store.backend().wait_for_replicas(key.shard(), wanted, servers).await?;
    if have < wanted {
        crate::throttle::throttled!(
            warn,
            have,
            wanted,
            "lock refused: too few replicas have the grant"
        );
        return Err(Error::new(ErrorKind::Unavailable, "replicas"));
    }
    Ok(have)
}

impl fmt::Debug for LockLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLease").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Of this much of a lease a part is not sure, and as much again whatever its length.
const DRIFT_ALLOWANCE: (u32, Duration) = (100, Duration::from_millis(2));

/// The part of a lease that is sure: the server's clock may run a little faster than ours.
pub(crate) fn validity_time(lease: Duration) -> Duration {
    let (part, always) = DRIFT_ALLOWANCE;
    lease.saturating_sub(lease / part + always)
}

/// The lease to ask for where so much of it is to be [`validity_time`]: what is sure already stays so, whatever the store has of it.
pub(super) fn lease_for_validity(left: Duration) -> Duration {
    if left.is_zero() {
        return left;
    }
    let (part, always) = DRIFT_ALLOWANCE;
    let more = left.saturating_add(always);
    // (Parts are rounded down.)
    more.saturating_add(more / (part - 1) + Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sure_can_be_asked_for_again_and_is_not_more_than_was_had() {
        let longest = crate::clock::MAX_DURATION;
        for micros in (2_200..40_000).step_by(37).chain([10_000_000, 60_000_000, 86_400_000_000]) {
            let lease = Duration::from_micros(micros);
            let again = lease_for_validity(validity_time(lease));
            assert!(validity_time(again) >= validity_time(lease), "{lease:?}, {again:?}");
            assert!(again <= lease + Duration::from_nanos(3), "{lease:?}, {again:?}");
        }
        assert!(validity_time(lease_for_validity(longest)) >= longest);
        assert_eq!(lease_for_validity(Duration::ZERO), Duration::ZERO);
    }
}
