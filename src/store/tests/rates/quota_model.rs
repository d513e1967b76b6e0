//! The embedded store against plain models: a counted window, a list of windows, and the
//! theoretical arrival time of the next cell, each written down as its definition has it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use proptest::prelude::*;

use super::quota_operation::{ChargeLedger, QuotaCall, QuotaOperation, operation_sequences};
use crate::{
    Key,
    durations::{ceil_millis, saturating_micros},
    store::{
        ChargeCommand, ChargeItem, ChargeOutcome, ChargedWindow, QuotaRule, QuotaSnapshot,
        SettleChargeCommand,
        rate::{AdjustmentKind, Algorithm},
        tests::{client_operation::proptest_config, store_harness::StoreHarness},
    },
};

type ModelCounterKey = (Arc<str>, Key, Key, Algorithm);

#[derive(Default)]
struct QuotaModel {
    now_ms: u64,
    fixed_windows: HashMap<ModelCounterKey, (u64, u64)>,
    /// Length of the windows, and the units charged in each, by its start.
    sliding_windows: HashMap<ModelCounterKey, (u64, Vec<(u64, u64)>)>,
    /// State of `sliding_windows` at the last write, which a clock rewind restores.
    written_windows: HashMap<ModelCounterKey, (u64, Vec<(u64, u64)>)>,
    gcra_debts: HashMap<ModelCounterKey, ModelDebt>,
    /// Number of debts so far, and the debt of each id that the store has reported.
    debt_count: u64,
    debt_ids: HashMap<(ModelCounterKey, u64), u64>,
    refusal_counts: HashMap<ModelCounterKey, (u32, u64)>,
    blocked_until: HashMap<ModelCounterKey, u64>,
}

/// Debt of a GCRA counter, as theoretical arrival times.
#[derive(Clone, Copy)]
struct ModelDebt {
    rule: QuotaRule,
    /// With and without refunds, in fractions of a microsecond: `limit` of them are one
    /// microsecond.
    arrival_times: [u128; 2],
    /// Time of the last write, in ms. If the clock is put back, the state holds until then.
    touched_ms: u64,
    debt_number: u64,
}

/// Merges items of one counter: the first one's rule with the least limit.
fn merge_duplicate_items(charge: &ChargeCommand) -> Vec<ChargeItem> {
    charge
        .merge_duplicates()
        .map_or_else(|| charge.items.to_vec(), |(merged, _)| merged.items.to_vec())
}

impl QuotaModel {
    fn counter_key(item: &ChargeItem, tag: &Key) -> ModelCounterKey {
        (item.policy.clone(), item.subject.clone(), tag.clone(), item.rule.algorithm())
    }

    /// Removes expired state, and converts the rest to this rule.
    fn update_counter(&mut self, name: &ModelCounterKey, rule: &QuotaRule) {
        let now = self.now_ms;
        match *rule {
            QuotaRule::Fixed { window, .. } => {
                self.fixed_windows.retain(|_, (_, end)| *end > now);
                if let Some((_, end)) = self.fixed_windows.get_mut(name) {
                    *end = (*end).min(now + ceil_millis(window));
                }
            }
            QuotaRule::Sliding { window, .. } => {
                let length = ceil_millis(window);
                let used_units = self.used_units(name);
                let Some((previous, windows)) = self.sliding_windows.get_mut(name) else { return };
                let (last_start, spent) = windows.last().copied().unwrap_or((now, 0));
                // A window without charges leaves nothing when it ends.
                if now >= last_start + if spent > 0 { 2 * *previous } else { *previous } {
                    self.sliding_windows.remove(name);
                    return;
                }
                if *previous != length {
                    (*previous, *windows) = (length, vec![(now - length, used_units), (now, 0)]);
                    self.save_windows(name);
                } else if last_start > now {
                    // The clock was put back: the window begins now.
                    windows.iter_mut().for_each(|(start, _)| *start -= last_start - now);
                    self.save_windows(name);
                } else if now >= last_start + *previous {
                    windows.push((last_start + *previous, 0));
                }
            }
            QuotaRule::Gcra { .. } => {
                let Some(ModelDebt {
                    rule: previous,
                    arrival_times: mut arrivals,
                    touched_ms,
                    mut debt_number,
                }) = self.gcra_debts.get(name).copied()
                else {
                    return;
                };
                let (
                    QuotaRule::Gcra { limit: old_limit, window: old_window, .. },
                    QuotaRule::Gcra { limit, window, .. },
                ) = (previous, *rule)
                else {
                    panic!("none of these: {previous:?}")
                };
                let now_us = u128::from(now) * 1000;
                if touched_ms > now {
                    let jump = u128::from(touched_ms) * 1000 - now_us;
                    arrivals.iter_mut().for_each(|arrival| {
                        *arrival = arrival.saturating_sub(jump * u128::from(old_limit));
                    });
                }
                if arrivals[1] <= now_us * u128::from(old_limit) {
                    self.gcra_debts.remove(name);
                    return;
                }
                let is_new_debt = touched_ms > now || (old_limit, old_window) != (limit, window);
                if is_new_debt {
                    self.debt_count += 1;
                    debt_number = self.debt_count;
                }
                let touched_ms = if is_new_debt { now } else { touched_ms };
                // Converts the debt in units, debt / w, rounded up to the next fraction of the new
                // rule.
                let (old_window, window) = (
                    u128::from(saturating_micros(old_window)),
                    u128::from(saturating_micros(window)),
                );
                let grain = gcd(u128::from(limit), window);
                let convert = |arrival: u128| {
                    let debt = arrival.saturating_sub(now_us * u128::from(old_limit));
                    let parts = (debt * (window / grain)).div_ceil(old_window);
                    now_us * u128::from(limit) + parts * grain
                };
                // A read changes nothing. If the clock is put back, the units drained by now are
                // owed again in part.
                let arrivals = if is_new_debt { arrivals.map(convert) } else { arrivals };
                self.gcra_debts.insert(
                    name.clone(),
                    ModelDebt { rule: *rule, arrival_times: arrivals, touched_ms, debt_number },
                );
            }
        }
    }

    fn save_windows(&mut self, name: &ModelCounterKey) {
        if let Some(windows) = self.sliding_windows.get(name).cloned() {
            self.written_windows.insert(name.clone(), windows);
        }
    }

    /// Returns the units that count: all of the last window, and a share of the one before.
    fn used_units(&self, name: &ModelCounterKey) -> u64 {
        let Some((length, windows)) = self.sliding_windows.get(name) else { return 0 };
        let counted_units = |(start, spent): &(u64, u64)| {
            let remaining_ms = (start + 2 * length).saturating_sub(self.now_ms).min(*length);
            (spent * remaining_ms).div_ceil(*length)
        };
        windows.iter().rev().take(2).map(counted_units).sum()
    }

    /// Returns the debt in fractions, and the fractions of one unit.
    fn debt_parts(&self, name: &ModelCounterKey, rule: &QuotaRule) -> (u128, u128) {
        let QuotaRule::Gcra { limit, window, .. } = *rule else { panic!("{rule:?}") };
        let us = u128::from(self.now_ms) * 1000 * u128::from(limit);
        let arrival = self.gcra_debts.get(name).map_or(0, |debt| debt.arrival_times[0]);
        (arrival.saturating_sub(us), u128::from(saturating_micros(window)))
    }

    fn remaining_units(&self, name: &ModelCounterKey, rule: &QuotaRule) -> u64 {
        match *rule {
            QuotaRule::Fixed { limit, .. } => {
                limit.saturating_sub(self.fixed_windows.get(name).map_or(0, |(spent, _)| *spent))
            }
            QuotaRule::Sliding { limit, .. } => limit.saturating_sub(self.used_units(name)),
            QuotaRule::Gcra { burst, .. } => {
                let (debt, unit) = self.debt_parts(name, rule);
                let free = (u128::from(burst) * unit).saturating_sub(debt);
                u64::try_from(free / unit).unwrap()
            }
        }
    }

    fn charge_units(&mut self, name: &ModelCounterKey, rule: &QuotaRule, units: u64) {
        let now = self.now_ms;
        match *rule {
            _ if units == 0 => {}
            QuotaRule::Fixed { window, .. } => {
                let end = now + ceil_millis(window);
                self.fixed_windows.entry(name.clone()).or_insert((0, end)).0 += units;
            }
            QuotaRule::Sliding { window, .. } => {
                let new_window = || (ceil_millis(window), vec![(now, 0)]);
                let (_, windows) =
                    self.sliding_windows.entry(name.clone()).or_insert_with(new_window);
                windows.last_mut().unwrap().1 += units;
                self.save_windows(name);
            }
            QuotaRule::Gcra { limit, window, .. } => {
                let now_parts = u128::from(now) * 1000 * u128::from(limit);
                let debt = self.gcra_debts.entry(name.clone()).or_insert_with(|| {
                    self.debt_count += 1;
                    ModelDebt {
                        rule: *rule,
                        arrival_times: [0, 0],
                        touched_ms: now,
                        debt_number: self.debt_count,
                    }
                });
                let added = u128::from(units) * u128::from(saturating_micros(window));
                debt.arrival_times
                    .iter_mut()
                    .for_each(|arrival| *arrival = (*arrival).max(now_parts) + added);
                debt.touched_ms = now;
            }
        }
    }

    fn is_blocked(&self, name: &ModelCounterKey) -> bool {
        self.blocked_until.get(name).is_some_and(|end| *end > self.now_ms)
    }

    /// Checks repeated charges in succession; each is all or none.
    fn check_charge(&mut self, charge: &ChargeCommand, charged: &ChargeOutcome) {
        let items = merge_duplicate_items(charge);
        let keyed_items: Vec<_> =
            items.iter().map(|i| (i, Self::counter_key(i, &charge.tag))).collect();
        for (item, name) in &keyed_items {
            self.update_counter(name, &item.rule);
            self.shorten_penalty(item, name);
        }
        let mut admitted = 0;
        for _ in 0..charge.repetitions {
            let (mut refused, mut lacking) = (false, Vec::new());
            for (item, name) in &keyed_items {
                let blocked = item.penalty.is_some() && self.is_blocked(name);
                let is_exceeded =
                    item.cost > 0 && self.remaining_units(name, &item.rule) < item.cost;
                refused |= blocked || is_exceeded;
                let capacity = match item.rule {
                    QuotaRule::Fixed { limit, .. } | QuotaRule::Sliding { limit, .. } => limit,
                    QuotaRule::Gcra { burst, .. } => burst,
                };
                if is_exceeded && !blocked && item.cost <= capacity {
                    lacking.push((*item, name.clone()));
                }
            }
            if refused {
                lacking.iter().for_each(|(item, name)| self.count_refusal(item, name));
            } else {
                admitted += 1;
                keyed_items
                    .iter()
                    .for_each(|(item, name)| self.charge_units(name, &item.rule, item.cost));
            }
        }
        assert_eq!(charged.admitted, admitted);
        for (item, snapshot) in charge.items.iter().zip(&charged.snapshots) {
            self.check_snapshot(&merge_duplicate_items(charge), item, &charge.tag, snapshot);
        }
    }

    /// Limits a penalty to its full length from now: the quota has changed, or the clock was put
    /// back.
    fn shorten_penalty(&mut self, item: &ChargeItem, name: &ModelCounterKey) {
        let Some(penalty) = item.penalty else { return };
        let [window, block] =
            [item.rule.window(), penalty.block_for].map(|d| self.now_ms + ceil_millis(d));
        self.refusal_counts.entry(name.clone()).and_modify(|(_, end)| *end = (*end).min(window));
        self.blocked_until.entry(name.clone()).and_modify(|end| *end = (*end).min(block));
    }

    fn count_refusal(&mut self, item: &ChargeItem, name: &ModelCounterKey) {
        let Some(penalty) = item.penalty else { return };
        let window_end = self.now_ms + ceil_millis(item.rule.window());
        let (refusals, end) = self.refusal_counts.entry(name.clone()).or_insert((0, window_end));
        if *end <= self.now_ms {
            (*refusals, *end) = (0, window_end);
        }
        (*refusals, *end) = (*refusals + 1, (*end).min(window_end));
        if *refusals >= penalty.after_refusals {
            self.refusal_counts.remove(name);
            self.blocked_until.insert(name.clone(), self.now_ms + ceil_millis(penalty.block_for));
        }
    }

    fn check_snapshot(
        &mut self,
        merged_items: &[ChargeItem],
        item: &ChargeItem,
        tag: &Key,
        snapshot: &QuotaSnapshot,
    ) {
        let name = Self::counter_key(item, tag);
        self.check_debt_id(&name, snapshot.charged_window.debt_id);
        let merged =
            merged_items.iter().find(|other| Self::counter_key(other, tag) == name).unwrap();
        let remaining = self.remaining_units(&name, &merged.rule);
        assert_eq!(snapshot.remaining, remaining, "{item:?}");
        let is_blocked = merged.penalty.is_some() && self.is_blocked(&name);
        assert_eq!(snapshot.blocked_for.is_some(), is_blocked, "{item:?}");
        let is_admitted = (merged.cost == 0 || remaining >= merged.cost) && !is_blocked;
        assert_eq!(snapshot.retry_after.is_zero(), is_admitted, "{item:?} {snapshot:?}");
    }

    /// Checks that each debt has one id, and that the id is 0 without a debt.
    fn check_debt_id(&mut self, name: &ModelCounterKey, debt_id: u64) {
        let debt_number = self.gcra_debts.get(name).map_or(0, |debt| debt.debt_number);
        assert_eq!(debt_id == 0, debt_number == 0, "{name:?}");
        if debt_id > 0 {
            let known_number = *self.debt_ids.entry((name.clone(), debt_id)).or_insert(debt_number);
            assert_eq!(known_number, debt_number, "{name:?}: another debt had this name");
        }
    }

    fn check_adjustments(&mut self, call: &SettleChargeCommand, snapshots: &[QuotaSnapshot]) {
        for (adjustment, snapshot) in call.items.iter().zip(snapshots) {
            let (policy, subject) = (adjustment.policy.clone(), adjustment.subject.clone());
            let item =
                ChargeItem { policy, subject, rule: adjustment.rule, cost: 0, penalty: None };
            let name = Self::counter_key(&item, &call.tag);
            self.update_counter(&name, &item.rule);
            match adjustment.kind {
                AdjustmentKind::Charge { units } => self.charge_units(&name, &item.rule, units),
                AdjustmentKind::Refund { units, window } => {
                    self.refund_units(&name, &item.rule, units, window);
                }
            }
            self.check_snapshot(std::slice::from_ref(&item), &item, &call.tag, snapshot);
        }
    }

    fn refund_units(
        &mut self,
        name: &ModelCounterKey,
        rule: &QuotaRule,
        units: u64,
        window: ChargedWindow,
    ) {
        match *rule {
            QuotaRule::Fixed { .. } => {
                let same =
                    self.fixed_windows.get_mut(name).filter(|(_, end)| *end == window.boundary);
                same.into_iter().for_each(|(spent, _)| *spent = spent.saturating_sub(units));
            }
            QuotaRule::Sliding { .. } => {
                let windows = self.sliding_windows.get_mut(name).map(|(_, windows)| windows);
                // Earlier windows no longer count.
                let mut all = windows.into_iter().flat_map(|all| all.iter_mut().rev().take(2));
                let same = all.find(|(start, spent)| *start == window.boundary && *spent > 0);
                if let Some((_, spent)) = same.filter(|_| units > 0) {
                    *spent = spent.saturating_sub(units);
                    self.save_windows(name);
                }
            }
            QuotaRule::Gcra { limit, .. } => {
                let now = u128::from(self.now_ms) * 1000;
                let (debt, unit) = self.debt_parts(name, rule);
                // First in, first out: the share of the debt at that time that would not have
                // drained yet.
                let undrained =
                    (u128::from(window.boundary).saturating_sub(now)) * u128::from(limit);
                let charged = self.debt_ids.get(&(name.clone(), window.debt_id)).copied();
                let same =
                    self.gcra_debts.get_mut(name).filter(|debt| Some(debt.debt_number) == charged);
                let Some(ModelDebt { arrival_times: [arrival, gross], touched_ms, .. }) = same
                else {
                    return;
                };
                let refunded = gross.saturating_sub(now * u128::from(limit)) - debt;
                let refundable =
                    (u128::from(units) * unit).min(undrained.saturating_sub(refunded)).min(debt);
                if refundable > 0 {
                    (*arrival, *touched_ms) = (*arrival - refundable, self.now_ms);
                }
            }
        }
    }

    /// State that has expired by now stays expired.
    fn rewind_clock(&mut self, time: Duration) {
        let now = self.now_ms;
        self.fixed_windows.retain(|_, (_, end)| *end > now);
        self.refusal_counts.retain(|_, (_, end)| *end > now);
        self.blocked_until.retain(|_, end| *end > now);
        self.written_windows.retain(|_, (length, windows)| {
            let (last_start, spent) = windows.last().copied().unwrap_or((now, 0));
            now < last_start + if spent > 0 { 2 * *length } else { *length }
        });
        self.sliding_windows.clone_from(&self.written_windows);
        self.gcra_debts.retain(|_, debt| {
            let QuotaRule::Gcra { limit, .. } = debt.rule else { panic!("{:?}", debt.rule) };
            debt.arrival_times[1] > u128::from(now) * 1000 * u128::from(limit)
        });
        self.now_ms -= ceil_millis(time);
    }

    fn reset_counter(&mut self, item: &ChargeItem, tag: &Key) {
        let name = Self::counter_key(item, tag);
        self.fixed_windows.remove(&name);
        self.sliding_windows.remove(&name);
        self.written_windows.remove(&name);
        self.gcra_debts.remove(&name);
        self.refusal_counts.remove(&name);
        self.blocked_until.remove(&name);
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

async fn run_operations(operations: &[QuotaOperation]) {
    let rig = StoreHarness::memory();
    let mut ledger = ChargeLedger::new(false);
    // Start time of the manual clock.
    let mut model = QuotaModel { now_ms: 1_700_000_000_000, ..QuotaModel::default() };
    for operation in operations {
        match ledger.resolve_operation(operation) {
            None => {}
            Some(QuotaCall::Charge(charge)) => {
                let charged = rig.charge(charge.clone()).await;
                model.check_charge(&charge, &charged);
                ledger.record_charge(&charge, &charged);
            }
            Some(QuotaCall::Settle(call)) => {
                let snapshots = rig.settle_charge(call.clone()).await;
                model.check_adjustments(&call, &snapshots);
            }
            Some(QuotaCall::Reset(counters)) => {
                for (tag, item) in counters {
                    rig.reset_counter(&item, &tag).await;
                    model.reset_counter(&item, &tag);
                }
            }
            Some(QuotaCall::AdvanceTime(time)) => {
                rig.advance(time).await;
                model.now_ms += ceil_millis(time);
            }
            Some(QuotaCall::RewindClock(time)) => {
                rig.rewind_clock(time).await;
                model.rewind_clock(time);
            }
        }
    }
}

proptest! {
    #![proptest_config(proptest_config(1000))]

    #[test]
    fn algorithms_count_by_their_definitions(operations in operation_sequences(50)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run_operations(&operations));
    }
}
