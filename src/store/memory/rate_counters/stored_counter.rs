//! Stored forms of a counter, and its used units at the moment of an operation: how often a cost
//! fits, and how it is spent and refunded.

use std::sync::Arc;

use crate::{
    durations::ceil_millis,
    key::Key,
    store::{
        memory::memory_shard::ServerTime,
        rate::{
            Algorithm, ChargedWindow, CounterValue, GcraRate, MAX_DEBT_PARTS, MAX_UNITS, QuotaRule,
            scale_ceil,
        },
    },
};

/// Key of a counter, or of its count of refusals.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::store::memory) struct StoredCounterKey {
    pub(super) algorithm: Algorithm,
    pub(super) is_refusal_count: bool,
    pub(super) policy: Arc<str>,
    pub(super) subject: Key,
    pub(super) tag: Key,
}

/// Stored value of a counter. Unlike other values it expires at its end, not after it: so the
/// remaining time in a reply is exact.
#[derive(Clone, Copy)]
pub(in crate::store::memory) enum StoredCounter {
    Fixed {
        spent: u64,
    },
    Sliding(SlidingWindowPair),
    Gcra {
        debt: u64,
        gross_debt: u64,
        debt_id: u64,
        as_of_us: u64,
        rate: GcraRate,
    },
    Refusals(u64),
    Blocked,
    /// Blocked by an operator, for this many ms.
    BlockedByOperator(u64),
}

/// Two consecutive windows; times in ms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::memory) struct SlidingWindowPair {
    pub(super) start_ms: u64,
    pub(super) length_ms: u64,
    previous: u64,
    spent: u64,
}

impl SlidingWindowPair {
    pub(super) fn new(now_ms: u64, length_ms: u64, spent: u64) -> Self {
        Self { start_ms: now_ms, length_ms, previous: 0, spent }
    }

    /// Advances the windows to the current time and a window length.
    pub(super) fn advanced_to(mut self, now: u64, length: u64) -> Self {
        // The clock was set back: a start in the future becomes now.
        self.start_ms = self.start_ms.min(now);
        let elapsed_ms = now - self.start_ms;
        if elapsed_ms >= self.length_ms.saturating_mul(2) {
            return Self::new(now, length, 0);
        }
        if elapsed_ms >= self.length_ms {
            self = Self {
                start_ms: self.start_ms + self.length_ms,
                previous: self.spent,
                spent: 0,
                ..self
            };
        }
        if self.length_ms == length {
            return self;
        }
        // The current usage decays from now on, as if it had been spent in the previous window.
        Self { start_ms: now, length_ms: length, previous: self.used_units(now), spent: 0 }
    }

    pub(super) fn left_ms(&self, now: u64) -> u64 {
        self.start_ms + self.length_ms - now
    }

    fn used_units(&self, now: u64) -> u64 {
        (self.spent + scale_ceil(self.previous, self.left_ms(now), self.length_ms)).min(MAX_UNITS)
    }

    /// Returns the time from which no part of the usage counts.
    pub(super) fn expiry_ms(&self) -> u64 {
        self.start_ms + if self.spent > 0 { self.length_ms * 2 } else { self.length_ms }
    }
}

/// Usage of a counter at the moment of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UsedUnits {
    /// `end_ms` is the end of the window, or of the one that would begin now.
    Fixed {
        spent: u64,
        end_ms: u64,
    },
    Sliding(SlidingWindowPair),
    /// `gross_debt` ignores refunds. `debt_id` is 0 until the debt is stored.
    Gcra {
        debt: u64,
        gross_debt: u64,
        debt_id: u64,
        rate: GcraRate,
    },
}

impl UsedUnits {
    pub(super) fn value_at(&self, now: ServerTime) -> CounterValue {
        match self {
            Self::Fixed { spent, end_ms } => {
                CounterValue::Fixed { spent: *spent, left_ms: end_ms - now.ms }
            }
            Self::Sliding(windows) => CounterValue::Sliding {
                previous: windows.previous,
                spent: windows.spent,
                left_ms: windows.left_ms(now.ms),
            },
            Self::Gcra { debt, gross_debt, debt_id, .. } => {
                CounterValue::Gcra { debt: *debt, gross_debt: *gross_debt, debt_id: *debt_id }
            }
        }
    }

    /// Returns the number of times that `cost` can be charged.
    pub(super) fn times_affordable(&self, rule: &QuotaRule, cost: u64, now: ServerTime) -> u64 {
        let fits = |max_units: u64, used_units: u64, cost: u64| {
            max_units.saturating_sub(used_units).checked_div(cost)
        };
        let times = match (self, rule) {
            (Self::Gcra { debt, rate, .. }, _) => {
                fits(rate.max_debt, *debt, rate.units_to_parts(cost))
            }
            (Self::Fixed { spent, .. }, QuotaRule::Fixed { limit, .. }) => {
                fits(*limit, *spent, cost)
            }
            (Self::Sliding(windows), QuotaRule::Sliding { limit, .. }) => {
                fits(*limit, windows.used_units(now.ms), cost)
            }
            _ => Some(0),
        };
        times.unwrap_or(u64::MAX)
    }

    pub(super) fn spend(&mut self, units: u64) {
        let add = |spent: &mut u64, units: u64, max| *spent = spent.saturating_add(units).min(max);
        match self {
            Self::Fixed { spent, .. } => add(spent, units, MAX_UNITS),
            Self::Sliding(windows) => add(&mut windows.spent, units, MAX_UNITS),
            Self::Gcra { debt, gross_debt, rate, .. } => {
                let parts = rate.units_to_parts(units);
                add(debt, parts, MAX_DEBT_PARTS);
                add(gross_debt, parts, MAX_DEBT_PARTS);
            }
        }
    }

    /// Refunds the units that are still part of that window, or of that debt.
    pub(super) fn refund(
        &mut self,
        units: u64,
        window: ChargedWindow,
        rule: &QuotaRule,
        now: ServerTime,
    ) {
        // Tolerance for two clock readings, each rounded; limited, so that a very short window is
        // not mistaken for the next one.
        let tolerance_ms = ((ceil_millis(rule.window()) - 1) / 2).min(2);
        match self {
            Self::Fixed { spent, end_ms } if end_ms.abs_diff(window.boundary) <= tolerance_ms => {
                *spent = spent.saturating_sub(units);
            }
            Self::Sliding(windows) if windows.start_ms == window.boundary => {
                windows.spent = windows.spent.saturating_sub(units);
            }
            Self::Sliding(windows) if windows.start_ms == window.boundary + windows.length_ms => {
                windows.previous = windows.previous.saturating_sub(units);
            }
            // At most the units that are certainly unpaid, if debts are paid off in order and all
            // refunds were for earlier debts.
            Self::Gcra { debt, gross_debt, debt_id, rate }
                if *debt_id == window.debt_id && *gross_debt < MAX_DEBT_PARTS =>
            {
                let ticks = window.boundary.saturating_sub(now.us) / rate.tick_us;
                let drained_parts = ticks.saturating_mul(rate.parts_per_tick);
                let unpaid_parts = drained_parts.saturating_sub(*gross_debt - *debt);
                *debt = debt.saturating_sub(rate.units_to_parts(units).min(unpaid_parts));
            }
            Self::Fixed { .. } | Self::Sliding(_) | Self::Gcra { .. } => {}
        }
    }
}

/// Returns the remaining debt in the parts of a new rate; until now the old rate applies.
pub(super) fn remaining_debt(
    debt: u64,
    as_of_us: u64,
    old_rate: &GcraRate,
    new_rate: &GcraRate,
    now: ServerTime,
) -> u64 {
    let ticks = now.us.saturating_sub(as_of_us) / old_rate.tick_us;
    let remaining_parts = debt.saturating_sub(ticks.saturating_mul(old_rate.parts_per_tick));
    if old_rate.parts_per_unit == new_rate.parts_per_unit {
        remaining_parts
    } else {
        scale_ceil(remaining_parts, new_rate.parts_per_unit, old_rate.parts_per_unit)
            .min(MAX_DEBT_PARTS)
    }
}
