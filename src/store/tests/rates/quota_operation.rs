//! Random sequences of charges and adjustments.
//!
//! Times are multiples of [`TIME_STEP`], and so is every time at which a decision changes. On
//! Redis, real time passes in addition, so its clock is always a little ahead of the model's. What
//! is due now in the model is due there too; everything else is a whole step away.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;

use crate::{
    Key,
    store::{
        ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, Penalty, QuotaRule,
        SettleChargeCommand, rate::AdjustmentKind, tests::store_harness::keys_of_one_shard,
    },
};

const TIME_STEP: Duration = Duration::from_secs(10);

/// Policy, subject, algorithm, and index of its quota.
pub(super) type CounterChoice = (u8, usize, usize, usize);

#[derive(Debug, Clone)]
pub(super) enum QuotaOperation {
    /// Tag, counters with their costs, repetitions, and whether there are penalties.
    Charge(usize, Vec<(CounterChoice, u64)>, u32, bool),
    /// Refund of the nth of the latest charges: index of the counter, units.
    Refund(usize, usize, u64),
    ChargeMore(usize, CounterChoice, u64),
    Reset(usize, CounterChoice),
    /// The server restarts without its data.
    DataLoss,
    AdvanceTime(u32),
    /// The clock is put back by this multiple of [`REWIND_TIME`].
    RewindClock(u32),
}

/// More than all steps of a run together, so no time occurs twice.
pub(super) const REWIND_TIME: Duration = TIME_STEP.saturating_mul(1000);

pub(super) fn operation_sequences(max_length: usize) -> impl Strategy<Value = Vec<QuotaOperation>> {
    let choice = || {
        let few = prop_oneof![3 => Just(0_usize), 1 => Just(1)];
        (0..2_u8, few, 0..3_usize, prop_oneof![4 => Just(0_usize), 1 => 1..3_usize])
    };
    let tag = || prop_oneof![3 => Just(0_usize), 1 => Just(1)];
    let items = prop::collection::vec((choice(), 0..4_u64), 1..4);
    let operation = prop_oneof![
        8 => (tag(), items, 0..4_u32, prop::bool::weighted(0.3))
            .prop_map(|(tag, items, repetitions, penalty)| QuotaOperation::Charge(tag, items, repetitions, penalty)),
        4 => (0..4_usize, 0..3_usize, 0..4_u64).prop_map(|(n, item_index, units)| QuotaOperation::Refund(n, item_index, units)),
        1 => (tag(), choice(), 0..4_u64).prop_map(|(tag, choice, units)| QuotaOperation::ChargeMore(tag, choice, units)),
        1 => (tag(), choice()).prop_map(|(tag, choice)| QuotaOperation::Reset(tag, choice)),
        1 => prop_oneof![3 => (1..3_u32).prop_map(QuotaOperation::RewindClock), 1 => Just(QuotaOperation::DataLoss)],
        5 => (1..4_u32).prop_map(QuotaOperation::AdvanceTime),
    ];
    prop::collection::vec(operation, 1..max_length)
}

pub(super) fn quota_rule(algorithm: usize, quota: usize) -> QuotaRule {
    let window = |steps: u32| TIME_STEP * steps;
    match (algorithm, quota) {
        (0, 0) => QuotaRule::Fixed { limit: 4, window: window(3) },
        (0, 1) => QuotaRule::Fixed { limit: 6, window: window(2) },
        (0, _) => QuotaRule::Fixed { limit: 2, window: window(5) },
        (1, 0) => QuotaRule::Sliding { limit: 4, window: window(4) },
        (1, 1) => QuotaRule::Sliding { limit: 6, window: window(4) },
        (1, _) => QuotaRule::Sliding { limit: 3, window: window(2) },
        (_, 0) => QuotaRule::Gcra { limit: 1, window: window(1), burst: 4 },
        (_, 1) => QuotaRule::Gcra { limit: 1, window: window(2), burst: 6 },
        (..) => QuotaRule::Gcra { limit: 2, window: window(1), burst: 3 },
    }
}

/// An operation with its arguments resolved from the earlier replies of a store.
#[derive(Debug, Clone)]
pub(super) enum QuotaCall {
    Charge(ChargeCommand),
    Settle(SettleChargeCommand),
    /// Resets each of these counters.
    Reset(Vec<(Key, ChargeItem)>),
    AdvanceTime(Duration),
    RewindClock(Duration),
}

/// Charges of one store and their outcomes.
pub(super) struct ChargeLedger {
    subjects: [Key; 2],
    charges: Vec<(ChargeCommand, ChargeOutcome, Vec<bool>)>,
    /// True if real time passes. Then a sliding window that is cut to another length starts at a
    /// time of its own, and so does a window after a reset. A refund may or may not find such a
    /// window, so it is left out.
    is_real_time: bool,
    /// For sliding windows: the last length, and the number of charges before it changed.
    last_window_length: (Duration, usize),
    /// Number of charges before the last reset of a counter.
    charges_before_reset: usize,
}

impl ChargeLedger {
    pub(super) fn new(is_real_time: bool) -> Self {
        Self {
            subjects: keys_of_one_shard::<2>(),
            charges: Vec::new(),
            is_real_time,
            last_window_length: (Duration::ZERO, 0),
            charges_before_reset: 0,
        }
    }

    /// Resolves an operation; `None` if there is nothing to refund.
    pub(super) fn resolve_operation(&mut self, operation: &QuotaOperation) -> Option<QuotaCall> {
        Some(match operation {
            QuotaOperation::Charge(tag, items, repetitions, penalty) => {
                let penalty =
                    penalty.then_some(Penalty { after_refusals: 3, block_for: TIME_STEP * 2 });
                self.track_window_length(items.iter().map(|(choice, _)| *choice));
                let item = |(choice, cost): &(CounterChoice, u64)| {
                    self.charge_item(*choice, *cost, penalty)
                };
                let items = items.iter().map(item).collect();
                QuotaCall::Charge(ChargeCommand {
                    tag: self.subjects[*tag].clone(),
                    items,
                    repetitions: *repetitions,
                })
            }
            QuotaOperation::Refund(n, item_index, units) => {
                let charge_index = self.charges.len().checked_sub(1 + n)?;
                let (charge, charged, refunded) = &mut self.charges[charge_index];
                let item_index = item_index % charge.items.len();
                if charged.admitted == 0 || std::mem::replace(&mut refunded[item_index], true) {
                    return None;
                }
                let item = &charge.items[item_index];
                let may_differ = match item.rule {
                    // A debt has an id.
                    QuotaRule::Gcra { .. } => false,
                    QuotaRule::Sliding { window, .. } => {
                        window != self.last_window_length.0
                            || self.last_window_length.1.max(self.charges_before_reset)
                                > charge_index
                    }
                    QuotaRule::Fixed { .. } => self.charges_before_reset > charge_index,
                };
                if self.is_real_time && may_differ {
                    return None;
                }
                let units = (*units).min(item.cost * u64::from(charged.admitted));
                let kind = AdjustmentKind::Refund {
                    units,
                    window: charged.snapshots[item_index].charged_window,
                };
                QuotaCall::Settle(adjustment_command(&charge.tag, item, kind))
            }
            QuotaOperation::ChargeMore(tag, choice, units) => {
                self.track_window_length([*choice].into_iter());
                let item = self.charge_item(*choice, 0, None);
                QuotaCall::Settle(adjustment_command(
                    &self.subjects[*tag],
                    &item,
                    AdjustmentKind::Charge { units: *units },
                ))
            }
            QuotaOperation::Reset(tag, choice) => {
                self.charges_before_reset = self.charges.len();
                QuotaCall::Reset(vec![(
                    self.subjects[*tag].clone(),
                    self.charge_item(*choice, 0, None),
                )])
            }
            QuotaOperation::DataLoss => {
                self.charges_before_reset = self.charges.len();
                QuotaCall::Reset(self.all_counters())
            }
            QuotaOperation::AdvanceTime(steps) => QuotaCall::AdvanceTime(TIME_STEP * *steps),
            QuotaOperation::RewindClock(repetitions) => {
                QuotaCall::RewindClock(REWIND_TIME * *repetitions)
            }
        })
    }

    pub(super) fn record_charge(&mut self, charge: &ChargeCommand, charged: &ChargeOutcome) {
        let refunded = vec![false; charge.items.len()];
        self.charges.push((charge.clone(), charged.clone(), refunded));
    }

    /// Returns every possible counter.
    fn all_counters(&self) -> Vec<(Key, ChargeItem)> {
        let choices = (0..3).flat_map(|algorithm| (0..2).map(move |subject| (subject, algorithm)));
        let choices = choices.flat_map(|(subject, algorithm)| {
            (0..2_u8).map(move |policy| (policy, subject, algorithm, 0))
        });
        let items: Vec<_> = choices.map(|choice| self.charge_item(choice, 0, None)).collect();
        let with_tag =
            |tag: &Key| items.iter().map(|item| (tag.clone(), item.clone())).collect::<Vec<_>>();
        self.subjects.iter().flat_map(with_tag).collect()
    }

    fn track_window_length(&mut self, items: impl Iterator<Item = CounterChoice>) {
        for (index, (_, _, algorithm, quota)) in items.enumerate() {
            match quota_rule(algorithm, quota) {
                QuotaRule::Sliding { window, .. } if window != self.last_window_length.0 => {
                    // A change within one charge counts from that charge on.
                    self.last_window_length = (window, self.charges.len() + usize::from(index > 0));
                }
                _ => {}
            }
        }
    }

    fn charge_item(
        &self,
        (policy, subject, algorithm, quota): CounterChoice,
        cost: u64,
        penalty: Option<Penalty>,
    ) -> ChargeItem {
        let policy: Arc<str> = policy.to_string().into();
        let subject = self.subjects[subject].clone();
        ChargeItem { policy, subject, rule: quota_rule(algorithm, quota), cost, penalty }
    }
}

fn adjustment_command(tag: &Key, item: &ChargeItem, kind: AdjustmentKind) -> SettleChargeCommand {
    let ChargeItem { policy, subject, rule, .. } = item.clone();
    SettleChargeCommand {
        tag: tag.clone(),
        items: vec![ChargeAdjustment { policy, subject, rule, kind }],
    }
}
