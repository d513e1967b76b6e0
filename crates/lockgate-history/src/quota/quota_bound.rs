//! What quotas let in.

/// What a quota lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaBound {
    /// So much in each window, ns.
    Fixed {
        /// Most per window.
        limit: u64,
        /// Its length, ns.
        window: u64,
    },
    /// So much in any time of this length by the sliding window's formula, which counts the last window by the
    /// part of it that is still in sight: what it lets in within a window's length is less than two limits, and
    /// within many windows a limit for each, and one more.
    Sliding {
        /// Most per window.
        limit: u64,
        /// Its length, ns.
        window: u64,
    },
    /// So much at once, and from then on evenly `limit` for each window.
    Gcra {
        /// Most at once.
        burst: u64,
        /// Per window.
        limit: u64,
        /// Its length, ns.
        window: u64,
    },
}

impl QuotaBound {
    pub(super) fn window(&self) -> u64 {
        match *self {
            Self::Fixed { window, .. }
            | Self::Sliding { window, .. }
            | Self::Gcra { window, .. } => window,
        }
    }

    /// The most that is let in within a time of this length, ns.
    #[must_use]
    pub fn max_admitted(&self, time: u64) -> u64 {
        match *self {
            // Windows that such a time touches: the one it begins in, and each that begins within it.
            Self::Fixed { limit, window } | Self::Sliding { limit, window } => {
                limit.saturating_mul(time / window.max(1) + 2)
            }
            Self::Gcra { burst, limit, window } => {
                let paced = u128::from(time) * u128::from(limit) / u128::from(window.max(1));
                burst.saturating_add(u64::try_from(paced).unwrap_or(u64::MAX)).saturating_add(1)
            }
        }
    }
}
