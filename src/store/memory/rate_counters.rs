//! Counters of quotas: `charge_batch_fast.lua`, `settle_charge.lua` and `reset_charges.lua`.

mod refusal_penalty;
mod stored_counter;

use std::{sync::Arc, time::Duration};

use self::stored_counter::{SlidingWindowPair, UsedUnits, remaining_debt};
pub(super) use self::stored_counter::{StoredCounter, StoredCounterKey};
use super::memory_shard::{MemoryShard, SWEEP_LIMIT, ServerTime};
use crate::{
    durations::ceil_millis,
    key::Key,
    store::rate::{
        AdjustmentKind, ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, CounterName,
        GcraRate, QuotaRule, QuotaSnapshot, SettleChargeCommand,
    },
};

/// Counter during an operation.
struct OpenCounter {
    key: StoredCounterKey,
    usage: UsedUnits,
    /// Remaining time of a penalty block, in ms.
    blocked_ms: u64,
}

/// Usage of a stored counter, converted to the current quota and time.
struct CurrentUsage {
    usage: UsedUnits,
    /// The quota has changed or the clock was set back. The usage is then stored even if nothing is
    /// charged, or else the reported times would not come true.
    needs_rewrite: bool,
}

impl CurrentUsage {
    fn without_debt(rate: GcraRate) -> Self {
        let usage = UsedUnits::Gcra { debt: 0, gross_debt: 0, debt_id: 0, rate };
        Self { usage, needs_rewrite: false }
    }
}

impl MemoryShard {
    /// `charge_batch_fast.lua`: every counter appears once in the call.
    pub(super) fn charge(&mut self, command: &ChargeCommand, now: ServerTime) -> ChargeOutcome {
        let mut counters: Vec<_> =
            command.items.iter().map(|item| self.open_counter(&command.tag, item, now)).collect();
        let items_with_counters = || command.items.iter().zip(&counters);
        let affordable_times = |(item, counter): (&ChargeItem, &OpenCounter)| {
            if counter.blocked_ms > 0 {
                0
            } else {
                counter.usage.times_affordable(&item.rule, item.cost, now)
            }
        };
        let requested_times = u64::from(command.repetitions);
        let admitted = items_with_counters()
            .map(affordable_times)
            .min()
            .unwrap_or(requested_times)
            .min(requested_times);
        let refused = requested_times - admitted;
        for (item, counter) in command.items.iter().zip(&mut counters) {
            let is_binding = refused > 0
                && counter.usage.times_affordable(&item.rule, item.cost, now) <= admitted
                && !exceeds_quota(&item.rule, item.cost);
            if admitted > 0 && item.cost > 0 {
                counter.usage.spend(admitted * item.cost);
                self.store_counter(counter, now);
            }
            if let Some(penalty) = item.penalty.filter(|_| is_binding && counter.blocked_ms == 0) {
                counter.blocked_ms =
                    self.count_refusals(&counter.key, &item.rule, penalty, refused, now);
            }
        }
        self.counters.sweep(now.ms, SWEEP_LIMIT + command.items.len());
        let snapshot = |(item, counter): (&ChargeItem, &OpenCounter)| {
            item.evaluate(counter.usage.value_at(now), now.us, counter.blocked_ms)
        };
        let snapshots = command.items.iter().zip(&counters).map(snapshot).collect();
        // At most `repetitions`.
        let admitted = u32::try_from(admitted).unwrap_or(command.repetitions);
        ChargeOutcome { admitted, snapshots }
    }

    /// `settle_charge.lua`.
    pub(super) fn settle_charge(
        &mut self,
        command: &SettleChargeCommand,
        now: ServerTime,
    ) -> Vec<QuotaSnapshot> {
        let adjust = |adjustment: &ChargeAdjustment| {
            let item = ChargeItem {
                policy: Arc::clone(&adjustment.policy),
                subject: adjustment.subject.clone(),
                rule: adjustment.rule,
                cost: 0,
                penalty: None,
            };
            let mut counter = self.open_counter(&command.tag, &item, now);
            match adjustment.kind {
                AdjustmentKind::Charge { units: 0 } => {}
                AdjustmentKind::Charge { units } => {
                    counter.usage.spend(units);
                    self.store_counter(&mut counter, now);
                }
                AdjustmentKind::Refund { units, window } => {
                    let old_usage = counter.usage;
                    counter.usage.refund(units, window, &item.rule, now);
                    if counter.usage != old_usage {
                        self.store_counter(&mut counter, now);
                    }
                }
            }
            item.evaluate(counter.usage.value_at(now), now.us, 0)
        };
        command.items.iter().map(adjust).collect()
    }

    /// `reset_charges.lua`.
    pub(super) fn reset_counters(&mut self, tag: &Key, counters: &[CounterName]) {
        for CounterName { policy, subject, algorithm } in counters {
            for is_refusal_count in [false, true] {
                self.counters.remove(&StoredCounterKey {
                    algorithm: *algorithm,
                    is_refusal_count,
                    policy: Arc::clone(policy),
                    subject: subject.clone(),
                    tag: tag.clone(),
                });
            }
        }
    }

    fn open_counter(&mut self, tag: &Key, item: &ChargeItem, now: ServerTime) -> OpenCounter {
        let key = StoredCounterKey {
            algorithm: item.rule.algorithm(),
            is_refusal_count: false,
            policy: Arc::clone(&item.policy),
            subject: item.subject.clone(),
            tag: tag.clone(),
        };
        let (window, stored) = (item.rule.window(), self.stored_counter(&key, now));
        let CurrentUsage { usage, needs_rewrite } = match item.rule {
            QuotaRule::Fixed { .. } => self.open_fixed_window(&key, stored, window, now),
            QuotaRule::Sliding { .. } => open_sliding_windows(stored, window, now),
            QuotaRule::Gcra { limit, burst, .. } => {
                open_gcra_debt(stored, GcraRate::new(limit, window, burst), now)
            }
        };
        let blocked_ms = item
            .penalty
            .map_or(0, |penalty| self.block_remaining_ms(&key, &item.rule, penalty, now));
        let mut counter = OpenCounter { key, usage, blocked_ms };
        if needs_rewrite {
            self.store_counter(&mut counter, now);
        }
        counter
    }

    fn open_fixed_window(
        &mut self,
        key: &StoredCounterKey,
        stored: Option<(StoredCounter, u64)>,
        window: Duration,
        now: ServerTime,
    ) -> CurrentUsage {
        let max_end_ms = now.deadline_after(window);
        let (spent, end_ms) = match stored {
            Some((StoredCounter::Fixed { spent }, expires_ms)) => (spent, expires_ms),
            _ => (0, max_end_ms),
        };
        if end_ms > max_end_ms {
            // The window of a longer quota, or of a clock that was set back.
            self.counters.set_expiry(key, Some(max_end_ms));
        }
        let usage = UsedUnits::Fixed { spent, end_ms: end_ms.min(max_end_ms) };
        CurrentUsage { usage, needs_rewrite: false }
    }

    /// Returns the stored counter and its expiry, unless it has expired.
    fn stored_counter(
        &self,
        key: &StoredCounterKey,
        now: ServerTime,
    ) -> Option<(StoredCounter, u64)> {
        let expires_ms = self.counters.expiry_of(key).filter(|expires_ms| *expires_ms > now.ms)?;
        Some((*self.counters.get(key, now.ms)?, expires_ms))
    }

    fn store_counter(&mut self, counter: &mut OpenCounter, now: ServerTime) {
        let (stored, expires_ms) = match &mut counter.usage {
            UsedUnits::Fixed { spent, end_ms } => (StoredCounter::Fixed { spent: *spent }, *end_ms),
            UsedUnits::Sliding(windows) => (StoredCounter::Sliding(*windows), windows.expiry_ms()),
            UsedUnits::Gcra { debt, gross_debt, debt_id, rate } => {
                if *debt_id == 0 && *gross_debt > 0 {
                    self.last_debt_id += 1;
                    *debt_id = self.last_debt_id;
                }
                let (debt, gross_debt, debt_id, rate) = (*debt, *gross_debt, *debt_id, *rate);
                let as_of_us = now.us - now.us % rate.tick_us;
                // Kept through the millisecond in which the last part is paid off.
                let paid_off_us = as_of_us.saturating_add(rate.drain_time_us(gross_debt));
                let stored = StoredCounter::Gcra { debt, gross_debt, debt_id, as_of_us, rate };
                (stored, paid_off_us.div_ceil(1000))
            }
        };
        if expires_ms > now.ms {
            self.counters.insert(&counter.key, stored, Some(expires_ms));
        } else {
            self.counters.remove(&counter.key);
        }
    }
}

fn open_sliding_windows(
    stored: Option<(StoredCounter, u64)>,
    window: Duration,
    now: ServerTime,
) -> CurrentUsage {
    let length_ms = ceil_millis(window);
    match stored {
        Some((StoredCounter::Sliding(windows), _)) => CurrentUsage {
            usage: UsedUnits::Sliding(windows.advanced_to(now.ms, length_ms)),
            needs_rewrite: windows.start_ms > now.ms || windows.length_ms != length_ms,
        },
        _ => CurrentUsage {
            usage: UsedUnits::Sliding(SlidingWindowPair::new(now.ms, length_ms, 0)),
            needs_rewrite: false,
        },
    }
}

fn open_gcra_debt(
    stored: Option<(StoredCounter, u64)>,
    rate: GcraRate,
    now: ServerTime,
) -> CurrentUsage {
    let Some((stored, _)) = stored else { return CurrentUsage::without_debt(rate) };
    let StoredCounter::Gcra { debt, gross_debt, debt_id, as_of_us, rate: old_rate } = stored else {
        return CurrentUsage::without_debt(rate);
    };
    let needs_rewrite = as_of_us > now.us || !old_rate.has_same_rate(&rate);
    let [debt, gross_debt] =
        [debt, gross_debt].map(|parts| remaining_debt(parts, as_of_us, &old_rate, &rate, now));
    // A converted debt gets a new id: a refund knows when the old debt would have been paid off,
    // and nothing about the new one.
    let debt_id = if gross_debt > 0 && !needs_rewrite { debt_id } else { 0 };
    CurrentUsage { usage: UsedUnits::Gcra { debt, gross_debt, debt_id, rate }, needs_rewrite }
}

/// Returns true if such a cost can never be admitted.
fn exceeds_quota(rule: &QuotaRule, cost: u64) -> bool {
    match *rule {
        QuotaRule::Fixed { limit, .. } | QuotaRule::Sliding { limit, .. } => cost > limit,
        QuotaRule::Gcra { limit, window, burst } => {
            let rate = GcraRate::new(limit, window, burst);
            rate.units_to_parts(cost) > rate.max_debt
        }
    }
}
