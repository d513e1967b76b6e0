//! Random sequences of charges and settlements.
//!
//! Times are whole numbers of [`TIME_STEP`], and so is every moment at which a decision changes. On Redis real time
//! passes besides, which is always a little more than the clock of the model says; what is due exactly now
//! is due then too, and what is not is a whole step away.

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

/// Policy, subject, algorithm, which of its quotas.
pub(super) type CounterChoice = (u8, usize, usize, usize);

#[derive(Debug, Clone)]
pub(super) enum QuotaOperation {
    /// Tag, counters with what each costs, times, whether they have penalties.
    Charge(usize, Vec<(CounterChoice, u64)>, u32, bool),
    /// Of the nth of the latest charges: of which counter, how much.
    Refund(usize, usize, u64),
    ChargeMore(usize, CounterChoice, u64),
    Reset(usize, CounterChoice),
    /// The server comes back without its data.
    DataLoss,
    AdvanceTime(u32),
    /// The clock is put back so many times [`REWIND_TIME`].
    RewindClock(u32),
}

/// Further than all steps of a run together: no moment comes again.
pub(super) const REWIND_TIME: Duration = TIME_STEP.saturating_mul(1000);

pub(super) fn operation_sequences(most: usize) -> impl Strategy<Value = Vec<QuotaOperation>> {
    let which = || {
        let few = prop_oneof![3 => Just(0_usize), 1 => Just(1)];
        (0..2_u8, few, 0..3_usize, prop_oneof![4 => Just(0_usize), 1 => 1..3_usize])
    };
    let tag = || prop_oneof![3 => Just(0_usize), 1 => Just(1)];
    let items = prop::collection::vec((which(), 0..4_u64), 1..4);
    let any = prop_oneof![
        8 => (tag(), items, 0..4_u32, prop::bool::weighted(0.3))
            .prop_map(|(tag, items, times, penalty)| QuotaOperation::Charge(tag, items, times, penalty)),
        4 => (0..4_usize, 0..3_usize, 0..4_u64).prop_map(|(n, at, units)| QuotaOperation::Refund(n, at, units)),
        1 => (tag(), which(), 0..4_u64).prop_map(|(tag, which, units)| QuotaOperation::ChargeMore(tag, which, units)),
        1 => (tag(), which()).prop_map(|(tag, which)| QuotaOperation::Reset(tag, which)),
        1 => prop_oneof![3 => (1..3_u32).prop_map(QuotaOperation::RewindClock), 1 => Just(QuotaOperation::DataLoss)],
        5 => (1..4_u32).prop_map(QuotaOperation::AdvanceTime),
    ];
    prop::collection::vec(any, 1..most)
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

/// A move, with what a store has told of the charges before it.
#[derive(Debug, Clone)]
pub(super) enum QuotaCall {
    Charge(ChargeCommand),
    Settle(SettleChargeCommand),
    /// Of each of these counters.
    Reset(Vec<(Key, ChargeItem)>),
    AdvanceTime(Duration),
    RewindClock(Duration),
}

/// What one store was asked and has answered.
pub(super) struct ChargeLedger {
    subjects: [Key; 2],
    charges: Vec<(ChargeCommand, ChargeOutcome, Vec<bool>)>,
    /// Real time passes: a sliding window that is cut to another length begins at a moment of its own, so that a
    /// refund finds it by chance, where no time has passed, or not. So does a window that begins anew after a reset.
    is_real_time: bool,
    /// Of sliding windows: the length that was touched last, and after how many charges it was another one.
    last_window_length: (Duration, usize),
    /// How many charges had been made when a counter was last reset.
    charges_before_reset: usize,
}

impl ChargeLedger {
    pub(super) fn new(real_time: bool) -> Self {
        Self {
            subjects: keys_of_one_shard::<2>(),
            charges: Vec::new(),
            is_real_time: real_time,
            last_window_length: (Duration::ZERO, 0),
            charges_before_reset: 0,
        }
    }

    /// What a move means now; nothing, if there is nothing to give back.
    pub(super) fn resolve_operation(&mut self, made: &QuotaOperation) -> Option<QuotaCall> {
        Some(match made {
            QuotaOperation::Charge(tag, items, times, penalty) => {
                let penalty =
                    penalty.then_some(Penalty { after_refusals: 3, block_for: TIME_STEP * 2 });
                self.track_window_length(items.iter().map(|(which, _)| *which));
                let item =
                    |(which, cost): &(CounterChoice, u64)| self.charge_item(*which, *cost, penalty);
                let items = items.iter().map(item).collect();
                QuotaCall::Charge(ChargeCommand {
                    tag: self.subjects[*tag].clone(),
                    items,
                    repetitions: *times,
                })
            }
            QuotaOperation::Refund(n, at, units) => {
                let at_charge = self.charges.len().checked_sub(1 + n)?;
                let (charge, charged, refunded) = &mut self.charges[at_charge];
                let at = at % charge.items.len();
                if charged.admitted == 0 || std::mem::replace(&mut refunded[at], true) {
                    return None;
                }
                let item = &charge.items[at];
                let apart = match item.rule {
                    // A debt is known by itself.
                    QuotaRule::Gcra { .. } => false,
                    QuotaRule::Sliding { window, .. } => {
                        window != self.last_window_length.0
                            || self.last_window_length.1.max(self.charges_before_reset) > at_charge
                    }
                    QuotaRule::Fixed { .. } => self.charges_before_reset > at_charge,
                };
                if self.is_real_time && apart {
                    return None;
                }
                let units = (*units).min(item.cost * u64::from(charged.admitted));
                let by =
                    AdjustmentKind::Refund { units, window: charged.snapshots[at].charged_window };
                QuotaCall::Settle(adjustment_command(&charge.tag, item, by))
            }
            QuotaOperation::ChargeMore(tag, which, units) => {
                self.track_window_length([*which].into_iter());
                let item = self.charge_item(*which, 0, None);
                QuotaCall::Settle(adjustment_command(
                    &self.subjects[*tag],
                    &item,
                    AdjustmentKind::Charge { units: *units },
                ))
            }
            QuotaOperation::Reset(tag, which) => {
                self.charges_before_reset = self.charges.len();
                QuotaCall::Reset(vec![(
                    self.subjects[*tag].clone(),
                    self.charge_item(*which, 0, None),
                )])
            }
            QuotaOperation::DataLoss => {
                self.charges_before_reset = self.charges.len();
                QuotaCall::Reset(self.all_counters())
            }
            QuotaOperation::AdvanceTime(steps) => QuotaCall::AdvanceTime(TIME_STEP * *steps),
            QuotaOperation::RewindClock(times) => QuotaCall::RewindClock(REWIND_TIME * *times),
        })
    }

    pub(super) fn record_charge(&mut self, charge: &ChargeCommand, charged: &ChargeOutcome) {
        let refunded = vec![false; charge.items.len()];
        self.charges.push((charge.clone(), charged.clone(), refunded));
    }

    /// Every counter that there may be.
    fn all_counters(&self) -> Vec<(Key, ChargeItem)> {
        let each = (0..3).flat_map(|algorithm| (0..2).map(move |subject| (subject, algorithm)));
        let each = each.flat_map(|(subject, algorithm)| {
            (0..2_u8).map(move |policy| (policy, subject, algorithm, 0))
        });
        let items: Vec<_> = each.map(|which| self.charge_item(which, 0, None)).collect();
        let of =
            |tag: &Key| items.iter().map(|item| (tag.clone(), item.clone())).collect::<Vec<_>>();
        self.subjects.iter().flat_map(of).collect()
    }

    fn track_window_length(&mut self, items: impl Iterator<Item = CounterChoice>) {
        for (at, (_, _, algorithm, quota)) in items.enumerate() {
            match quota_rule(algorithm, quota) {
                QuotaRule::Sliding { window, .. } if window != self.last_window_length.0 => {
                    // Within one charge, it is changed by that charge too.
                    self.last_window_length = (window, self.charges.len() + usize::from(at > 0));
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

fn adjustment_command(tag: &Key, item: &ChargeItem, by: AdjustmentKind) -> SettleChargeCommand {
    let ChargeItem { policy, subject, rule, .. } = item.clone();
    SettleChargeCommand {
        tag: tag.clone(),
        items: vec![ChargeAdjustment { policy, subject, rule, kind: by }],
    }
}
