//! Options of an acquire: lease, mode, handovers, replicas and the limit of waiters.

use std::time::Duration;

use super::local_wait_queue::HandoverLimits;
use crate::{
    durations::MAX_DURATION,
    store::{LeaseTerms, LockMode, SPARE_FENCES},
};

/// Default for the most waiters of one lock in one process. A queue of this length is served in
/// seconds; in a longer one, most waiters would time out.
const DEFAULT_MAX_WAITERS: usize = 1024;

/// Longest wait; it limits the lifetime of waiters and queue entries.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(600);

/// Shortest lease: with a shorter one, a renewal at a third would be due before a slow round trip
/// has ended.
pub(super) const MIN_LEASE: Duration = Duration::from_millis(100);

/// Shortest `max_hold`: with 0, every lock would be lost before its holder runs.
const MIN_HOLD: Duration = MIN_LEASE;

/// Options of one acquire.
#[derive(Debug, Clone)]
pub(super) struct AcquireOptions {
    pub(super) terms: LeaseTerms,
    pub(super) handover_limits: HandoverLimits,
    /// Replicas that must have a grant before it counts.
    pub(super) replicas: u32,
    /// Most waiters for this lock in this process.
    pub(super) max_waiters: usize,
}

impl Default for AcquireOptions {
    fn default() -> Self {
        let terms = LeaseTerms {
            lease: Duration::from_secs(10),
            renews: true,
            max_hold: Duration::from_secs(60),
            job: None,
            mode: LockMode::Exclusive,
        };
        Self {
            terms,
            handover_limits: HandoverLimits::default(),
            replicas: 0,
            max_waiters: DEFAULT_MAX_WAITERS,
        }
    }
}

impl AcquireOptions {
    /// Returns the handover limits that apply. Only an exclusive lock is handed over: several
    /// permits are held at a time, and one that was handed over would have an older fence than a
    /// new grant of another.
    pub(super) fn effective_handover_limits(&self) -> HandoverLimits {
        match self.terms.mode {
            LockMode::Exclusive => self.handover_limits,
            LockMode::Shared | LockMode::Permits(_) => {
                HandoverLimits { max_handovers: 0, window: Duration::ZERO }
            }
        }
    }

    /// Returns true if a grant under these options also satisfies the other.
    pub(super) fn has_same_grant_terms(&self, other: &Self) -> bool {
        self.terms == other.terms && self.handover_limits == other.handover_limits
    }

    pub(super) fn set_lease(&mut self, lease: Duration, renews: bool) {
        self.terms.lease = lease.clamp(MIN_LEASE, MAX_DURATION);
        self.terms.renews = renews;
    }

    pub(super) fn set_max_hold(&mut self, max_hold: Duration) {
        self.terms.max_hold = max_hold.clamp(MIN_HOLD, MAX_DURATION);
    }

    pub(super) fn set_handover_limits(&mut self, max_handovers: u32, window: Duration) {
        self.handover_limits =
            HandoverLimits { max_handovers: u64::from(max_handovers).min(SPARE_FENCES), window };
    }
}
