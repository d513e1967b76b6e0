//! `QuotaRule`: the rule by which a counter counts, its algorithm and its penalty.

use std::time::Duration;

/// Maximum of a limit, a cost and a usage, in units: 2^50.
pub(crate) const MAX_UNITS: u64 = 1 << 50;

/// Maximum charge after the fact, as a multiple of the quota. It is enough for a cost that a
/// handler finds out late, and it bounds how long a key is refused: ten windows, or the time of ten
/// bursts.
const MAX_CHARGE_QUOTAS: u64 = 10;

/// Rule by which a counter counts. The window is in whole milliseconds, rounded up; for
/// [`Gcra`](Self::Gcra), in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaRule {
    /// Fixed window: it starts at the first charge and ends `window` later.
    Fixed { limit: u64, window: Duration },
    /// Sliding window counter: windows follow one another. Usage of the previous window counts in
    /// proportion to the part of it that the sliding window still covers, rounded up.
    Sliding { limit: u64, window: Duration },
    /// GCRA: `limit` per `window` at an even rate, at most `burst` at once. A rate that integers
    /// cannot express exactly is rounded down, see [`GcraRate`](super::GcraRate).
    Gcra { limit: u64, window: Duration, burst: u64 },
}

/// Counting algorithm. Counters of different algorithms are different counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Algorithm {
    Fixed,
    Sliding,
    Gcra,
}

impl QuotaRule {
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Fixed { .. } => Algorithm::Fixed,
            Self::Sliding { .. } => Algorithm::Sliding,
            Self::Gcra { .. } => Algorithm::Gcra,
        }
    }

    pub(crate) fn window(&self) -> Duration {
        match *self {
            Self::Fixed { window, .. }
            | Self::Sliding { window, .. }
            | Self::Gcra { window, .. } => window,
        }
    }

    /// Returns the maximum of one charge after the fact.
    pub(crate) const fn max_charge(&self) -> u64 {
        let quota_units = match *self {
            Self::Fixed { limit, .. } | Self::Sliding { limit, .. } => limit,
            Self::Gcra { limit, burst, .. } if limit > 0 && burst > limit => burst,
            Self::Gcra { limit, .. } => limit,
        };
        quota_units.saturating_mul(MAX_CHARGE_QUOTAS)
    }

    /// Returns a rule that is within both, for a counter that one command names twice.
    pub(super) fn intersect(self, other: Self) -> Self {
        let is_slower = |(l, w): (u64, Duration), (m, v): (u64, Duration)| {
            u128::from(l) * v.as_micros() <= u128::from(m) * w.as_micros()
        };
        match (self, other) {
            // The smaller limit in the longer window is within both; neither rule need be.
            (Self::Fixed { limit: l, window: w }, Self::Fixed { limit: m, window: v }) => {
                Self::Fixed { limit: l.min(m), window: w.max(v) }
            }
            (Self::Sliding { limit: l, window: w }, Self::Sliding { limit: m, window: v }) => {
                Self::Sliding { limit: l.min(m), window: w.max(v) }
            }
            (
                Self::Gcra { limit: l, window: w, burst: b },
                Self::Gcra { limit: m, window: v, burst: c },
            ) => {
                let is_self_slower = is_slower((l, w), (m, v));
                let (limit, window) = if is_self_slower { (l, w) } else { (m, v) };
                Self::Gcra { limit, window, burst: b.min(c) }
            }
            _ => self,
        }
    }
}

/// Penalty: after `after_refusals` refusals within the rule's window, the counter refuses every
/// charge for `block_for`, even one of cost 0. Some refusals do not count:
///
/// - those caused by another counter
/// - those during the block
/// - those of a cost that can never be admitted
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Penalty {
    /// At least 1.
    pub(crate) after_refusals: u32,
    pub(crate) block_for: Duration,
}
