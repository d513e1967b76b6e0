//! Counters of quotas: `charge_batch_fast.lua`, `settle_charge.lua` and `reset_charges.lua`.

mod stored_counter;

use std::sync::Arc;

use self::stored_counter::{SlidingWindowPair, UsedUnits, remaining_debt};
pub(super) use self::stored_counter::{StoredCounter, StoredCounterKey};
use super::memory_shard::{MemoryShard, SWEEP_LIMIT, ServerTime};
use crate::{
    clock::ceil_millis,
    key::Key,
    store::rate::{
        AdjustmentKind, ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, CounterName,
        GcraRate, Penalty, QuotaRule, QuotaSnapshot, SettleChargeCommand,
    },
};

/// Counter during an operation.
struct OpenCounter {
    name: StoredCounterKey,
    usage: UsedUnits,
    /// Remaining time of a penalty block, in ms.
    blocked_ms: u64,
}

impl MemoryShard {
    /// `charge_batch_fast.lua`: every counter appears once in the call.
    pub(super) fn charge(&mut self, call: &ChargeCommand, now: ServerTime) -> ChargeOutcome {
        let mut open: Vec<_> =
            call.items.iter().map(|item| self.open_counter(&call.tag, item, now)).collect();
        let each = || call.items.iter().zip(&open);
        let room = |(item, open): (&ChargeItem, &OpenCounter)| {
            if open.blocked_ms > 0 {
                0
            } else {
                open.usage.times_affordable(&item.rule, item.cost, now)
            }
        };
        let times = u64::from(call.repetitions);
        let admitted = each().map(room).min().unwrap_or(times).min(times);
        let refused = times - admitted;
        for (item, open) in call.items.iter().zip(&mut open) {
            let blames = refused > 0
                && open.usage.times_affordable(&item.rule, item.cost, now) <= admitted
                && !exceeds_quota(&item.rule, item.cost);
            if admitted > 0 && item.cost > 0 {
                open.usage.spend(admitted * item.cost);
                self.store_counter(open, now);
            }
            if let Some(penalty) = item.penalty.filter(|_| blames && open.blocked_ms == 0) {
                open.blocked_ms =
                    self.count_refusals(&open.name, &item.rule, penalty, refused, now);
            }
        }
        self.counters.sweep(now.ms, SWEEP_LIMIT + call.items.len());
        let state = |(item, open): (&ChargeItem, &OpenCounter)| {
            item.evaluate(open.usage.value_at(now), now.us, open.blocked_ms)
        };
        let states = call.items.iter().zip(&open).map(state).collect();
        // At most `times`.
        let admitted = u32::try_from(admitted).unwrap_or(call.repetitions);
        ChargeOutcome { admitted, snapshots: states }
    }

    /// `settle_charge.lua`.
    pub(super) fn settle_charge(
        &mut self,
        call: &SettleChargeCommand,
        now: ServerTime,
    ) -> Vec<QuotaSnapshot> {
        let one = |settled: &ChargeAdjustment| {
            let item = ChargeItem {
                policy: Arc::clone(&settled.policy),
                subject: settled.subject.clone(),
                rule: settled.rule,
                cost: 0,
                penalty: None,
            };
            let mut open = self.open_counter(&call.tag, &item, now);
            match settled.kind {
                AdjustmentKind::Charge { units: 0 } => {}
                AdjustmentKind::Charge { units } => {
                    open.usage.spend(units);
                    self.store_counter(&mut open, now);
                }
                AdjustmentKind::Refund { units, window } => {
                    let before = open.usage;
                    open.usage.refund(units, window, &item.rule, now);
                    if open.usage != before {
                        self.store_counter(&mut open, now);
                    }
                }
            }
            item.evaluate(open.usage.value_at(now), now.us, 0)
        };
        call.items.iter().map(one).collect()
    }

    /// `reset_charges.lua`.
    pub(super) fn reset_counters(&mut self, tag: &Key, counters: &[CounterName]) {
        for CounterName { policy, subject, algorithm } in counters {
            for refusals in [false, true] {
                self.counters.remove(&StoredCounterKey {
                    algorithm: *algorithm,
                    is_refusal_count: refusals,
                    policy: Arc::clone(policy),
                    subject: subject.clone(),
                    tag: tag.clone(),
                });
            }
        }
    }

    fn open_counter(&mut self, tag: &Key, item: &ChargeItem, now: ServerTime) -> OpenCounter {
        let name = StoredCounterKey {
            algorithm: item.rule.algorithm(),
            is_refusal_count: false,
            policy: Arc::clone(&item.policy),
            subject: item.subject.clone(),
            tag: tag.clone(),
        };
        let window = item.rule.window();
        let kept = self.stored_counter(&name, now);
        // After a change of the quota or a clock that was set back, the usage is converted to the
        // current quota and time, and stored even if nothing is charged. Otherwise the reported
        // times would not come true.
        let mut repair = false;
        let at = match item.rule {
            QuotaRule::Fixed { .. } => {
                let whole = now.deadline_after(window);
                let (spent, end) = match kept {
                    Some((StoredCounter::Fixed { spent }, end)) => (spent, end),
                    _ => (0, whole),
                };
                if end > whole {
                    // The window of a longer quota, or of a clock that was set back.
                    self.counters.set_expiry(&name, Some(whole));
                }
                UsedUnits::Fixed { spent, end_ms: end.min(whole) }
            }
            QuotaRule::Sliding { .. } => {
                let length = ceil_millis(window);
                UsedUnits::Sliding(match kept {
                    Some((StoredCounter::Sliding(windows), _)) => {
                        repair = windows.start_ms > now.ms || windows.length_ms != length;
                        windows.advanced_to(now.ms, length)
                    }
                    _ => SlidingWindowPair::new(now.ms, length, 0),
                })
            }
            QuotaRule::Gcra { limit, burst, .. } => {
                let pace = GcraRate::new(limit, window, burst);
                let (mut which, mut parts) = (0, [0, 0]);
                if let Some((
                    StoredCounter::Gcra {
                        debt,
                        gross_debt: gross,
                        debt_id: kept,
                        as_of_us: since,
                        pace: old,
                    },
                    _,
                )) = kept
                {
                    repair = since > now.us || !old.has_same_rate(&pace);
                    parts =
                        [debt, gross].map(|parts| remaining_debt(parts, since, &old, &pace, now));
                    // A converted debt gets a new id: a refund knows when the old debt would have
                    // been paid off, and nothing about the new one.
                    which = if parts[1] > 0 && !repair { kept } else { 0 };
                }
                let [debt, gross] = parts;
                UsedUnits::Gcra { debt, gross_debt: gross, debt_id: which, pace }
            }
        };
        let blocked = item
            .penalty
            .map_or(0, |penalty| self.block_remaining_ms(&name, &item.rule, penalty, now));
        let mut open = OpenCounter { name, usage: at, blocked_ms: blocked };
        if repair {
            self.store_counter(&mut open, now);
        }
        open
    }

    fn stored_counter(
        &self,
        name: &StoredCounterKey,
        now: ServerTime,
    ) -> Option<(StoredCounter, u64)> {
        let end = self.counters.expiry_of(name).filter(|end| *end > now.ms)?;
        Some((*self.counters.get(name, now.ms)?, end))
    }

    fn store_counter(&mut self, open: &mut OpenCounter, now: ServerTime) {
        let (kept, end) = match &mut open.usage {
            UsedUnits::Fixed { spent, end_ms: end } => {
                (StoredCounter::Fixed { spent: *spent }, *end)
            }
            UsedUnits::Sliding(windows) => (StoredCounter::Sliding(*windows), windows.expiry_ms()),
            UsedUnits::Gcra { debt, gross_debt: gross, debt_id: which, pace } => {
                if *which == 0 && *gross > 0 {
                    self.last_debt_id += 1;
                    *which = self.last_debt_id;
                }
                let (debt, gross, which, pace) = (*debt, *gross, *which, *pace);
                let since = now.us - now.us % pace.tick_us;
                // Kept through the millisecond in which the last part is paid off.
                let end = since.saturating_add(pace.drain_time_us(gross)).div_ceil(1000);
                (
                    StoredCounter::Gcra {
                        debt,
                        gross_debt: gross,
                        debt_id: which,
                        as_of_us: since,
                        pace,
                    },
                    end,
                )
            }
        };
        if end > now.ms {
            self.counters.insert(&open.name, kept, Some(end));
        } else {
            self.counters.remove(&open.name);
        }
    }

    fn block_remaining_ms(
        &mut self,
        name: &StoredCounterKey,
        rule: &QuotaRule,
        penalty: Penalty,
        now: ServerTime,
    ) -> u64 {
        let name = refusals_key(name);
        let Some((kept, end)) = self.stored_counter(&name, now) else { return 0 };
        let blocks = matches!(kept, StoredCounter::Blocked);
        // Neither a count nor a block may last longer than one that begins now.
        let longest = now.deadline_after(if blocks { penalty.block_for } else { rule.window() });
        if end > longest {
            self.counters.set_expiry(&name, Some(longest));
        }
        if blocks { end.min(longest) - now.ms } else { 0 }
    }

    /// Counts refusals. Returns the time for which the counter is blocked, in ms.
    fn count_refusals(
        &mut self,
        name: &StoredCounterKey,
        rule: &QuotaRule,
        penalty: Penalty,
        refused: u64,
        now: ServerTime,
    ) -> u64 {
        let name = refusals_key(name);
        let whole = now.deadline_after(rule.window());
        let (before, end) = match self.stored_counter(&name, now) {
            Some((StoredCounter::Refusals(n), end)) => (n, end.min(whole)),
            _ => (0, whole),
        };
        let strikes = before + refused;
        if strikes < u64::from(penalty.after_refusals) {
            self.counters.insert(&name, StoredCounter::Refusals(strikes), Some(end));
            return 0;
        }
        self.counters.insert(
            &name,
            StoredCounter::Blocked,
            Some(now.deadline_after(penalty.block_for)),
        );
        ceil_millis(penalty.block_for)
    }
}

fn refusals_key(name: &StoredCounterKey) -> StoredCounterKey {
    StoredCounterKey { is_refusal_count: true, ..name.clone() }
}

/// Returns true if such a cost can never be admitted.
fn exceeds_quota(rule: &QuotaRule, cost: u64) -> bool {
    match *rule {
        QuotaRule::Fixed { limit, .. } | QuotaRule::Sliding { limit, .. } => cost > limit,
        QuotaRule::Gcra { limit, window, burst } => {
            let pace = GcraRate::new(limit, window, burst);
            pace.units_to_parts(cost) > pace.max_debt
        }
    }
}
