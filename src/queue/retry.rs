//! When a failed task is tried again.

use std::time::Duration;

/// Exponential backoff with full jitter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    pub(super) base: Duration,
    pub(super) cap: Duration,
}

impl Backoff {
    /// Anything up to the base doubled with each attempt, at most the cap: tasks that failed together do not come
    /// together again.
    pub(super) fn after(self, attempt: u32) -> Duration {
        let doubled = 2u32.checked_pow(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.base.saturating_mul(doubled).min(self.cap);
        // 32 random bits of an id.
        let dice = uuid::Uuid::new_v4().as_u128() >> 96;
        let share = u64::try_from(dice).unwrap_or(0);
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX >> 32);
        Duration::from_micros(
            (u128::from(micros) * u128::from(share) >> 32).try_into().unwrap_or(0),
        )
    }
}
