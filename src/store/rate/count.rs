//! From what a counter holds to what it says.

use std::time::Duration;

use super::{Item, Pace, Rule, State, Window};
use crate::clock::millis;

/// The last moment, in microseconds: Lua counts no further.
const LAST: u64 = (1 << 53) - 1;

/// What a counter holds after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// `left`: ms of the window; of a whole one, if none has begun.
    Fixed { spent: u64, left: u64 },
    /// `left`: ms of the present window, at least 1.
    Sliding { before: u64, spent: u64, left: u64 },
    /// Parts. `gross`: what the debt would be if nothing had been given back. `which` debt it is, 0 if there is none.
    Gcra { debt: u64, gross: u64, which: u64 },
}

impl Count {
    /// What it was when so many units fewer had been charged in the same call.
    pub(crate) fn earlier(self, rule: &Rule, units: u64) -> Self {
        match (self, rule) {
            (Self::Fixed { spent, left }, _) => {
                Self::Fixed { spent: spent.saturating_sub(units), left }
            }
            (Self::Sliding { before, spent, left }, _) => {
                Self::Sliding { before, spent: spent.saturating_sub(units), left }
            }
            (Self::Gcra { debt, gross, which }, Rule::Gcra { limit, window, burst }) => {
                let parts = Pace::of(*limit, *window, *burst).parts(units);
                let [debt, gross] = [debt, gross].map(|all| all.saturating_sub(parts));
                Self::Gcra { debt, gross, which }
            }
            (same, _) => same,
        }
    }
}

/// When a call ran, by the server's clock, and for how long the counter is blocked from then on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now_us: u64,
    /// Milliseconds; 0 = it is not.
    pub(crate) blocked: u64,
}

impl Item {
    /// What the counter says to this item.
    pub(crate) fn state(&self, count: Count, now_us: u64, blocked: u64) -> State {
        state(&self.rule, self.cost, count, Moment { now_us, blocked })
    }
}

/// What a counter says to whoever would spend `cost`.
pub(crate) fn state(rule: &Rule, cost: u64, count: Count, at: Moment) -> State {
    let mut state = match (*rule, count) {
        (Rule::Fixed { limit, .. }, Count::Fixed { spent, left }) => {
            fixed(limit, cost, [spent, left], at)
        }
        (Rule::Sliding { limit, window }, Count::Sliding { before, spent, left }) => {
            let sliding = Sliding { window: millis(window), before, spent, left };
            sliding.state(limit, cost, at)
        }
        (Rule::Gcra { limit, window, burst }, Count::Gcra { debt, gross, which }) => {
            gcra(&Pace::of(limit, window, burst), cost, [debt, gross, which], at)
        }
        // No store mixes them up.
        _ => fixed(0, cost, [0, 0], at),
    };
    if at.blocked > 0 {
        let blocked = Duration::from_millis(at.blocked);
        state.blocked = Some(blocked);
        state.retry = state.retry.max(blocked);
    }
    state
}

fn fixed(limit: u64, cost: u64, [spent, left]: [u64; 2], at: Moment) -> State {
    let left_over = Duration::from_millis(left);
    let remaining = limit.saturating_sub(spent);
    let retry = if cost == 0 || cost <= remaining {
        Duration::ZERO
    } else if cost > limit {
        Duration::MAX
    } else {
        left_over
    };
    State {
        remaining,
        reset: left_over,
        retry,
        full: if spent == 0 { Duration::ZERO } else { left_over },
        window: Window { at: at.now_us / 1000 + left, debt: 0 },
        blocked: None,
    }
}

/// Two windows of a sliding counter.
#[derive(Debug, Clone, Copy)]
struct Sliding {
    window: u64,
    before: u64,
    spent: u64,
    left: u64,
}

impl Sliding {
    fn used(&self) -> u64 {
        self.spent.saturating_add(part(self.before, self.left, self.window))
    }

    /// Milliseconds until at most so much is used.
    fn until(&self, most: u64) -> u64 {
        if self.used() <= most {
            return 0;
        }
        if self.spent <= most {
            // Within this window: the previous one moves out of reach.
            let reach = floor(most - self.spent, self.window, self.before);
            return self.left - reach.min(self.left);
        }
        let reach = floor(most, self.window, self.spent);
        self.left + self.window - reach.min(self.window)
    }

    fn state(self, limit: u64, cost: u64, at: Moment) -> State {
        let used = self.used();
        let retry = if cost == 0 {
            Duration::ZERO
        } else if let Some(most) = limit.checked_sub(cost) {
            Duration::from_millis(self.until(most))
        } else {
            Duration::MAX
        };
        let full = match (self.before, self.spent) {
            (0, 0) => 0,
            (_, 0) => self.left,
            _ => self.left + self.window,
        };
        State {
            remaining: limit.saturating_sub(used),
            reset: Duration::from_millis(
                used.min(limit).checked_sub(1).map_or(0, |n| self.until(n)),
            ),
            retry,
            full: Duration::from_millis(full),
            window: Window {
                at: (at.now_us / 1000 + self.left).saturating_sub(self.window),
                debt: 0,
            },
            blocked: None,
        }
    }
}

fn gcra(pace: &Pace, cost: u64, [debt, gross, which]: [u64; 3], at: Moment) -> State {
    let until = |most: u64| after(pace.time(debt.saturating_sub(most)));
    let room = pace.most.saturating_sub(debt);
    let parts = pace.parts(cost);
    let retry = if cost == 0 {
        Duration::ZERO
    } else if let Some(most) = pace.most.checked_sub(parts) {
        until(most)
    } else {
        Duration::MAX
    };
    let remaining = room / pace.unit;
    let next = pace.most.saturating_sub((remaining + 1).saturating_mul(pace.unit));
    let paid_off = at.now_us.saturating_add((gross / pace.drain).saturating_mul(pace.tick));
    State {
        remaining,
        reset: if debt == 0 { Duration::ZERO } else { until(next) },
        retry,
        full: until(0),
        window: Window { at: paid_off.min(LAST), debt: which },
        blocked: None,
    }
}

/// Whole milliseconds, rounded up: nothing is told more finely.
fn after(us: u64) -> Duration {
    Duration::from_millis(us.div_ceil(1000))
}

/// `count * left / window`, rounded up.
pub(crate) fn part(count: u64, left: u64, window: u64) -> u64 {
    let whole = u128::from(count) * u128::from(left);
    u64::try_from(whole.div_ceil(u128::from(window.max(1)))).unwrap_or(u64::MAX)
}

fn floor(count: u64, times: u64, by: u64) -> u64 {
    let whole = u128::from(count) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(whole).unwrap_or(u64::MAX)
}
