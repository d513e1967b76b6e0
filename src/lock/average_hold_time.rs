//! Average hold time of a layer's locks, for a realistic `Retry-After`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::lock_outcome::LockBusy;
use crate::durations::saturating_micros;

/// Hold time that is assumed before any was measured. Few handlers take longer than the 1 to 3 s
/// that a user waits for. Too short a time costs a client one more request, whose answer has a
/// better estimate; too long a time leaves the lock unused.
const FIRST_GUESS: Duration = Duration::from_secs(2);

/// Moving average of the hold times of one layer in this process, in microseconds; each new one
/// counts for an eighth.
///
/// Each layer has its own, because handlers differ: holds of milliseconds would hide those of
/// minutes.
#[derive(Debug, Default)]
pub(super) struct AverageHoldTime(AtomicU64);

impl AverageHoldTime {
    pub(super) fn record(&self, hold_time: Duration) {
        let hold_time = saturating_micros(hold_time).max(1);
        // Of two concurrent updates one may be lost, which an estimate tolerates.
        let previous = self.0.load(Ordering::Relaxed);
        let updated =
            if previous == 0 { hold_time } else { previous - previous / 8 + hold_time / 8 };
        self.0.store(updated.max(1), Ordering::Relaxed);
    }

    /// Returns the average. Until a hold has ended, it is the `expected` one, or `FIRST_GUESS`.
    pub(super) fn estimate(&self, expected: Option<Duration>) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => expected.unwrap_or(FIRST_GUESS),
            micros => Duration::from_micros(micros),
        }
    }

    /// Returns the time after which a retry is worthwhile: the [estimate](Self::estimate) for each
    /// waiter ahead and the holder, at most the rest of the lease.
    ///
    /// The rest of a lease that is renewed says nothing about its end. That of a dead holder is
    /// exact.
    pub(super) fn retry_after(&self, busy: &LockBusy, expected: Option<Duration>) -> Duration {
        let holds_ahead = u32::try_from(busy.queue_length.saturating_add(1)).unwrap_or(u32::MAX);
        self.estimate(expected).saturating_mul(holds_ahead).min(busy.lease_remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_estimate_is_replaced_by_the_measured_time() {
        let busy = |queue_length| {
            let lease_remaining = 10 * SECOND;
            LockBusy { lease_remaining, queue_length, waited: None }
        };
        let average = AverageHoldTime::default();
        assert_eq!(average.retry_after(&busy(0), None), 2 * SECOND);
        assert_eq!(average.retry_after(&busy(1), Some(3 * SECOND)), 6 * SECOND);
        assert_eq!(average.retry_after(&busy(0), Some(20 * SECOND)), 10 * SECOND, "the lease");
        average.record(5 * SECOND);
        assert_eq!(average.retry_after(&busy(0), Some(3 * SECOND)), 5 * SECOND);
    }
}
