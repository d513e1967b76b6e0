//! `CounterValue`: value of a counter, from which its quota snapshot is computed.

use std::time::Duration;

use super::{ChargeItem, ChargedWindow, GcraRate, QuotaRule, QuotaSnapshot};
use crate::clock::ceil_millis;

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
            (Self::Fixed { spent, left_ms: left }, _) => {
                Self::Fixed { spent: spent.saturating_sub(units), left_ms: left }
            }
            (Self::Sliding { previous: before, spent, left_ms: left }, _) => Self::Sliding {
                previous: before,
                spent: spent.saturating_sub(units),
                left_ms: left,
            },
            (
                Self::Gcra { debt, gross_debt: gross, debt_id: which },
                QuotaRule::Gcra { limit, window, burst },
            ) => {
                let parts = GcraRate::new(*limit, *window, *burst).units_to_parts(units);
                let [debt, gross] = [debt, gross].map(|all| all.saturating_sub(parts));
                Self::Gcra { debt, gross_debt: gross, debt_id: which }
            }
            (same, _) => same,
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
    pub(crate) fn evaluate(&self, count: CounterValue, now_us: u64, blocked: u64) -> QuotaSnapshot {
        evaluate(&self.rule, self.cost, count, EvaluationContext { now_us, blocked_ms: blocked })
    }
}

/// Returns the snapshot of a counter for a charge of `cost`.
pub(crate) fn evaluate(
    rule: &QuotaRule,
    cost: u64,
    count: CounterValue,
    at: EvaluationContext,
) -> QuotaSnapshot {
    let mut state = match (*rule, count) {
        (QuotaRule::Fixed { limit, .. }, CounterValue::Fixed { spent, left_ms: left }) => {
            evaluate_fixed(limit, cost, [spent, left], at)
        }
        (
            QuotaRule::Sliding { limit, window },
            CounterValue::Sliding { previous: before, spent, left_ms: left },
        ) => {
            let sliding = SlidingWindow {
                window_ms: ceil_millis(window),
                previous: before,
                spent,
                left_ms: left,
            };
            sliding.evaluate(limit, cost, at)
        }
        (
            QuotaRule::Gcra { limit, window, burst },
            CounterValue::Gcra { debt, gross_debt: gross, debt_id: which },
        ) => evaluate_gcra(&GcraRate::new(limit, window, burst), cost, [debt, gross, which], at),
        // No store mixes algorithms.
        _ => evaluate_fixed(0, cost, [0, 0], at),
    };
    if at.blocked_ms > 0 {
        let blocked = Duration::from_millis(at.blocked_ms);
        state.blocked_for = Some(blocked);
        state.retry_after = state.retry_after.max(blocked);
    }
    state
}

fn evaluate_fixed(
    limit: u64,
    cost: u64,
    [spent, left]: [u64; 2],
    at: EvaluationContext,
) -> QuotaSnapshot {
    let left_over = Duration::from_millis(left);
    let remaining = limit.saturating_sub(spent);
    let retry = if cost == 0 || cost <= remaining {
        Duration::ZERO
    } else if cost > limit {
        Duration::MAX
    } else {
        left_over
    };
    QuotaSnapshot {
        remaining,
        reset_after: left_over,
        retry_after: retry,
        full_after: if spent == 0 { Duration::ZERO } else { left_over },
        charged_window: ChargedWindow { boundary: at.now_us / 1000 + left, debt_id: 0 },
        blocked_for: None,
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

    /// Returns the milliseconds until at most `most` units are used.
    fn millis_until_at_most(&self, most: u64) -> u64 {
        if self.used_units() <= most {
            return 0;
        }
        if self.spent <= most {
            // Within the current window: the previous one slides out of reach.
            let reach = scale_floor(most - self.spent, self.window_ms, self.previous);
            return self.left_ms - reach.min(self.left_ms);
        }
        let reach = scale_floor(most, self.window_ms, self.spent);
        self.left_ms + self.window_ms - reach.min(self.window_ms)
    }

    fn evaluate(self, limit: u64, cost: u64, at: EvaluationContext) -> QuotaSnapshot {
        let used = self.used_units();
        let retry = if cost == 0 {
            Duration::ZERO
        } else if let Some(most) = limit.checked_sub(cost) {
            Duration::from_millis(self.millis_until_at_most(most))
        } else {
            Duration::MAX
        };
        let full = match (self.previous, self.spent) {
            (0, 0) => 0,
            (_, 0) => self.left_ms,
            _ => self.left_ms + self.window_ms,
        };
        QuotaSnapshot {
            remaining: limit.saturating_sub(used),
            reset_after: Duration::from_millis(
                used.min(limit).checked_sub(1).map_or(0, |n| self.millis_until_at_most(n)),
            ),
            retry_after: retry,
            full_after: Duration::from_millis(full),
            charged_window: ChargedWindow {
                boundary: (at.now_us / 1000 + self.left_ms).saturating_sub(self.window_ms),
                debt_id: 0,
            },
            blocked_for: None,
        }
    }
}

fn evaluate_gcra(
    pace: &GcraRate,
    cost: u64,
    [debt, gross, which]: [u64; 3],
    at: EvaluationContext,
) -> QuotaSnapshot {
    let until = |most: u64| round_up_to_millis(pace.drain_time_us(debt.saturating_sub(most)));
    let room = pace.max_debt.saturating_sub(debt);
    let parts = pace.units_to_parts(cost);
    let retry = if cost == 0 {
        Duration::ZERO
    } else if let Some(most) = pace.max_debt.checked_sub(parts) {
        until(most)
    } else {
        Duration::MAX
    };
    let remaining = room / pace.parts_per_unit;
    let next = pace.max_debt.saturating_sub((remaining + 1).saturating_mul(pace.parts_per_unit));
    let paid_off =
        at.now_us.saturating_add((gross / pace.parts_per_tick).saturating_mul(pace.tick_us));
    QuotaSnapshot {
        remaining,
        reset_after: if debt == 0 { Duration::ZERO } else { until(next) },
        retry_after: retry,
        full_after: until(0),
        charged_window: ChargedWindow { boundary: paid_off.min(MAX_TIME_US), debt_id: which },
        blocked_for: None,
    }
}

/// Rounds up to whole milliseconds, the resolution of snapshots.
fn round_up_to_millis(us: u64) -> Duration {
    Duration::from_millis(us.div_ceil(1000))
}

/// Returns `count * left / window`, rounded up.
pub(crate) fn scale_ceil(count: u64, left: u64, window: u64) -> u64 {
    let whole = u128::from(count) * u128::from(left);
    u64::try_from(whole.div_ceil(u128::from(window.max(1)))).unwrap_or(u64::MAX)
}

fn scale_floor(count: u64, times: u64, by: u64) -> u64 {
    let whole = u128::from(count) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(whole).unwrap_or(u64::MAX)
}
