//! `GcraRate`: an even rate in integers.

use std::time::Duration;

use crate::durations::saturating_micros;

/// Maximum debt in parts: half of the range that Lua counts exactly, so that two debts can be
/// added.
pub(crate) const MAX_DEBT_PARTS: u64 = 1 << 52;

/// Minimum of parts per tick if the rate is not exact, so that it is too low by less than a
/// millionth.
const MIN_PARTS_PER_TICK: u128 = 1 << 20;

/// Growth and decline of a GCRA counter's debt. A charge adds `parts_per_unit` for each unit, and
/// each tick pays off `parts_per_tick`. Limit and window are divided by their greatest common
/// divisor, so both numbers are integers and nothing drifts.
///
/// A tick is the shortest of 1 µs, 1 ms and 1 s for which a whole burst is at most
/// [`MAX_DEBT_PARTS`]. If 1 ms is too short, the rate is rounded down instead, by less than a
/// millionth. If that is impossible (a small limit, a long window and a burst beyond 2^27), a tick
/// is 1 s and the burst is capped at the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GcraRate {
    /// Parts of one unit.
    pub(crate) parts_per_unit: u64,
    /// Parts that a tick pays off.
    pub(crate) parts_per_tick: u64,
    /// Length of a tick in microseconds.
    pub(crate) tick_us: u64,
    /// Maximum debt with which a charge is admitted: the burst, in parts.
    pub(crate) max_debt: u64,
}

impl GcraRate {
    pub(crate) fn new(limit: u64, window: Duration, burst: u64) -> Self {
        let limit = limit.clamp(1, super::MAX_UNITS);
        let burst = burst.min(super::MAX_UNITS);
        let window = saturating_micros(window).max(1);
        let reduced_parts = |tick_us: u64| {
            // A window that is not a whole number of ticks is lengthened, which admits fewer.
            let ticks = window.div_ceil(tick_us);
            let divisor = gcd(limit, ticks);
            (ticks / divisor, limit / divisor)
        };
        for tick_us in [1, 1000] {
            let (parts_per_unit, parts_per_tick) = reduced_parts(tick_us);
            if let Some(max_debt) = burst_parts(parts_per_unit, burst) {
                return Self { parts_per_unit, parts_per_tick, tick_us, max_debt };
            }
        }
        let (exact_unit, exact_tick) = reduced_parts(1000);
        let parts_per_unit = (MAX_DEBT_PARTS / burst.max(1)).max(1);
        let rounded_tick =
            u128::from(exact_tick) * u128::from(parts_per_unit) / u128::from(exact_unit);
        if rounded_tick >= MIN_PARTS_PER_TICK
            && let (Some(max_debt), Ok(parts_per_tick)) =
                (burst_parts(parts_per_unit, burst), u64::try_from(rounded_tick))
        {
            return Self { parts_per_unit, parts_per_tick, tick_us: 1000, max_debt };
        }
        let (parts_per_unit, parts_per_tick) = reduced_parts(1_000_000);
        let max_debt = burst_parts(parts_per_unit, burst)
            .unwrap_or(MAX_DEBT_PARTS / parts_per_unit * parts_per_unit);
        Self { parts_per_unit, parts_per_tick, tick_us: 1_000_000, max_debt }
    }

    /// Converts units to parts, saturating.
    pub(crate) fn units_to_parts(&self, units: u64) -> u64 {
        units.saturating_mul(self.parts_per_unit).min(2 * MAX_DEBT_PARTS - 1)
    }

    pub(crate) fn has_same_rate(&self, other: &Self) -> bool {
        (self.parts_per_unit, self.parts_per_tick, self.tick_us)
            == (other.parts_per_unit, other.parts_per_tick, other.tick_us)
    }

    /// Returns the microseconds until a debt has fallen by `parts`.
    pub(crate) fn drain_time_us(&self, parts: u64) -> u64 {
        parts.div_ceil(self.parts_per_tick).saturating_mul(self.tick_us)
    }
}

fn burst_parts(parts_per_unit: u64, burst: u64) -> Option<u64> {
    parts_per_unit.checked_mul(burst).filter(|parts| *parts <= MAX_DEBT_PARTS)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_parts(limit: u64, millis: u64, burst: u64) -> [u64; 4] {
        let GcraRate { parts_per_unit, parts_per_tick, tick_us, max_debt } =
            GcraRate::new(limit, Duration::from_millis(millis), burst);
        [parts_per_unit, parts_per_tick, tick_us, max_debt]
    }

    #[test]
    fn representable_rates_are_reduced_and_exact() {
        assert_eq!(rate_parts(100, 60_000, 20), [600_000, 1, 1, 12_000_000]);
        assert_eq!(rate_parts(1_000_000, 1000, 5), [1, 1, 1, 5]);
        assert_eq!(rate_parts(3, 7, 1), [7000, 3, 1, 7000]);
        // A prime number a day.
        assert_eq!(
            rate_parts(997, 86_400_000, 997),
            [86_400_000_000, 997, 1, 86_400_000_000 * 997]
        );
    }

    #[test]
    fn large_rates_get_coarser_ticks_and_never_exceed_quota() {
        const YEAR: u64 = 365 * 24 * 3600 * 1000;
        let limits = [
            1,
            2,
            997,
            1 << 20,
            (1 << 31) - 1,
            super::super::MAX_UNITS - 27,
            super::super::MAX_UNITS,
        ];
        let windows = [1, 7, 1000, 60_000, 86_400_000, YEAR - 1, YEAR];
        for limit in limits {
            for window in windows {
                for burst in limits {
                    let at = || format!("{limit} in {window} ms, {burst} at once");
                    let rate = GcraRate::new(limit, Duration::from_millis(window), burst);
                    assert!(
                        rate.max_debt <= MAX_DEBT_PARTS
                            && rate.parts_per_tick >= 1
                            && rate.parts_per_unit >= 1,
                        "{}",
                        at()
                    );
                    assert!(rate.max_debt <= rate.parts_per_unit.saturating_mul(burst), "{}", at());
                    assert_eq!(rate.max_debt % rate.parts_per_unit, 0, "{}", at());
                    assert!(
                        rate.max_debt >= rate.parts_per_unit * burst.min(1 << 20),
                        "{} {rate:?}",
                        at()
                    );
                    // Parts in a window, by the rate and by the quota.
                    let rate_units = u128::from(rate.parts_per_tick) * u128::from(window) * 1000;
                    let quota_units = u128::from(limit)
                        * u128::from(rate.parts_per_unit)
                        * u128::from(rate.tick_us);
                    assert!(rate_units <= quota_units, "{} {rate:?}", at());
                    // A window of less than a tick is made one.
                    if rate.tick_us <= 1000 {
                        assert!(
                            rate_units >= quota_units - quota_units / (1 << 20) - 1,
                            "{} {rate:?}",
                            at()
                        );
                    }
                }
            }
        }
    }
}
