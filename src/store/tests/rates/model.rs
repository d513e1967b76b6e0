//! The embedded store against plain models: a window that is counted, a list of windows, and the theoretical
//! arrival time of the next cell, each written down as its definition has it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use proptest::prelude::*;

use super::moves::{Call, Ledger, Move, moves};
use crate::{
    Key,
    clock::{ceil_millis, saturating_micros},
    store::{
        ChargeCommand, ChargeItem, ChargeOutcome, ChargedWindow, QuotaRule, QuotaSnapshot,
        SettleChargeCommand,
        rate::{AdjustmentKind, Algorithm},
        tests::{moves::cases, rig::Rig},
    },
};

type Name = (Arc<str>, Key, Key, Algorithm);

#[derive(Default)]
struct Model {
    now: u64,
    fixed: HashMap<Name, (u64, u64)>,
    /// Length of windows, and what was charged in each, by its start.
    sliding: HashMap<Name, (u64, Vec<(u64, u64)>)>,
    /// The same as it was changed last: it is what a clock that is put back finds.
    written: HashMap<Name, (u64, Vec<(u64, u64)>)>,
    gcra: HashMap<Name, Debt>,
    /// How many debts have begun, and which of them goes by which name of the store.
    debts: u64,
    told: HashMap<(Name, u64), u64>,
    refusals: HashMap<Name, (u32, u64)>,
    blocked: HashMap<Name, u64>,
}

/// What is owed, by the theoretical arrival time.
#[derive(Clone, Copy)]
struct Debt {
    rule: QuotaRule,
    /// With and without refunds, in parts of a microsecond: as many as the limit.
    arrivals: [u128; 2],
    /// When it was touched last, in ms. Until then it stands, if the clock is put back.
    since: u64,
    which: u64,
}

/// One counter once, by the first's rule but for the limit, which is the least.
fn once(charge: &ChargeCommand) -> Vec<ChargeItem> {
    charge
        .merge_duplicates()
        .map_or_else(|| charge.items.to_vec(), |(merged, _)| merged.items.to_vec())
}

impl Model {
    fn name(item: &ChargeItem, tag: &Key) -> Name {
        (item.policy.clone(), item.subject.clone(), tag.clone(), item.rule.algorithm())
    }

    /// What has ended is forgotten, and what stands there is brought to this rule.
    fn look(&mut self, name: &Name, rule: &QuotaRule) {
        let now = self.now;
        match *rule {
            QuotaRule::Fixed { window, .. } => {
                self.fixed.retain(|_, (_, end)| *end > now);
                if let Some((_, end)) = self.fixed.get_mut(name) {
                    *end = (*end).min(now + ceil_millis(window));
                }
            }
            QuotaRule::Sliding { window, .. } => {
                let length = ceil_millis(window);
                let used = self.used(name);
                let Some((old, windows)) = self.sliding.get_mut(name) else { return };
                let (last, spent) = windows.last().copied().unwrap_or((now, 0));
                // Of one in which nothing is spent nothing is left when it ends.
                if now >= last + if spent > 0 { 2 * *old } else { *old } {
                    self.sliding.remove(name);
                    return;
                }
                if *old != length {
                    (*old, *windows) = (length, vec![(now - length, used), (now, 0)]);
                    self.write(name);
                } else if last > now {
                    // The clock was put back: the window begins now.
                    windows.iter_mut().for_each(|(start, _)| *start -= last - now);
                    self.write(name);
                } else if now >= last + *old {
                    windows.push((last + *old, 0));
                }
            }
            QuotaRule::Gcra { .. } => {
                let Some(Debt { rule: old, mut arrivals, since, mut which }) =
                    self.gcra.get(name).copied()
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
                    self.gcra.remove(name);
                    return;
                }
                let other = since > now || (l, w) != (limit, window);
                if other {
                    self.debts += 1;
                    which = self.debts;
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
                self.gcra.insert(name.clone(), Debt { rule: *rule, arrivals, since, which });
            }
        }
    }

    fn write(&mut self, name: &Name) {
        if let Some(windows) = self.sliding.get(name).cloned() {
            self.written.insert(name.clone(), windows);
        }
    }

    /// What of a sliding counter is within reach: of the last window all, of the one before its part.
    fn used(&self, name: &Name) -> u64 {
        let Some((length, windows)) = self.sliding.get(name) else { return 0 };
        let reach = |(start, spent): &(u64, u64)| {
            let left = (start + 2 * length).saturating_sub(self.now).min(*length);
            (spent * left).div_ceil(*length)
        };
        windows.iter().rev().take(2).map(reach).sum()
    }

    /// Debt in parts, and parts of a unit.
    fn debt(&self, name: &Name, rule: &QuotaRule) -> (u128, u128) {
        let QuotaRule::Gcra { limit, window, .. } = *rule else { panic!("{rule:?}") };
        let us = u128::from(self.now) * 1000 * u128::from(limit);
        let arrival = self.gcra.get(name).map_or(0, |debt| debt.arrivals[0]);
        (arrival.saturating_sub(us), u128::from(saturating_micros(window)))
    }

    fn remaining(&self, name: &Name, rule: &QuotaRule) -> u64 {
        match *rule {
            QuotaRule::Fixed { limit, .. } => {
                limit.saturating_sub(self.fixed.get(name).map_or(0, |(spent, _)| *spent))
            }
            QuotaRule::Sliding { limit, .. } => limit.saturating_sub(self.used(name)),
            QuotaRule::Gcra { burst, .. } => {
                let (debt, unit) = self.debt(name, rule);
                let room = (u128::from(burst) * unit).saturating_sub(debt);
                u64::try_from(room / unit).unwrap()
            }
        }
    }

    fn spend(&mut self, name: &Name, rule: &QuotaRule, units: u64) {
        let now = self.now;
        match *rule {
            _ if units == 0 => {}
            QuotaRule::Fixed { window, .. } => {
                let end = now + ceil_millis(window);
                self.fixed.entry(name.clone()).or_insert((0, end)).0 += units;
            }
            QuotaRule::Sliding { window, .. } => {
                let fresh = || (ceil_millis(window), vec![(now, 0)]);
                let (_, windows) = self.sliding.entry(name.clone()).or_insert_with(fresh);
                windows.last_mut().unwrap().1 += units;
                self.write(name);
            }
            QuotaRule::Gcra { limit, window, .. } => {
                let moment = u128::from(now) * 1000 * u128::from(limit);
                let debt = self.gcra.entry(name.clone()).or_insert_with(|| {
                    self.debts += 1;
                    Debt { rule: *rule, arrivals: [0, 0], since: now, which: self.debts }
                });
                let more = u128::from(units) * u128::from(saturating_micros(window));
                debt.arrivals.iter_mut().for_each(|at| *at = (*at).max(moment) + more);
                debt.since = now;
            }
        }
    }

    fn is_blocked(&self, name: &Name) -> bool {
        self.blocked.get(name).is_some_and(|end| *end > self.now)
    }

    /// One after the other, all or none.
    fn charge(&mut self, charge: &ChargeCommand, charged: &ChargeOutcome) {
        let items = once(charge);
        let named: Vec<_> = items.iter().map(|i| (i, Self::name(i, &charge.tag))).collect();
        for (item, name) in &named {
            self.look(name, &item.rule);
            self.look_at_refusals(item, name);
        }
        let mut admitted = 0;
        for _ in 0..charge.repetitions {
            let (mut refused, mut lacking) = (false, Vec::new());
            for (item, name) in &named {
                let blocked = item.penalty.is_some() && self.is_blocked(name);
                let lacks = item.cost > 0 && self.remaining(name, &item.rule) < item.cost;
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
                lacking.iter().for_each(|(item, name)| self.strike(item, name));
            } else {
                admitted += 1;
                named.iter().for_each(|(item, name)| self.spend(name, &item.rule, item.cost));
            }
        }
        assert_eq!(charged.admitted, admitted);
        for (item, state) in charge.items.iter().zip(&charged.snapshots) {
            self.says(&once(charge), item, &charge.tag, state);
        }
    }

    /// No longer than from now on: the quota has changed, or the clock was put back.
    fn look_at_refusals(&mut self, item: &ChargeItem, name: &Name) {
        let Some(penalty) = item.penalty else { return };
        let [window, block] =
            [item.rule.window(), penalty.block_for].map(|d| self.now + ceil_millis(d));
        self.refusals.entry(name.clone()).and_modify(|(_, end)| *end = (*end).min(window));
        self.blocked.entry(name.clone()).and_modify(|end| *end = (*end).min(block));
    }

    fn strike(&mut self, item: &ChargeItem, name: &Name) {
        let Some(penalty) = item.penalty else { return };
        let whole = self.now + ceil_millis(item.rule.window());
        let (strikes, end) = self.refusals.entry(name.clone()).or_insert((0, whole));
        if *end <= self.now {
            (*strikes, *end) = (0, whole);
        }
        (*strikes, *end) = (*strikes + 1, (*end).min(whole));
        if *strikes >= penalty.after_refusals {
            self.refusals.remove(name);
            self.blocked.insert(name.clone(), self.now + ceil_millis(penalty.block_for));
        }
    }

    fn says(&mut self, once: &[ChargeItem], item: &ChargeItem, tag: &Key, state: &QuotaSnapshot) {
        let name = Self::name(item, tag);
        self.hears(&name, state.charged_window.debt_id);
        let merged = once.iter().find(|other| Self::name(other, tag) == name).unwrap();
        let remaining = self.remaining(&name, &merged.rule);
        assert_eq!(state.remaining, remaining, "{item:?}");
        let blocked = merged.penalty.is_some() && self.is_blocked(&name);
        assert_eq!(state.blocked_for.is_some(), blocked, "{item:?}");
        let lets_in = (merged.cost == 0 || remaining >= merged.cost) && !blocked;
        assert_eq!(state.retry_after.is_zero(), lets_in, "{item:?} {state:?}");
    }

    /// One name for each debt, and none where nothing is owed.
    fn hears(&mut self, name: &Name, told: u64) {
        let which = self.gcra.get(name).map_or(0, |debt| debt.which);
        assert_eq!(told == 0, which == 0, "{name:?}");
        if told > 0 {
            let known = *self.told.entry((name.clone(), told)).or_insert(which);
            assert_eq!(known, which, "{name:?}: another debt had this name");
        }
    }

    fn settle(&mut self, call: &SettleChargeCommand, states: &[QuotaSnapshot]) {
        for (settled, state) in call.items.iter().zip(states) {
            let (policy, subject) = (settled.policy.clone(), settled.subject.clone());
            let item = ChargeItem { policy, subject, rule: settled.rule, cost: 0, penalty: None };
            let name = Self::name(&item, &call.tag);
            self.look(&name, &item.rule);
            match settled.kind {
                AdjustmentKind::Charge { units } => self.spend(&name, &item.rule, units),
                AdjustmentKind::Refund { units, window } => {
                    self.refund(&name, &item.rule, units, window);
                }
            }
            self.says(std::slice::from_ref(&item), &item, &call.tag, state);
        }
    }

    fn refund(&mut self, name: &Name, rule: &QuotaRule, units: u64, window: ChargedWindow) {
        match *rule {
            QuotaRule::Fixed { .. } => {
                let same = self.fixed.get_mut(name).filter(|(_, end)| *end == window.boundary);
                same.into_iter().for_each(|(spent, _)| *spent = spent.saturating_sub(units));
            }
            QuotaRule::Sliding { .. } => {
                let windows = self.sliding.get_mut(name).map(|(_, windows)| windows);
                // Those before do not count any more.
                let mut all = windows.into_iter().flat_map(|all| all.iter_mut().rev().take(2));
                let same = all.find(|(start, spent)| *start == window.boundary && *spent > 0);
                if let Some((_, spent)) = same.filter(|_| units > 0) {
                    *spent = spent.saturating_sub(units);
                    self.write(name);
                }
            }
            QuotaRule::Gcra { limit, .. } => {
                let now = u128::from(self.now) * 1000;
                let (debt, unit) = self.debt(name, rule);
                // First in, first out: what of the debt at that time would not have been paid off yet.
                let owed = (u128::from(window.boundary).saturating_sub(now)) * u128::from(limit);
                let charged = self.told.get(&(name.clone(), window.debt_id)).copied();
                let same = self.gcra.get_mut(name).filter(|debt| Some(debt.which) == charged);
                let Some(Debt { arrivals: [arrival, gross], since, .. }) = same else { return };
                let given = gross.saturating_sub(now * u128::from(limit)) - debt;
                let back = (u128::from(units) * unit).min(owed.saturating_sub(given)).min(debt);
                if back > 0 {
                    (*arrival, *since) = (*arrival - back, self.now);
                }
            }
        }
    }

    /// What is over by then stays so.
    fn put_back(&mut self, time: Duration) {
        let now = self.now;
        self.fixed.retain(|_, (_, end)| *end > now);
        self.refusals.retain(|_, (_, end)| *end > now);
        self.blocked.retain(|_, end| *end > now);
        self.written.retain(|_, (length, windows)| {
            let (last, spent) = windows.last().copied().unwrap_or((now, 0));
            now < last + if spent > 0 { 2 * *length } else { *length }
        });
        self.sliding.clone_from(&self.written);
        self.gcra.retain(|_, debt| {
            let QuotaRule::Gcra { limit, .. } = debt.rule else { panic!("{:?}", debt.rule) };
            debt.arrivals[1] > u128::from(now) * 1000 * u128::from(limit)
        });
        self.now -= ceil_millis(time);
    }

    fn reset(&mut self, item: &ChargeItem, tag: &Key) {
        let name = Self::name(item, tag);
        self.fixed.remove(&name);
        self.sliding.remove(&name);
        self.written.remove(&name);
        self.gcra.remove(&name);
        self.refusals.remove(&name);
        self.blocked.remove(&name);
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

async fn play(made: &[Move]) {
    let rig = Rig::memory();
    let mut ledger = Ledger::new(false);
    // As the manual clock.
    let mut model = Model { now: 1_700_000_000_000, ..Model::default() };
    for made in made {
        match ledger.call(made) {
            None => {}
            Some(Call::Charge(charge)) => {
                let charged = rig.charge(charge.clone()).await;
                model.charge(&charge, &charged);
                ledger.hear(&charge, &charged);
            }
            Some(Call::Settle(call)) => {
                let states = rig.settle_charge(call.clone()).await;
                model.settle(&call, &states);
            }
            Some(Call::Reset(counters)) => {
                for (tag, item) in counters {
                    rig.reset(&item, &tag).await;
                    model.reset(&item, &tag);
                }
            }
            Some(Call::Pass(time)) => {
                rig.advance(time).await;
                model.now += ceil_millis(time);
            }
            Some(Call::PutBack(time)) => {
                rig.put_back(time).await;
                model.put_back(time);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn each_algorithm_counts_as_its_definition_says(made in moves(50)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(play(&made));
    }
}
