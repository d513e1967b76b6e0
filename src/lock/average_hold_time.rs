//! Average hold time of a layer's locks, for a realistic `Retry-After`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::outcome::LockBusy;
use crate::clock::saturating_micros;

/// Moving average of the hold times of one layer in this process, in microseconds; each new one
/// counts for an eighth.
///
/// Each layer has its own, because handlers differ: holds of milliseconds would hide those of
/// minutes.
#[derive(Debug, Default)]
pub(super) struct AverageHoldTime(AtomicU64);

impl AverageHoldTime {
    pub(super) fn record(&self, held: Duration) {
        let held = saturating_micros(held).max(1);
        // Of two concurrent updates one may be lost, which an estimate tolerates.
        let old = self.0.load(Ordering::Relaxed);
        let new = if old == 0 { held } else { old - old / 8 + held / 8 };
        self.0.store(new.max(1), Ordering::Relaxed);
    }

    /// Returns the average, or `None` before the first hold has ended.
    pub(super) fn average(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            usual => Some(Duration::from_micros(usual)),
        }
    }

    /// Returns the time after which a retry is worthwhile: the average hold time for each waiter
    /// ahead and the holder, at most the rest of the lease.
    ///
    /// The rest of a lease that is renewed says nothing about its end. That of a dead holder is
    /// exact.
    pub(super) fn retry_after(&self, busy: &LockBusy) -> Duration {
        let turns = u32::try_from(busy.queue_length.saturating_add(1)).unwrap_or(u32::MAX);
        self.average().map_or(busy.lease_remaining, |usual| {
            usual.saturating_mul(turns).min(busy.lease_remaining)
        })
    }
}
