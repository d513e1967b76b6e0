//! How long locks are held here, for an honest `Retry-After`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::answer::Busy;
use crate::clock::micros;

/// A moving average of the hold times of one layer in this process; each new one counts for an eighth. One
/// for each layer, because what they do under their locks differs: those of milliseconds would talk for one
/// of minutes.
#[derive(Debug, Default)]
pub(super) struct HoldTimes(AtomicU64);

impl HoldTimes {
    pub(super) fn note(&self, held: Duration) {
        let held = micros(held).max(1);
        // Two at once may lose one of them: it is an estimate.
        let old = self.0.load(Ordering::Relaxed);
        let new = if old == 0 { held } else { old - old / 8 + held / 8 };
        self.0.store(new.max(1), Ordering::Relaxed);
    }

    /// How long it usually takes, if that is known.
    pub(super) fn usual(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            usual => Some(Duration::from_micros(usual)),
        }
    }

    /// When trying again is worth it: the usual time for everybody before, at most the lease that is
    /// left (a renewed lease says nothing about the end, a dead holder's says all).
    pub(super) fn retry_after(&self, busy: &Busy) -> Duration {
        let turns = u32::try_from(busy.line.saturating_add(1)).unwrap_or(u32::MAX);
        self.usual().map_or(busy.left, |usual| usual.saturating_mul(turns).min(busy.left))
    }
}
