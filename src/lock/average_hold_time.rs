//! Average hold time of a layer's locks, for a realistic `Retry-After`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::lock_outcome::LockBusy;
use crate::durations::saturating_micros;

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

    /// Returns the average, or `None` before the first hold has ended.
    pub(super) fn average(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Returns the time after which a retry is worthwhile: the average hold time for each waiter
    /// ahead and the holder, at most the rest of the lease.
    ///
    /// The rest of a lease that is renewed says nothing about its end. That of a dead holder is
    /// exact.
    pub(super) fn retry_after(&self, busy: &LockBusy) -> Duration {
        let holds_ahead = u32::try_from(busy.queue_length.saturating_add(1)).unwrap_or(u32::MAX);
        self.average().map_or(busy.lease_remaining, |average| {
            average.saturating_mul(holds_ahead).min(busy.lease_remaining)
        })
    }
}
