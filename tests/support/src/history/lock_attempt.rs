//! `LockAttempt`: one attempt of a task: the lock, its mode, the time of the hold, and the way of
//! its release.

use std::time::Duration;

use lockgate::{LockRequest, Store};

use crate::{checker::locks::RecordedLockMode, fleet::seeded_rng::SeededRng};

/// Leases are short, so that faults are longer.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
const FIXED_LEASE: Duration = Duration::from_millis(300);

/// Longer than anything takes that is not wrong.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(10);

/// The locks, and how often of a hundred times each is asked for. Registers are under the first two,
/// which are always exclusive.
pub(crate) const LOCK_WEIGHTS: [(&str, u64); 4] =
    [("hot", 50), ("cold", 15), ("doc", 20), ("pool", 15)];
pub(crate) const LOCKS_WITH_REGISTER: [&str; 2] = ["hot", "cold"];

#[derive(Debug)]
pub(crate) struct LockAttempt {
    pub(crate) lock_name: &'static str,
    pub(crate) mode: RecordedLockMode,
    has_fixed_lease: bool,
    max_wait: Option<Duration>,
    /// The future is dropped after this.
    pub(crate) cancel_after: Option<Duration>,
    pub(crate) hold_time: Duration,
    pub(crate) release_method: ReleaseMethod,
    pub(crate) pause_after: Duration,
}

#[derive(Debug)]
pub(crate) enum ReleaseMethod {
    Release,
    DropGuard,
    /// The release is begun, and its future dropped.
    DropRelease,
}

impl LockAttempt {
    pub(crate) fn random(dice: &mut SeededRng) -> Self {
        let mut at = dice.below(100);
        let mut lock = LOCK_WEIGHTS[0].0;
        for (name, share) in LOCK_WEIGHTS {
            lock = name;
            if at < share {
                break;
            }
            at -= share;
        }
        let mode = match lock {
            "doc" if dice.chance_percent(75) => RecordedLockMode::Shared,
            "pool" if dice.chance_percent(85) => RecordedLockMode::Permits(3),
            _ => RecordedLockMode::Exclusive,
        };
        let wait = match dice.below(20) {
            0 | 1 => None,
            2 | 3 => Some(dice.duration_between_ms(5, 60)),
            _ => Some(MAX_WAIT),
        };
        // Where nearly all wait, few may take long.
        let long = if lock == LOCK_WEIGHTS[0].0 { 2 } else { 15 };
        let work = match dice.below(1000) {
            n if n < long => dice.duration_between_ms(200, 1500),
            15..=99 => dice.duration_between_ms(3, 20),
            100..=599 => dice.duration_between_ms(0, 3),
            _ => Duration::ZERO,
        };
        let end = match dice.below(20) {
            0 => ReleaseMethod::DropRelease,
            1..=4 => ReleaseMethod::DropGuard,
            _ => ReleaseMethod::Release,
        };
        let gives_up = dice.chance_percent(10).then(|| dice.duration_between_ms(0, 20));
        let pause = if dice.chance_percent(10) {
            dice.duration_between_ms(5, 40)
        } else {
            dice.duration_between_ms(0, 2)
        };
        Self {
            lock_name: lock,
            mode,
            has_fixed_lease: dice.chance_percent(8),
            max_wait: wait,
            cancel_after: gives_up,
            hold_time: work,
            release_method: end,
            pause_after: pause,
        }
    }

    pub(crate) fn lock_request(&self, store: &Store) -> LockRequest {
        let mut request = store.lock(self.lock_name);
        request = match self.mode {
            RecordedLockMode::Exclusive => request,
            RecordedLockMode::Shared => request.shared(),
            RecordedLockMode::Permits(most) => request.permits(most),
        };
        request = if self.has_fixed_lease {
            request.fixed_lease(FIXED_LEASE)
        } else {
            request.lease(LEASE)
        };
        match self.max_wait {
            Some(wait) => request.wait(wait),
            None => request,
        }
    }
}
