//! `charge.lua`, `settle_charge.lua` and `reset_charges.lua`: what was spent of quotas.

mod present;

use std::sync::Arc;

pub(super) use self::present::{Kept, Name};
use self::present::{Present, Windows, owed};
use super::shard::{Now, SWEEP, Shard};
use crate::{
    clock::millis,
    key::Key,
    store::rate::{
        AdjustmentKind, ChargeCommand, ChargeOutcome, CounterName, ChargeItem, GcraRate, Penalty, QuotaRule, SettleChargeCommand, ChargeAdjustment, QuotaSnapshot,
    },
};

/// A counter during a step.
struct Open {
    name: Name,
    at: Present,
    /// Ms for which a penalty blocks it.
    blocked: u64,
}

impl Shard {
    /// `charge.lua`: no counter is named twice.
    pub(super) fn charge(&mut self, call: &ChargeCommand, now: Now) -> ChargeOutcome {
        let mut open: Vec<_> =
            call.items.iter().map(|item| self.open(&call.tag, item, now)).collect();
        let each = || call.items.iter().zip(&open);
        let room = |(item, open): (&ChargeItem, &Open)| {
            if open.blocked > 0 { 0 } else { open.at.room(&item.rule, item.cost, now) }
        };
        let times = u64::from(call.repetitions);
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
            |(item, open): (&ChargeItem, &Open)| item.evaluate(open.at.count(now), now.us, open.blocked);
        let states = call.items.iter().zip(&open).map(state).collect();
        // No more than `times`.
        let admitted = u32::try_from(admitted).unwrap_or(call.repetitions);
        ChargeOutcome { admitted, snapshots: states }
    }

    /// `settle_charge.lua`.
    pub(super) fn settle_charge(&mut self, call: &SettleChargeCommand, now: Now) -> Vec<QuotaSnapshot> {
        let one = |settled: &ChargeAdjustment| {
            let item = ChargeItem {
                policy: Arc::clone(&settled.policy),
                subject: settled.subject.clone(),
                rule: settled.rule,
                cost: 0,
                penalty: None,
            };
            let mut open = self.open(&call.tag, &item, now);
            match settled.kind {
                AdjustmentKind::Charge { units: 0 } => {}
                AdjustmentKind::Charge { units } => {
                    open.at.spend(units);
                    self.keep(&mut open, now);
                }
                AdjustmentKind::Refund { units, window } => {
                    let before = open.at;
                    open.at.refund(units, window, &item.rule, now);
                    if open.at != before {
                        self.keep(&mut open, now);
                    }
                }
            }
            item.evaluate(open.at.count(now), now.us, 0)
        };
        call.items.iter().map(one).collect()
    }

    /// `reset_charges.lua`.
    pub(super) fn reset_charges(&mut self, tag: &Key, counters: &[CounterName]) {
        for CounterName { policy, subject, algorithm } in counters {
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

    fn open(&mut self, tag: &Key, item: &ChargeItem, now: Now) -> Open {
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
            QuotaRule::Fixed { .. } => {
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
            QuotaRule::Sliding { .. } => {
                let length = millis(window);
                Present::Sliding(match kept {
                    Some((Kept::Sliding(windows), _)) => {
                        repair = windows.start > now.ms || windows.length != length;
                        windows.at(now.ms, length)
                    }
                    _ => Windows::new(now.ms, length, 0),
                })
            }
            QuotaRule::Gcra { limit, burst, .. } => {
                let pace = GcraRate::new(limit, window, burst);
                let (mut which, mut parts) = (0, [0, 0]);
                if let Some((Kept::Gcra { debt, gross, which: kept, since, pace: old }, _)) = kept {
                    repair = since > now.us || !old.has_same_rate(&pace);
                    parts = [debt, gross].map(|parts| owed(parts, since, &old, &pace, now));
                    // One that is brought to what is so now is another one: refunds know when the old one
                    // would be paid off, not this one.
                    which = if parts[1] > 0 && !repair { kept } else { 0 };
                }
                let [debt, gross] = parts;
                Present::Gcra { debt, gross, which, pace }
            }
        };
        let blocked =
            item.penalty.map_or(0, |penalty| self.blocked(&name, &item.rule, penalty, now));
        let mut open = Open { name, at, blocked };
        if repair {
            self.keep(&mut open, now);
        }
        open
    }

    fn kept(&self, name: &Name, now: Now) -> Option<(Kept, u64)> {
        let end = self.counters.end_of(name).filter(|end| *end > now.ms)?;
        Some((*self.counters.get(name, now.ms)?, end))
    }

    fn keep(&mut self, open: &mut Open, now: Now) {
        let (kept, end) = match &mut open.at {
            Present::Fixed { spent, end } => (Kept::Fixed { spent: *spent }, *end),
            Present::Sliding(windows) => (Kept::Sliding(*windows), windows.end()),
            Present::Gcra { debt, gross, which, pace } => {
                if *which == 0 && *gross > 0 {
                    self.debts += 1;
                    *which = self.debts;
                }
                let (debt, gross, which, pace) = (*debt, *gross, *which, *pace);
                let since = now.us - now.us % pace.tick_us;
                // It lives through the millisecond in which the last of it is paid.
                let end = since.saturating_add(pace.drain_time_us(gross)).div_ceil(1000);
                (Kept::Gcra { debt, gross, which, since, pace }, end)
            }
        };
        if end > now.ms {
            self.counters.put(&open.name, kept, Some(end));
        } else {
            self.counters.remove(&open.name);
        }
    }

    fn blocked(&mut self, name: &Name, rule: &QuotaRule, penalty: Penalty, now: Now) -> u64 {
        let name = refusals(name);
        let Some((kept, end)) = self.kept(&name, now) else { return 0 };
        let blocks = matches!(kept, Kept::Blocked);
        // Neither counts, nor blocks, for longer than from now on.
        let longest = now.after(if blocks { penalty.block_for } else { rule.window() });
        if end > longest {
            self.counters.end_at(&name, Some(longest));
        }
        if blocks { end.min(longest) - now.ms } else { 0 }
    }

    /// Counts refusals; how long the counter is blocked for, in ms.
    fn strike(
        &mut self,
        name: &Name,
        rule: &QuotaRule,
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
        if strikes < u64::from(penalty.after_refusals) {
            self.counters.put(&name, Kept::Strikes(strikes), Some(end));
            return 0;
        }
        self.counters.put(&name, Kept::Blocked, Some(now.after(penalty.block_for)));
        millis(penalty.block_for)
    }
}

fn refusals(name: &Name) -> Name {
    Name { refusals: true, ..name.clone() }
}

/// Whether such a cost can never be let in.
fn never(rule: &QuotaRule, cost: u64) -> bool {
    match *rule {
        QuotaRule::Fixed { limit, .. } | QuotaRule::Sliding { limit, .. } => cost > limit,
        QuotaRule::Gcra { limit, window, burst } => {
            let pace = GcraRate::new(limit, window, burst);
            pace.units_to_parts(cost) > pace.max_debt
        }
    }
}
