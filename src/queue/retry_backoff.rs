//! `RetryBackoff`: the delay before a failed task is retried.

use std::time::Duration;

/// Exponential backoff with full jitter.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryBackoff {
    pub(super) base: Duration,
    pub(super) cap: Duration,
}

impl RetryBackoff {
    /// Returns a random delay up to the base doubled with each attempt, at most the cap: tasks that
    /// failed together do not come back together.
    pub(super) fn delay_after(self, attempt: u32) -> Duration {
        let doubled = 2u32.checked_pow(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let max_delay = self.base.saturating_mul(doubled).min(self.cap);
        let max_micros = u64::try_from(max_delay.as_micros()).unwrap_or(u64::MAX);
        // 64 random bits of an id, as a fraction of 2^64.
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        let micros = (u128::from(max_micros) * u128::from(random << 2)) >> 64;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_jittered_from_zero_to_the_backoff() {
        let second = Duration::from_secs(1);
        let backoff = RetryBackoff { base: second, cap: second * 5 };
        for (attempt, longest) in [(1, 1), (2, 2), (3, 4), (4, 5), (99, 5)] {
            let longest = second * longest;
            let pauses: Vec<_> = (0..500).map(|_| backoff.delay_after(attempt)).collect();
            assert!(pauses.iter().all(|pause| *pause <= longest));
            assert!(pauses.iter().any(|pause| *pause < longest / 10));
            assert!(pauses.iter().any(|pause| *pause > longest * 9 / 10));
        }
    }
}
