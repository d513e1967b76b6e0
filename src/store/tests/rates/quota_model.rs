//! The embedded store against plain models: a window that is counted, a list of windows, and the theoretical
//! arrival time of the next cell, each written down as its definition has it.

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
    /// Length of windows, and what was charged in each, by its start.
    sliding_windows: HashMap<ModelCounterKey, (u64, Vec<(u64, u64)>)>,
    /// The same as it was changed last: it is what a clock that is put back finds.
    written_windows: HashMap<ModelCounterKey, (u64, Vec<(u64, u64)>)>,
    gcra_debts: HashMap<ModelCounterKey, GcraDebt>,
    /// How many debts have begun, and which of them goes by which name of the store.
    debt_count: u64,
    debt_ids: HashMap<(ModelCounterKey, u64), u64>,
    refusal_counts: HashMap<ModelCounterKey, (u32, u64)>,
    blocked_until: HashMap<ModelCounterKey, u64>,
}

/// What is owed, by the theoretical arrival time.
#[derive(Clone, Copy)]
struct GcraDebt {
    rule: QuotaRule,
    /// With and without refunds, in parts of a microsecond: as many as the limit.
    arrival_times: [u128; 2],
    /// When it was touched last, in ms. Until then it stands, if the clock is put back.
    touched_ms: u64,
    debt_number: u64,
}

/// One counter once, by the first's rule but for the limit, which is the least.
fn merge_duplicate_items(charge: &ChargeCommand) -> Vec<ChargeItem> {
    charge
        .merge_duplicates()
        .map_or_else(|| charge.items.to_vec(), |(merged, _)| merged.items.to_vec())
}

impl QuotaModel {
    fn counter_key(item: &ChargeItem, tag: &Key) -> ModelCounterKey {
        (item.policy.clone(), item.subject.clone(), tag.clone(), item.rule.algorithm())
    }

    /// What has ended is forgotten, and what stands there is brought to this rule.
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
                let used = self.used_units(name);
                let Some((old, windows)) = self.sliding_windows.get_mut(name) else { return };
                let (last, spent) = windows.last().copied().unwrap_or((now, 0));
                // Of one in which nothing is spent nothing is left when it ends.
                if now >= last + if spent > 0 { 2 * *old } else { *old } {
                    self.sliding_windows.remove(name);
                    return;
                }
                if *old != length {
                    (*old, *windows) = (length, vec![(now - length, used), (now, 0)]);
                    self.save_windows(name);
                } else if last > now {
                    // The clock was put back: the window begins now.
                    windows.iter_mut().for_each(|(start, _)| *start -= last - now);
                    self.save_windows(name);
                } else if now >= last + *old {
                    windows.push((last + *old, 0));
                }
            }
            QuotaRule::Gcra { .. } => {
                let Some(GcraDebt {
                    rule: old,
                    arrival_times: mut arrivals,
                    touched_ms: since,
                    debt_number: mut which,
                }) = self.gcra_debts.get(name).copied()
                else {
                    return;
                };
                let (
                    QuotaRule::Gcra { limit: l, window: w, .. },
                    QuotaRule::Gcra { limit, window, .. },
                ) = (old, *rule)
                else {
                    panic!("none of these: {old:?}")
                };
                let us = u128::from(now) * 1000;
                if since > now {
                    let jump = u128::from(since) * 1000 - us;
                    arrivals
                        .iter_mut()
                        .for_each(|at| *at = at.saturating_sub(jump * u128::from(l)));
                }
                if arrivals[1] <= us * u128::from(l) {
                    self.gcra_debts.remove(name);
                    return;
                }
                let other = since > now || (l, w) != (limit, window);
                if other {
                    self.debt_count += 1;
                    which = self.debt_count;
                }
                let since = if other { now } else { since };
                // In units: debt / w. To the next whole part of the new one.
                let (w, window) =
                    (u128::from(saturating_micros(w)), u128::from(saturating_micros(window)));
                let grain = gcd(u128::from(limit), window);
                let brought = |arrival: u128| {
                    let debt = arrival.saturating_sub(us * u128::from(l));
                    let parts = (debt * (window / grain)).div_ceil(w);
                    us * u128::from(limit) + parts * grain
                };
                // A mere look changes nothing: what was paid off by now is owed in part if the clock is put back.
                let arrivals = if other { arrivals.map(brought) } else { arrivals };
                self.gcra_debts.insert(
                    name.clone(),
                    GcraDebt {
                        rule: *rule,
                        arrival_times: arrivals,
                        touched_ms: since,
                        debt_number: which,
                    },
                );
            }
        }
    }

    fn save_windows(&mut self, name: &ModelCounterKey) {
        if let Some(windows) = self.sliding_windows.get(name).cloned() {
            self.written_windows.insert(name.clone(), windows);
        }
    }

    /// What of a sliding counter is within reach: of the last window all, of the one before its part.
    fn used_units(&self, name: &ModelCounterKey) -> u64 {
        let Some((length, windows)) = self.sliding_windows.get(name) else { return 0 };
        let reach = |(start, spent): &(u64, u64)| {
            let left = (start + 2 * length).saturating_sub(self.now_ms).min(*length);
            (spent * left).div_ceil(*length)
        };
        windows.iter().rev().take(2).map(reach).sum()
    }

    /// Debt in parts, and parts of a unit.
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
                let room = (u128::from(burst) * unit).saturating_sub(debt);
                u64::try_from(room / unit).unwrap()
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
                let fresh = || (ceil_millis(window), vec![(now, 0)]);
                let (_, windows) = self.sliding_windows.entry(name.clone()).or_insert_with(fresh);
                windows.last_mut().unwrap().1 += units;
                self.save_windows(name);
            }
            QuotaRule::Gcra { limit, window, .. } => {
                let moment = u128::from(now) * 1000 * u128::from(limit);
                let debt = self.gcra_debts.entry(name.clone()).or_insert_with(|| {
                    self.debt_count += 1;
                    GcraDebt {
                        rule: *rule,
                        arrival_times: [0, 0],
                        touched_ms: now,
                        debt_number: self.debt_count,
                    }
                });
                let more = u128::from(units) * u128::from(saturating_micros(window));
                debt.arrival_times.iter_mut().for_each(|at| *at = (*at).max(moment) + more);
                debt.touched_ms = now;
            }
        }
    }

    fn is_blocked(&self, name: &ModelCounterKey) -> bool {
        self.blocked_until.get(name).is_some_and(|end| *end > self.now_ms)
    }

    /// One after the other, all or none.
    fn check_charge(&mut self, charge: &ChargeCommand, charged: &ChargeOutcome) {
        let items = merge_duplicate_items(charge);
        let named: Vec<_> = items.iter().map(|i| (i, Self::counter_key(i, &charge.tag))).collect();
        for (item, name) in &named {
            self.update_counter(name, &item.rule);
            self.shorten_penalty(item, name);
        }
        let mut admitted = 0;
        for _ in 0..charge.repetitions {
            let (mut refused, mut lacking) = (false, Vec::new());
            for (item, name) in &named {
                let blocked = item.penalty.is_some() && self.is_blocked(name);
                let lacks = item.cost > 0 && self.remaining_units(name, &item.rule) < item.cost;
                refused |= blocked || lacks;
                let ever = match item.rule {
                    QuotaRule::Fixed { limit, .. } | QuotaRule::Sliding { limit, .. } => limit,
                    QuotaRule::Gcra { burst, .. } => burst,
                };
                if lacks && !blocked && item.cost <= ever {
                    lacking.push((*item, name.clone()));
                }
            }
            if refused {
                lacking.iter().for_each(|(item, name)| self.count_refusal(item, name));
            } else {
                admitted += 1;
                named
                    .iter()
                    .for_each(|(item, name)| self.charge_units(name, &item.rule, item.cost));
            }
        }
        assert_eq!(charged.admitted, admitted);
        for (item, state) in charge.items.iter().zip(&charged.snapshots) {
            self.check_snapshot(&merge_duplicate_items(charge), item, &charge.tag, state);
        }
    }

    /// No longer than from now on: the quota has changed, or the clock was put back.
    fn shorten_penalty(&mut self, item: &ChargeItem, name: &ModelCounterKey) {
        let Some(penalty) = item.penalty else { return };
        let [window, block] =
            [item.rule.window(), penalty.block_for].map(|d| self.now_ms + ceil_millis(d));
        self.refusal_counts.entry(name.clone()).and_modify(|(_, end)| *end = (*end).min(window));
        self.blocked_until.entry(name.clone()).and_modify(|end| *end = (*end).min(block));
    }

    fn count_refusal(&mut self, item: &ChargeItem, name: &ModelCounterKey) {
        let Some(penalty) = item.penalty else { return };
        let whole = self.now_ms + ceil_millis(item.rule.window());
        let (strikes, end) = self.refusal_counts.entry(name.clone()).or_insert((0, whole));
        if *end <= self.now_ms {
            (*strikes, *end) = (0, whole);
        }
        (*strikes, *end) = (*strikes + 1, (*end).min(whole));
        if *strikes >= penalty.after_refusals {
            self.refusal_counts.remove(name);
            self.blocked_until.insert(name.clone(), self.now_ms + ceil_millis(penalty.block_for));
        }
    }

    fn check_snapshot(
        &mut self,
        once: &[ChargeItem],
        item: &ChargeItem,
        tag: &Key,
        state: &QuotaSnapshot,
    ) {
        let name = Self::counter_key(item, tag);
        self.check_debt_id(&name, state.charged_window.debt_id);
        let merged = once.iter().find(|other| Self::counter_key(other, tag) == name).unwrap();
        let remaining = self.remaining_units(&name, &merged.rule);
        assert_eq!(state.remaining, remaining, "{item:?}");
        let blocked = merged.penalty.is_some() && self.is_blocked(&name);
        assert_eq!(state.blocked_for.is_some(), blocked, "{item:?}");
        let lets_in = (merged.cost == 0 || remaining >= merged.cost) && !blocked;
        assert_eq!(state.retry_after.is_zero(), lets_in, "{item:?} {state:?}");
    }

    /// One name for each debt, and none where nothing is owed.
    fn check_debt_id(&mut self, name: &ModelCounterKey, told: u64) {
        let which = self.gcra_debts.get(name).map_or(0, |debt| debt.debt_number);
        assert_eq!(told == 0, which == 0, "{name:?}");
        if told > 0 {
            let known = *self.debt_ids.entry((name.clone(), told)).or_insert(which);
            assert_eq!(known, which, "{name:?}: another debt had this name");
        }
    }

    fn check_adjustments(&mut self, call: &SettleChargeCommand, states: &[QuotaSnapshot]) {
        for (settled, state) in call.items.iter().zip(states) {
            let (policy, subject) = (settled.policy.clone(), settled.subject.clone());
            let item = ChargeItem { policy, subject, rule: settled.rule, cost: 0, penalty: None };
            let name = Self::counter_key(&item, &call.tag);
            self.update_counter(&name, &item.rule);
            match settled.kind {
                AdjustmentKind::Charge { units } => self.charge_units(&name, &item.rule, units),
                AdjustmentKind::Refund { units, window } => {
                    self.refund_units(&name, &item.rule, units, window);
                }
            }
            self.check_snapshot(std::slice::from_ref(&item), &item, &call.tag, state);
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
                // Those before do not count any more.
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
                // First in, first out: what of the debt at that time would not have been paid off yet.
                let owed = (u128::from(window.boundary).saturating_sub(now)) * u128::from(limit);
                let charged = self.debt_ids.get(&(name.clone(), window.debt_id)).copied();
                let same =
                    self.gcra_debts.get_mut(name).filter(|debt| Some(debt.debt_number) == charged);
                let Some(GcraDebt { arrival_times: [arrival, gross], touched_ms: since, .. }) =
                    same
                else {
                    return;
                };
                let given = gross.saturating_sub(now * u128::from(limit)) - debt;
                let back = (u128::from(units) * unit).min(owed.saturating_sub(given)).min(debt);
                if back > 0 {
                    (*arrival, *since) = (*arrival - back, self.now_ms);
                }
            }
        }
    }

    /// What is over by then stays so.
    fn rewind_clock(&mut self, time: Duration) {
        let now = self.now_ms;
        self.fixed_windows.retain(|_, (_, end)| *end > now);
        self.refusal_counts.retain(|_, (_, end)| *end > now);
        self.blocked_until.retain(|_, end| *end > now);
        self.written_windows.retain(|_, (length, windows)| {
            let (last, spent) = windows.last().copied().unwrap_or((now, 0));
            now < last + if spent > 0 { 2 * *length } else { *length }
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

async fn run_operations(made: &[QuotaOperation]) {
    let rig = StoreHarness::memory();
    let mut ledger = ChargeLedger::new(false);
    // As the manual clock.
    let mut model = QuotaModel { now_ms: 1_700_000_000_000, ..QuotaModel::default() };
    for made in made {
        match ledger.resolve_operation(made) {
            None => {}
            Some(QuotaCall::Charge(charge)) => {
                let charged = rig.charge(charge.clone()).await;
                model.check_charge(&charge, &charged);
                ledger.record_charge(&charge, &charged);
            }
            Some(QuotaCall::Settle(call)) => {
                let states = rig.settle_charge(call.clone()).await;
                model.check_adjustments(&call, &states);
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
    fn algorithms_count_by_their_definitions(made in operation_sequences(50)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run_operations(&made));
    }
}
