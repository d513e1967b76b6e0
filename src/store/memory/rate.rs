//! `charge.lua`, `settle_charge.lua` and `reset_charges.lua`: what was spent of quotas.

use std::sync::Arc;

use super::shard::{Now, SWEEP, Shard};
use crate::{
    clock::millis,
    key::Key,
    store::rate::{
        Algorithm, By, Charge, Charged, Count, Counter, Item, MOST, PARTS, Pace, Penalty, Rule,
        SettleCharge, Settled, State, part,
    },
};

/// What a counter, or what is kept of its refusals, is named by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    algorithm: Algorithm,
    refusals: bool,
    policy: Arc<str>,
    subject: Key,
    tag: Key,
}

/// What is kept under a name. Unlike other things, it is over at its end, not after it: then `left` is exact.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    Fixed { spent: u64 },
    Sliding(Windows),
    Gcra { debt: u64, since: u64, pace: Pace },
    Strikes(u64),
    Blocked,
}

/// Two windows that follow one another; times in ms.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    start: u64,
    length: u64,
    before: u64,
    spent: u64,
}

impl Windows {
    fn new(now: u64, length: u64, spent: u64) -> Self {
        Self { start: now, length, before: 0, spent }
    }

    /// As they are now, where a window has this length.
    fn at(mut self, now: u64, length: u64) -> Self {
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

    fn left(&self, now: u64) -> u64 {
        self.start + self.length - now
    }

    fn used(&self, now: u64) -> u64 {
        (self.spent + part(self.before, self.left(now), self.length)).min(MOST)
    }

    /// When nothing of it counts any more.
    fn end(&self) -> u64 {
        self.start + if self.spent > 0 { self.length * 2 } else { self.length }
    }
}

/// A counter during a step.
struct Open {
    name: Name,
    at: Present,
    /// Ms for which a penalty blocks it.
    blocked: u64,
}

/// What a counter holds at the moment of a step.
#[derive(Clone, Copy)]
enum Present {
    /// `end` of the window; of the one that would begin now.
    Fixed {
        spent: u64,
        end: u64,
    },
    Sliding(Windows),
    Gcra {
        debt: u64,
        pace: Pace,
    },
}

impl Present {
    fn count(&self, now: Now) -> Count {
        match self {
            Self::Fixed { spent, end } => Count::Fixed { spent: *spent, left: end - now.ms },
            Self::Sliding(windows) => Count::Sliding {
                before: windows.before,
                spent: windows.spent,
                left: windows.left(now.ms),
            },
            Self::Gcra { debt, .. } => Count::Gcra { debt: *debt },
        }
    }

    /// How often `cost` fits in.
    fn room(&self, rule: &Rule, cost: u64, now: Now) -> u64 {
        let fits = |most: u64, used: u64, cost: u64| most.saturating_sub(used).checked_div(cost);
        let room = match (self, rule) {
            (Self::Gcra { debt, pace }, _) => fits(pace.most, *debt, pace.parts(cost)),
            (Self::Fixed { spent, .. }, Rule::Fixed { limit, .. }) => fits(*limit, *spent, cost),
            (Self::Sliding(windows), Rule::Sliding { limit, .. }) => {
                fits(*limit, windows.used(now.ms), cost)
            }
            _ => Some(0),
        };
        room.unwrap_or(u64::MAX)
    }

    fn spend(&mut self, units: u64) {
        let add =
            |spent: &mut u64, units: u64, most| *spent = spent.saturating_add(units).min(most);
        match self {
            Self::Fixed { spent, .. } => add(spent, units, MOST),
            Self::Sliding(windows) => add(&mut windows.spent, units, MOST),
            Self::Gcra { debt, pace } => {
                let parts = pace.parts(units);
                add(debt, parts, PARTS);
            }
        }
    }

    /// Gives back what is still there of that window.
    fn refund(&mut self, units: u64, window: u64, rule: &Rule, now: Now) {
        // Two readings of a clock, each rounded; and no mistaking a very short window for the next one.
        let near = ((millis(rule.window()) - 1) / 2).min(2);
        match self {
            Self::Fixed { spent, end } if end.abs_diff(window) <= near => {
                *spent = spent.saturating_sub(units);
            }
            Self::Sliding(windows) if windows.start == window => {
                windows.spent = windows.spent.saturating_sub(units);
            }
            Self::Sliding(windows) if windows.start == window + windows.length => {
                windows.before = windows.before.saturating_sub(units);
            }
            Self::Gcra { debt, pace } => {
                let owed = window.saturating_sub(now.us) / pace.tick;
                let parts = pace.parts(units).min(owed.saturating_mul(pace.drain));
                *debt = debt.saturating_sub(parts);
            }
            Self::Fixed { .. } | Self::Sliding(_) => {}
        }
    }
}

impl Shard {
    /// `charge.lua`: no counter is named twice.
    pub(super) fn charge(&mut self, call: &Charge, now: Now) -> Charged {
        let mut open: Vec<_> =
            call.items.iter().map(|item| self.open(&call.tag, item, now)).collect();
        let each = || call.items.iter().zip(&open);
        let room = |(item, open): (&Item, &Open)| {
            if open.blocked > 0 { 0 } else { open.at.room(&item.rule, item.cost, now) }
        };
        let times = u64::from(call.times);
        let admitted = each().map(room).min().unwrap_or(times).min(times);
        let refused = times - admitted;
        for (item, open) in call.items.iter().zip(&mut open) {
            let blames = refused > 0
                && open.at.room(&item.rule, item.cost, now) <= admitted
                && !never(&item.rule, item.cost);
            if admitted > 0 && item.cost > 0 {
                open.at.spend(admitted * item.cost);
                self.keep(open, now);
            }
            if let Some(penalty) = item.penalty.filter(|_| blames && open.blocked == 0) {
                open.blocked = self.strike(&open.name, &item.rule, penalty, refused, now);
            }
        }
        self.counters.sweep(now.ms, SWEEP + call.items.len());
        let state =
            |(item, open): (&Item, &Open)| item.state(open.at.count(now), now.us, open.blocked);
        let states = call.items.iter().zip(&open).map(state).collect();
        // No more than `times`.
        let admitted = u32::try_from(admitted).unwrap_or(call.times);
        Charged { admitted, states }
    }

    /// `settle_charge.lua`.
    pub(super) fn settle_charge(&mut self, call: &SettleCharge, now: Now) -> Vec<State> {
        let one = |settled: &Settled| {
            let item = Item {
                policy: Arc::clone(&settled.policy),
                subject: settled.subject.clone(),
                rule: settled.rule,
                cost: 0,
                penalty: None,
            };
            let mut open = self.open(&call.tag, &item, now);
            match settled.by {
                By::Charge { units: 0 } => {}
                By::Charge { units } => {
                    open.at.spend(units);
                    self.keep(&open, now);
                }
                By::Refund { units, window } => {
                    open.at.refund(units, window, &item.rule, now);
                    if self.counters.end_of(&open.name).is_some_and(|end| end > now.ms) {
                        self.keep(&open, now);
                    }
                }
            }
            item.state(open.at.count(now), now.us, 0)
        };
        call.items.iter().map(one).collect()
    }

    /// `reset_charges.lua`.
    pub(super) fn reset_charges(&mut self, tag: &Key, counters: &[Counter]) {
        for Counter { policy, subject, algorithm } in counters {
            for refusals in [false, true] {
                self.counters.remove(&Name {
                    algorithm: *algorithm,
                    refusals,
                    policy: Arc::clone(policy),
                    subject: subject.clone(),
                    tag: tag.clone(),
                });
            }
        }
    }

    fn open(&mut self, tag: &Key, item: &Item, now: Now) -> Open {
        let name = Name {
            algorithm: item.rule.algorithm(),
            refusals: false,
            policy: Arc::clone(&item.policy),
            subject: item.subject.clone(),
            tag: tag.clone(),
        };
        let window = item.rule.window();
        let kept = self.kept(&name, now);
        // Another quota, or a clock that was put back: what was spent counts from now on by what is so now, also
        // if nothing is charged. What is told would not come true otherwise.
        let mut repair = false;
        let at = match item.rule {
            Rule::Fixed { .. } => {
                let whole = now.after(window);
                let (spent, end) = match kept {
                    Some((Kept::Fixed { spent }, end)) => (spent, end),
                    _ => (0, whole),
                };
                if end > whole {
                    // A window of a quota that was longer, or of a clock that was put back.
                    self.counters.end_at(&name, Some(whole));
                }
                Present::Fixed { spent, end: end.min(whole) }
            }
            Rule::Sliding { .. } => {
                let length = millis(window);
                Present::Sliding(match kept {
                    Some((Kept::Sliding(windows), _)) => {
                        repair = windows.start > now.ms || windows.length != length;
                        windows.at(now.ms, length)
                    }
                    _ => Windows::new(now.ms, length, 0),
                })
            }
            Rule::Gcra { limit, burst, .. } => {
                let pace = Pace::of(limit, window, burst);
                let debt = match kept {
                    Some((Kept::Gcra { debt, since, pace: old }, _)) => {
                        repair = since > now.us || !old.has_the_rate_of(&pace);
                        owed(debt, since, &old, &pace, now)
                    }
                    _ => 0,
                };
                Present::Gcra { debt, pace }
            }
        };
        let blocked = item.penalty.map_or(0, |penalty| self.blocked(&name, penalty, now));
        let open = Open { name, at, blocked };
        if repair {
            self.keep(&open, now);
        }
        open
    }

    fn kept(&self, name: &Name, now: Now) -> Option<(Kept, u64)> {
        let end = self.counters.end_of(name).filter(|end| *end > now.ms)?;
        Some((*self.counters.get(name, now.ms)?, end))
    }

    fn keep(&mut self, open: &Open, now: Now) {
        let (kept, end) = match open.at {
            Present::Fixed { spent, end } => (Kept::Fixed { spent }, end),
            Present::Sliding(windows) => (Kept::Sliding(windows), windows.end()),
            Present::Gcra { debt, pace } => {
                let since = now.us - now.us % pace.tick;
                let end = now.ms.saturating_add(pace.time(debt).div_ceil(1000));
                (Kept::Gcra { debt, since, pace }, end)
            }
        };
        if end > now.ms {
            self.counters.put(&open.name, kept, Some(end));
        } else {
            self.counters.remove(&open.name);
        }
    }

    fn blocked(&mut self, name: &Name, penalty: Penalty, now: Now) -> u64 {
        let (name, whole) = (refusals(name), now.after(penalty.block));
        match self.kept(&name, now) {
            Some((Kept::Blocked, end)) if end > whole => {
                self.counters.end_at(&name, Some(whole));
                whole - now.ms
            }
            Some((Kept::Blocked, end)) => end - now.ms,
            _ => 0,
        }
    }

    /// Counts refusals; how long the counter is blocked for, in ms.
    fn strike(
        &mut self,
        name: &Name,
        rule: &Rule,
        penalty: Penalty,
        refused: u64,
        now: Now,
    ) -> u64 {
        let name = refusals(name);
        let whole = now.after(rule.window());
        let (before, end) = match self.kept(&name, now) {
            Some((Kept::Strikes(n), end)) => (n, end.min(whole)),
            _ => (0, whole),
        };
        let strikes = before + refused;
        if strikes < u64::from(penalty.after) {
            self.counters.put(&name, Kept::Strikes(strikes), Some(end));
            return 0;
        }
        self.counters.put(&name, Kept::Blocked, Some(now.after(penalty.block)));
        millis(penalty.block)
    }
}

fn refusals(name: &Name) -> Name {
    Name { refusals: true, ..name.clone() }
}

/// Whether such a cost can never be let in.
fn never(rule: &Rule, cost: u64) -> bool {
    match *rule {
        Rule::Fixed { limit, .. } | Rule::Sliding { limit, .. } => cost > limit,
        Rule::Gcra { limit, window, burst } => {
            let pace = Pace::of(limit, window, burst);
            pace.parts(cost) > pace.most
        }
    }
}

/// What is left of a debt, in the parts of a pace that may be another by now: until now the old one counts.
fn owed(debt: u64, since: u64, old: &Pace, new: &Pace, now: Now) -> u64 {
    let ticks = now.us.saturating_sub(since) / old.tick;
    let left = debt.saturating_sub(ticks.saturating_mul(old.drain));
    if old.unit == new.unit { left } else { part(left, new.unit, old.unit).min(PARTS) }
}
