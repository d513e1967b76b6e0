//! What is kept of a counter, and what that is at a moment.

use std::sync::Arc;

use crate::{
    clock::millis,
    key::Key,
    store::{
        memory::shard::Now,
        rate::{Algorithm, CounterValue, MAX_UNITS, MAX_DEBT_PARTS, GcraRate, QuotaRule, ChargedWindow, scale_ceil},
    },
};

/// What a counter, or what is kept of its refusals, is named by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::store::memory) struct Name {
    pub(super) algorithm: Algorithm,
    pub(super) refusals: bool,
    pub(super) policy: Arc<str>,
    pub(super) subject: Key,
    pub(super) tag: Key,
}

/// What is kept under a name. Unlike other things, it is over at its end, not after it: then `left` is exact.
#[derive(Clone, Copy)]
pub(in crate::store::memory) enum Kept {
    Fixed { spent: u64 },
    Sliding(Windows),
    Gcra { debt: u64, gross: u64, which: u64, since: u64, pace: GcraRate },
    Strikes(u64),
    Blocked,
}

/// Two windows that follow one another; times in ms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::memory) struct Windows {
    pub(super) start: u64,
    pub(super) length: u64,
    before: u64,
    spent: u64,
}

impl Windows {
    pub(super) fn new(now: u64, length: u64, spent: u64) -> Self {
        Self { start: now, length, before: 0, spent }
    }

    /// As they are now, where a window has this length.
    pub(super) fn at(mut self, now: u64, length: u64) -> Self {
        // The clock was put back: what lies in the future begins now.
        self.start = self.start.min(now);
        let since = now - self.start;
        if since >= self.length.saturating_mul(2) {
            return Self::new(now, length, 0);
        }
        if since >= self.length {
            self = Self { start: self.start + self.length, before: self.spent, spent: 0, ..self };
        }
        if self.length == length {
            return self;
        }
        // What counts now falls from now on, as if it had been spent in the window before.
        Self { start: now, length, before: self.used(now), spent: 0 }
    }

    pub(super) fn left(&self, now: u64) -> u64 {
        self.start + self.length - now
    }

    fn used(&self, now: u64) -> u64 {
        (self.spent + scale_ceil(self.before, self.left(now), self.length)).min(MAX_UNITS)
    }

    /// When nothing of it counts any more.
    pub(super) fn end(&self) -> u64 {
        self.start + if self.spent > 0 { self.length * 2 } else { self.length }
    }
}

/// What a counter holds at the moment of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Present {
    /// `end` of the window; of the one that would begin now.
    Fixed {
        spent: u64,
        end: u64,
    },
    Sliding(Windows),
    /// `gross`: without refunds. `which` debt it is; 0 until it is kept.
    Gcra {
        debt: u64,
        gross: u64,
        which: u64,
        pace: GcraRate,
    },
}

impl Present {
    pub(super) fn count(&self, now: Now) -> CounterValue {
        match self {
            Self::Fixed { spent, end } => CounterValue::Fixed { spent: *spent, left_ms: end - now.ms },
            Self::Sliding(windows) => CounterValue::Sliding {
                previous: windows.before,
                spent: windows.spent,
                left_ms: windows.left(now.ms),
            },
            Self::Gcra { debt, gross, which, .. } => {
                CounterValue::Gcra { debt: *debt, gross_debt: *gross, debt_id: *which }
            }
        }
    }

    /// How often `cost` fits in.
    pub(super) fn room(&self, rule: &QuotaRule, cost: u64, now: Now) -> u64 {
        let fits = |most: u64, used: u64, cost: u64| most.saturating_sub(used).checked_div(cost);
        let room = match (self, rule) {
            (Self::Gcra { debt, pace, .. }, _) => fits(pace.max_debt, *debt, pace.units_to_parts(cost)),
            (Self::Fixed { spent, .. }, QuotaRule::Fixed { limit, .. }) => fits(*limit, *spent, cost),
            (Self::Sliding(windows), QuotaRule::Sliding { limit, .. }) => {
                fits(*limit, windows.used(now.ms), cost)
            }
            _ => Some(0),
        };
        room.unwrap_or(u64::MAX)
    }

    pub(super) fn spend(&mut self, units: u64) {
        let add =
            |spent: &mut u64, units: u64, most| *spent = spent.saturating_add(units).min(most);
        match self {
            Self::Fixed { spent, .. } => add(spent, units, MAX_UNITS),
            Self::Sliding(windows) => add(&mut windows.spent, units, MAX_UNITS),
            Self::Gcra { debt, gross, pace, .. } => {
                let parts = pace.units_to_parts(units);
                add(debt, parts, MAX_DEBT_PARTS);
                add(gross, parts, MAX_DEBT_PARTS);
            }
        }
    }

    /// Gives back what is still there of that window, or that debt.
    pub(super) fn refund(&mut self, units: u64, window: ChargedWindow, rule: &QuotaRule, now: Now) {
        // Two readings of a clock, each rounded; and no mistaking a very short window for the next one.
        let near = ((millis(rule.window()) - 1) / 2).min(2);
        match self {
            Self::Fixed { spent, end } if end.abs_diff(window.boundary) <= near => {
                *spent = spent.saturating_sub(units);
            }
            Self::Sliding(windows) if windows.start == window.boundary => {
                windows.spent = windows.spent.saturating_sub(units);
            }
            Self::Sliding(windows) if windows.start == window.boundary + windows.length => {
                windows.before = windows.before.saturating_sub(units);
            }
            // No more than is sure to be owed still: if debts are paid off in the order they were made, and all
            // that was given back was of those before this one.
            Self::Gcra { debt, gross, which, pace } if *which == window.debt_id && *gross < MAX_DEBT_PARTS => {
                let ticks = window.boundary.saturating_sub(now.us) / pace.tick_us;
                let owed = ticks.saturating_mul(pace.parts_per_tick).saturating_sub(*gross - *debt);
                *debt = debt.saturating_sub(pace.units_to_parts(units).min(owed));
            }
            Self::Fixed { .. } | Self::Sliding(_) | Self::Gcra { .. } => {}
        }
    }
}

/// What is left of a debt, in the parts of a pace that may be another by now: until now the old one counts.
pub(super) fn owed(debt: u64, since: u64, old: &GcraRate, new: &GcraRate, now: Now) -> u64 {
    let ticks = now.us.saturating_sub(since) / old.tick_us;
    let left = debt.saturating_sub(ticks.saturating_mul(old.parts_per_tick));
    if old.parts_per_unit == new.parts_per_unit { left } else { scale_ceil(left, new.parts_per_unit, old.parts_per_unit).min(MAX_DEBT_PARTS) }
}
