//! `CounterValue`: value of a counter, from which its quota snapshot is computed.

use std::time::Duration;

use super::{ChargeItem, ChargedWindow, GcraRate, QuotaRule, QuotaSnapshot};
use crate::durations::ceil_millis;

/// Latest time in microseconds that Lua counts exactly.
const MAX_TIME_US: u64 = (1 << 53) - 1;

/// Value of a counter after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CounterValue {
    /// `left_ms` is the time left in the window, or a whole window if none has begun.
    Fixed { spent: u64, left_ms: u64 },
    /// `left_ms` is the time left in the current window, at least 1.
    Sliding { previous: u64, spent: u64, left_ms: u64 },
    /// Debts in parts of a unit. `gross_debt` is the debt without refunds. `debt_id` is 0 if there
    /// is no debt.
    Gcra { debt: u64, gross_debt: u64, debt_id: u64 },
}

impl CounterValue {
    /// Returns the value as if `units` fewer had been charged in the same call.
    pub(crate) fn without_units(self, rule: &QuotaRule, units: u64) -> Self {
        match (self, rule) {
            (Self::Fixed { spent, left_ms }, _) => {
                Self::Fixed { spent: spent.saturating_sub(units), left_ms }
            }
            (Self::Sliding { previous, spent, left_ms }, _) => {
                Self::Sliding { previous, spent: spent.saturating_sub(units), left_ms }
            }
            (
                Self::Gcra { debt, gross_debt, debt_id },
                QuotaRule::Gcra { limit, window, burst },
            ) => {
                let parts = GcraRate::new(*limit, *window, *burst).units_to_parts(units);
                Self::Gcra {
                    debt: debt.saturating_sub(parts),
                    gross_debt: gross_debt.saturating_sub(parts),
                    debt_id,
                }
            }
            (unchanged, _) => unchanged,
        }
    }
}

/// Time of a call by the server's clock, and the block of the counter from then on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvaluationContext {
    pub(crate) now_us: u64,
    /// Milliseconds left in the block; 0 = not blocked.
    pub(crate) blocked_ms: u64,
}

impl ChargeItem {
    /// Returns the snapshot of the counter for this item.
    pub(crate) fn evaluate(
        &self,
        value: CounterValue,
        now_us: u64,
        blocked_ms: u64,
    ) -> QuotaSnapshot {
        evaluate(&self.rule, self.cost, value, EvaluationContext { now_us, blocked_ms })
    }
}

/// Returns the snapshot of a counter for a charge of `cost`.
pub(crate) fn evaluate(
    rule: &QuotaRule,
    cost: u64,
    value: CounterValue,
    context: EvaluationContext,
) -> QuotaSnapshot {
    let mut snapshot = match (*rule, value) {
        (QuotaRule::Fixed { limit, .. }, CounterValue::Fixed { spent, left_ms }) => {
            FixedWindow { spent, left_ms }.evaluate(limit, cost, context)
        }
        (
            QuotaRule::Sliding { limit, window },
            CounterValue::Sliding { previous, spent, left_ms },
        ) => {
            let window_ms = ceil_millis(window);
            SlidingWindow { window_ms, previous, spent, left_ms }.evaluate(limit, cost, context)
        }
        (
            QuotaRule::Gcra { limit, window, burst },
            CounterValue::Gcra { debt, gross_debt, debt_id },
        ) => {
            let rate = GcraRate::new(limit, window, burst);
            GcraDebt { debt, gross_debt, debt_id }.evaluate(&rate, cost, context)
        }
        // No store mixes algorithms.
        _ => FixedWindow { spent: 0, left_ms: 0 }.evaluate(0, cost, context),
    };
    if context.blocked_ms > 0 {
        let blocked_for = Duration::from_millis(context.blocked_ms);
        snapshot.blocked_for = Some(blocked_for);
        snapshot.retry_after = snapshot.retry_after.max(blocked_for);
    }
    snapshot
}

/// Current window of a fixed counter.
#[derive(Debug, Clone, Copy)]
struct FixedWindow {
    spent: u64,
    left_ms: u64,
}

impl FixedWindow {
    fn evaluate(self, limit: u64, cost: u64, context: EvaluationContext) -> QuotaSnapshot {
        let ends_in = Duration::from_millis(self.left_ms);
        let remaining = limit.saturating_sub(self.spent);
        let retry_after = if cost == 0 || cost <= remaining {
            Duration::ZERO
        } else if cost > limit {
            Duration::MAX
        } else {
            ends_in
        };
        QuotaSnapshot {
            remaining,
            reset_after: ends_in,
            retry_after,
            full_after: if self.spent == 0 { Duration::ZERO } else { ends_in },
            charged_window: ChargedWindow {
                boundary: context.now_us / 1000 + self.left_ms,
                debt_id: 0,
            },
            blocked_for: None,
        }
    }
}

/// Current and previous window of a sliding counter.
#[derive(Debug, Clone, Copy)]
struct SlidingWindow {
    window_ms: u64,
    previous: u64,
    spent: u64,
    left_ms: u64,
}

impl SlidingWindow {
    fn used_units(&self) -> u64 {
        self.spent.saturating_add(scale_ceil(self.previous, self.left_ms, self.window_ms))
    }

    /// Returns the milliseconds until at most `max_units` are used.
    fn millis_until_at_most(&self, max_units: u64) -> u64 {
        if self.used_units() <= max_units {
            return 0;
        }
        if self.spent <= max_units {
            // Within the current window: the previous one slides out of reach.
            let reach_ms = scale_floor(max_units - self.spent, self.window_ms, self.previous);
            return self.left_ms - reach_ms.min(self.left_ms);
        }
        let reach_ms = scale_floor(max_units, self.window_ms, self.spent);
        self.left_ms + self.window_ms - reach_ms.min(self.window_ms)
    }

    fn evaluate(self, limit: u64, cost: u64, context: EvaluationContext) -> QuotaSnapshot {
        let used_units = self.used_units();
        let retry_after = if cost == 0 {
            Duration::ZERO
        } else if let Some(max_units) = limit.checked_sub(cost) {
            Duration::from_millis(self.millis_until_at_most(max_units))
        } else {
            Duration::MAX
        };
        let full_after_ms = match (self.previous, self.spent) {
            (0, 0) => 0,
            (_, 0) => self.left_ms,
            _ => self.left_ms + self.window_ms,
        };
        QuotaSnapshot {
            remaining: limit.saturating_sub(used_units),
            reset_after: Duration::from_millis(
                used_units.min(limit).checked_sub(1).map_or(0, |n| self.millis_until_at_most(n)),
            ),
            retry_after,
            full_after: Duration::from_millis(full_after_ms),
            charged_window: ChargedWindow {
                boundary: (context.now_us / 1000 + self.left_ms).saturating_sub(self.window_ms),
                debt_id: 0,
            },
            blocked_for: None,
        }
    }
}

/// Debt of a GCRA counter, in parts of a unit.
#[derive(Debug, Clone, Copy)]
struct GcraDebt {
    debt: u64,
    gross_debt: u64,
    debt_id: u64,
}

impl GcraDebt {
    fn evaluate(self, rate: &GcraRate, cost: u64, context: EvaluationContext) -> QuotaSnapshot {
        let time_until_debt = |max_debt: u64| {
            round_up_to_millis(rate.drain_time_us(self.debt.saturating_sub(max_debt)))
        };
        let cost_parts = rate.units_to_parts(cost);
        let retry_after = if cost == 0 {
            Duration::ZERO
        } else if let Some(max_debt) = rate.max_debt.checked_sub(cost_parts) {
            time_until_debt(max_debt)
        } else {
            Duration::MAX
        };
        let remaining = rate.max_debt.saturating_sub(self.debt) / rate.parts_per_unit;
        let next_unit_debt =
            rate.max_debt.saturating_sub((remaining + 1).saturating_mul(rate.parts_per_unit));
        let paid_off_us = context
            .now_us
            .saturating_add((self.gross_debt / rate.parts_per_tick).saturating_mul(rate.tick_us));
        QuotaSnapshot {
            remaining,
            reset_after: if self.debt == 0 {
                Duration::ZERO
            } else {
                time_until_debt(next_unit_debt)
            },
            retry_after,
            full_after: time_until_debt(0),
            charged_window: ChargedWindow {
                boundary: paid_off_us.min(MAX_TIME_US),
                debt_id: self.debt_id,
            },
            blocked_for: None,
        }
    }
}

/// Rounds up to whole milliseconds, the resolution of snapshots.
fn round_up_to_millis(us: u64) -> Duration {
    Duration::from_millis(us.div_ceil(1000))
}

/// Returns `count * numerator / denominator`, rounded up.
pub(crate) fn scale_ceil(count: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(count) * u128::from(numerator);
    u64::try_from(product.div_ceil(u128::from(denominator.max(1)))).unwrap_or(u64::MAX)
}

/// Like [`scale_ceil`], rounded down.
fn scale_floor(count: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(count) * u128::from(numerator);
    u64::try_from(product / u128::from(denominator.max(1))).unwrap_or(u64::MAX)
}
