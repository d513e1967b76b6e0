//! How long locks are held here, for an honest `Retry-After`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::outcome::LockBusy;
use crate::clock::saturating_micros;

/// A moving average of the hold times of one layer in this process; each new one counts for an eighth. One
/// for each layer, because what they do under their locks differs: those of milliseconds would talk for one
/// of minutes.
#[derive(Debug, Default)]
pub(super) struct AverageHoldTime(AtomicU64);

impl AverageHoldTime {
    pub(super) fn record(&self, held: Duration) {
        let held = saturating_micros(held).max(1);
        // Two at once may lose one of them: it is an estimate.
        let old = self.0.load(Ordering::Relaxed);
        let new = if old == 0 { held } else { old - old / 8 + held / 8 };
        self.0.store(new.max(1), Ordering::Relaxed);
    }

    /// How long it usually takes, if that is known.
    pub(super) fn average(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            usual => Some(Duration::from_micros(usual)),
        }
    }

    /// When trying again is worth it: the usual time for everybody before, at most the lease that is
    /// left (a renewed lease says nothing about the end, a dead holder's says all).
    pub(super) fn retry_after(&self, busy: &LockBusy) -> Duration {
        let turns = u32::try_from(busy.queue_length.saturating_add(1)).unwrap_or(u32::MAX);
        self.average().map_or(busy.lease_remaining, |usual| {
            usual.saturating_mul(turns).min(busy.lease_remaining)
        })
    }
}
