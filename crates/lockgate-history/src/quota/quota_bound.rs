//! `QuotaBound`: most units that a quota admits within a period.

/// Bound on the admissions of a quota, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaBound {
    /// `limit` in each fixed window.
    Fixed {
        /// Most units of a window.
        limit: u64,
        /// Length of a window in ns.
        window: u64,
    },
    /// `limit` by the formula of sliding windows, which counts the previous window by its overlap.
    /// It admits less than two limits within the length of a window, and within several windows a
    /// limit for each and one more.
    Sliding {
        /// Most units of a window.
        limit: u64,
        /// Length of a window in ns.
        window: u64,
    },
    /// `burst` at once, and after that `limit` for each window, evenly.
    Gcra {
        /// Most units at once.
        burst: u64,
        /// Units of a window.
        limit: u64,
        /// Length of a window in ns.
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

    /// Returns the most units that are admitted within a period of this length in ns.
    #[must_use]
    pub fn max_admitted(&self, period: u64) -> u64 {
        match *self {
            // Windows that such a period touches: the one in which it begins, and each that begins
            // within it.
            Self::Fixed { limit, window } | Self::Sliding { limit, window } => {
                limit.saturating_mul(period / window.max(1) + 2)
            }
            Self::Gcra { burst, limit, window } => {
                let paced = u128::from(period) * u128::from(limit) / u128::from(window.max(1));
                burst.saturating_add(u64::try_from(paced).unwrap_or(u64::MAX)).saturating_add(1)
            }
        }
    }
}
