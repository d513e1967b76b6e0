//! An even rate in whole numbers.

use std::time::Duration;

use crate::clock::micros;

/// Most parts of a debt: half of what Lua counts exactly, so that two can be added.
pub(crate) const PARTS: u64 = 1 << 52;

/// Parts that a tick has to give back at least where the rate is not exact: so it is too low by less than a
/// millionth.
const FINE: u128 = 1 << 20;

/// How the debt of a GCRA counter grows and falls. A unit is so many parts, and each tick gives some back: with
/// limit and window reduced by their greatest common divisor both are integers, and nothing drifts.
///
/// A tick is the shortest of 1 µs, 1 ms and 1 s with which a whole burst stays within 2^52 parts. Where 1 ms is
/// too short for that, the rate is rounded down, by less than a millionth; where it can't be (a small limit, a
/// long window and a burst beyond 2^27), ticks are seconds and the burst is cut to what fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Parts of one unit.
    pub(crate) unit: u64,
    /// Parts that a tick gives back.
    pub(crate) drain: u64,
    /// Microseconds of a tick.
    pub(crate) tick: u64,
    /// Most parts of a debt with which a charge is let in: the burst.
    pub(crate) most: u64,
}

impl Pace {
    pub(crate) fn of(limit: u64, window: Duration, burst: u64) -> Self {
        let limit = limit.clamp(1, super::MOST);
        let burst = burst.min(super::MOST);
        let window = micros(window).max(1);
        let reduced = |tick: u64| {
            // A window that is no whole number of ticks is lengthened: fewer are let in.
            let ticks = window.div_ceil(tick);
            let common = gcd(limit, ticks);
            (ticks / common, limit / common)
        };
        for tick in [1, 1000] {
            let (unit, drain) = reduced(tick);
            if let Some(most) = fits(unit, burst) {
                return Self { unit, drain, tick, most };
            }
        }
        let (unit, drain) = reduced(1000);
        let coarse = (PARTS / burst.max(1)).max(1);
        let rounded = u128::from(drain) * u128::from(coarse) / u128::from(unit);
        if rounded >= FINE
            && let (Some(most), Ok(drain)) = (fits(coarse, burst), u64::try_from(rounded))
        {
            return Self { unit: coarse, drain, tick: 1000, most };
        }
        let (unit, drain) = reduced(1_000_000);
        let most = fits(unit, burst).unwrap_or(PARTS / unit * unit);
        Self { unit, drain, tick: 1_000_000, most }
    }

    /// Parts of so many units, as far as they can be counted.
    pub(crate) fn parts(&self, units: u64) -> u64 {
        units.saturating_mul(self.unit).min(2 * PARTS - 1)
    }

    pub(crate) fn has_the_rate_of(&self, other: &Self) -> bool {
        (self.unit, self.drain, self.tick) == (other.unit, other.drain, other.tick)
    }

    /// Microseconds until a debt has fallen by so much.
    pub(crate) fn time(&self, parts: u64) -> u64 {
        parts.div_ceil(self.drain).saturating_mul(self.tick)
    }
}

fn fits(unit: u64, burst: u64) -> Option<u64> {
    unit.checked_mul(burst).filter(|parts| *parts <= PARTS)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(limit: u64, millis: u64, burst: u64) -> [u64; 4] {
        let Pace { unit, drain, tick, most } =
            Pace::of(limit, Duration::from_millis(millis), burst);
        [unit, drain, tick, most]
    }

    #[test]
    fn rates_are_reduced_and_exact_where_they_can_be() {
        assert_eq!(pace(100, 60_000, 20), [600_000, 1, 1, 12_000_000]);
        assert_eq!(pace(1_000_000, 1000, 5), [1, 1, 1, 5]);
        assert_eq!(pace(3, 7, 1), [7000, 3, 1, 7000]);
        // A prime number a day.
        assert_eq!(pace(997, 86_400_000, 997), [86_400_000_000, 997, 1, 86_400_000_000 * 997]);
    }

    #[test]
    fn what_is_too_much_gets_coarser_ticks_and_never_a_higher_rate() {
        const YEAR: u64 = 365 * 24 * 3600 * 1000;
        let limits =
            [1, 2, 997, 1 << 20, (1 << 31) - 1, super::super::MOST - 27, super::super::MOST];
        let windows = [1, 7, 1000, 60_000, 86_400_000, YEAR - 1, YEAR];
        for limit in limits {
            for window in windows {
                for burst in limits {
                    let at = || format!("{limit} in {window} ms, {burst} at once");
                    let pace = Pace::of(limit, Duration::from_millis(window), burst);
                    assert!(pace.most <= PARTS && pace.drain >= 1 && pace.unit >= 1, "{}", at());
                    assert!(pace.most <= pace.unit.saturating_mul(burst), "{}", at());
                    assert_eq!(pace.most % pace.unit, 0, "{}", at());
                    assert!(pace.most >= pace.unit * burst.min(1 << 20), "{} {pace:?}", at());
                    // Units in a window, by the pace and as asked.
                    let ours = u128::from(pace.drain) * u128::from(window) * 1000;
                    let asked = u128::from(limit) * u128::from(pace.unit) * u128::from(pace.tick);
                    assert!(ours <= asked, "{} {pace:?}", at());
                    // A window of less than a tick is made one.
                    if pace.tick <= 1000 {
                        assert!(ours >= asked - asked / (1 << 20) - 1, "{} {pace:?}", at());
                    }
                }
            }
        }
    }
}
