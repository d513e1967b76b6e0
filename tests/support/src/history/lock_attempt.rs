//! `LockAttempt`: one attempt of a task: lock, mode, hold time and release method.

use std::time::Duration;

use lockgate::{LockRequest, Store};

use crate::{checker::locks::RecordedLockMode, fleet::seeded_rng::SeededRng};

/// Leases are short, so that faults outlast them.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
const FIXED_LEASE: Duration = Duration::from_millis(300);

/// Longer than any correct wait.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(10);

/// Locks and their shares in percent. The first two are always exclusive and protect registers.
pub(crate) const LOCK_WEIGHTS: [(&str, u64); 4] =
    [("hot", 50), ("cold", 15), ("doc", 20), ("pool", 15)];
pub(crate) const LOCKS_WITH_REGISTER: [&str; 2] = ["hot", "cold"];

#[derive(Debug)]
pub(crate) struct LockAttempt {
    pub(crate) lock_name: &'static str,
    pub(crate) mode: RecordedLockMode,
    has_fixed_lease: bool,
    max_wait: Option<Duration>,
    /// Time after which the acquire is dropped.
    pub(crate) cancel_after: Option<Duration>,
    pub(crate) hold_time: Duration,
    pub(crate) release_method: ReleaseMethod,
    pub(crate) pause_after: Duration,
}

#[derive(Debug)]
pub(crate) enum ReleaseMethod {
    Release,
    DropGuard,
    /// Starts the release and drops its future.
    DropRelease,
}

impl LockAttempt {
    pub(crate) fn random(rng: &mut SeededRng) -> Self {
        let mut random_share = rng.below(100);
        let mut lock_name = LOCK_WEIGHTS[0].0;
        for (name, share) in LOCK_WEIGHTS {
            lock_name = name;
            if random_share < share {
                break;
            }
            random_share -= share;
        }
        let mode = match lock_name {
            "doc" if rng.chance_percent(75) => RecordedLockMode::Shared,
            "pool" if rng.chance_percent(85) => RecordedLockMode::Permits(3),
            _ => RecordedLockMode::Exclusive,
        };
        let max_wait = match rng.below(20) {
            0 | 1 => None,
            2 | 3 => Some(rng.duration_between_ms(5, 60)),
            _ => Some(MAX_WAIT),
        };
        // Long holds are rare on the lock with most waiters.
        let long_hold_weight = if lock_name == LOCK_WEIGHTS[0].0 { 2 } else { 15 };
        let hold_time = match rng.below(1000) {
            n if n < long_hold_weight => rng.duration_between_ms(200, 1500),
            15..=99 => rng.duration_between_ms(3, 20),
            100..=599 => rng.duration_between_ms(0, 3),
            _ => Duration::ZERO,
        };
        let release_method = match rng.below(20) {
            0 => ReleaseMethod::DropRelease,
            1..=4 => ReleaseMethod::DropGuard,
            _ => ReleaseMethod::Release,
        };
        let cancel_after = rng.chance_percent(10).then(|| rng.duration_between_ms(0, 20));
        let pause_after = if rng.chance_percent(10) {
            rng.duration_between_ms(5, 40)
        } else {
            rng.duration_between_ms(0, 2)
        };
        Self {
            lock_name,
            mode,
            has_fixed_lease: rng.chance_percent(8),
            max_wait,
            cancel_after,
            hold_time,
            release_method,
            pause_after,
        }
    }

    pub(crate) fn lock_request(&self, store: &Store) -> LockRequest {
        let mut request = store.lock(self.lock_name);
        request = match self.mode {
            RecordedLockMode::Exclusive => request,
            RecordedLockMode::Shared => request.shared(),
            RecordedLockMode::Permits(permits) => request.permits(permits),
        };
        request = if self.has_fixed_lease {
            request.fixed_lease(FIXED_LEASE)
        } else {
            request.lease(LEASE)
        };
        match self.max_wait {
            Some(max_wait) => request.wait(max_wait),
            None => request,
        }
    }
}
