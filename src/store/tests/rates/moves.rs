//! Random sequences of charges and settlements.
//!
//! Times are whole numbers of [`STEP`], and so is every moment at which a decision changes. On Redis real time
//! passes besides, which is always a little more than the clock of the model says; what is due exactly now
//! is due then too, and what is not is a whole step away.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;

use crate::{
    Key,
    store::{
        ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, Penalty, QuotaRule,
        SettleChargeCommand, rate::AdjustmentKind, tests::rig::neighbours,
    },
};

const STEP: Duration = Duration::from_secs(10);

/// Policy, subject, algorithm, which of its quotas.
pub(super) type Which = (u8, usize, usize, usize);

#[derive(Debug, Clone)]
pub(super) enum Move {
    /// Tag, counters with what each costs, times, whether they have penalties.
    Charge(usize, Vec<(Which, u64)>, u32, bool),
    /// Of the nth of the latest charges: of which counter, how much.
    Refund(usize, usize, u64),
    More(usize, Which, u64),
    Reset(usize, Which),
    /// The server comes back without its data.
    Loss,
    Pass(u32),
    /// The clock is put back so many times [`FAR`].
    PutBack(u32),
}

/// Further than all steps of a run together: no moment comes again.
pub(super) const FAR: Duration = STEP.saturating_mul(1000);

pub(super) fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    let which = || {
        let few = prop_oneof![3 => Just(0_usize), 1 => Just(1)];
        (0..2_u8, few, 0..3_usize, prop_oneof![4 => Just(0_usize), 1 => 1..3_usize])
    };
    let tag = || prop_oneof![3 => Just(0_usize), 1 => Just(1)];
    let items = prop::collection::vec((which(), 0..4_u64), 1..4);
    let any = prop_oneof![
        8 => (tag(), items, 0..4_u32, prop::bool::weighted(0.3))
            .prop_map(|(tag, items, times, penalty)| Move::Charge(tag, items, times, penalty)),
        4 => (0..4_usize, 0..3_usize, 0..4_u64).prop_map(|(n, at, units)| Move::Refund(n, at, units)),
        1 => (tag(), which(), 0..4_u64).prop_map(|(tag, which, units)| Move::More(tag, which, units)),
        1 => (tag(), which()).prop_map(|(tag, which)| Move::Reset(tag, which)),
        1 => prop_oneof![3 => (1..3_u32).prop_map(Move::PutBack), 1 => Just(Move::Loss)],
        5 => (1..4_u32).prop_map(Move::Pass),
    ];
    prop::collection::vec(any, 1..most)
}

pub(super) fn rule(algorithm: usize, quota: usize) -> QuotaRule {
    let window = |steps: u32| STEP * steps;
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
pub(super) enum Call {
    Charge(ChargeCommand),
    Settle(SettleChargeCommand),
    /// Of each of these counters.
    Reset(Vec<(Key, ChargeItem)>),
    Pass(Duration),
    PutBack(Duration),
}

/// What one store was asked and has answered.
pub(super) struct Ledger {
    subjects: [Key; 2],
    made: Vec<(ChargeCommand, ChargeOutcome, Vec<bool>)>,
    /// Real time passes: a sliding window that is cut to another length begins at a moment of its own, so that a
    /// refund finds it by chance, where no time has passed, or not. So does a window that begins anew after a reset.
    real_time: bool,
    /// Of sliding windows: the length that was touched last, and after how many charges it was another one.
    length: (Duration, usize),
    /// How many charges had been made when a counter was last reset.
    reset: usize,
}

impl Ledger {
    pub(super) fn new(real_time: bool) -> Self {
        Self {
            subjects: neighbours::<2>(),
            made: Vec::new(),
            real_time,
            length: (Duration::ZERO, 0),
            reset: 0,
        }
    }

    /// What a move means now; nothing, if there is nothing to give back.
    pub(super) fn call(&mut self, made: &Move) -> Option<Call> {
        Some(match made {
            Move::Charge(tag, items, times, penalty) => {
                let penalty = penalty.then_some(Penalty { after_refusals: 3, block_for: STEP * 2 });
                self.touch(items.iter().map(|(which, _)| *which));
                let item = |(which, cost): &(Which, u64)| self.item(*which, *cost, penalty);
                let items = items.iter().map(item).collect();
                Call::Charge(ChargeCommand {
                    tag: self.subjects[*tag].clone(),
                    items,
                    repetitions: *times,
                })
            }
            Move::Refund(n, at, units) => {
                let at_charge = self.made.len().checked_sub(1 + n)?;
                let (charge, charged, refunded) = &mut self.made[at_charge];
                let at = at % charge.items.len();
                if charged.admitted == 0 || std::mem::replace(&mut refunded[at], true) {
                    return None;
                }
                let item = &charge.items[at];
                let apart = match item.rule {
                    // A debt is known by itself.
                    QuotaRule::Gcra { .. } => false,
                    QuotaRule::Sliding { window, .. } => {
                        window != self.length.0 || self.length.1.max(self.reset) > at_charge
                    }
                    QuotaRule::Fixed { .. } => self.reset > at_charge,
                };
                if self.real_time && apart {
                    return None;
                }
                let units = (*units).min(item.cost * u64::from(charged.admitted));
                let by =
                    AdjustmentKind::Refund { units, window: charged.snapshots[at].charged_window };
                Call::Settle(settled(&charge.tag, item, by))
            }
            Move::More(tag, which, units) => {
                self.touch([*which].into_iter());
                let item = self.item(*which, 0, None);
                Call::Settle(settled(
                    &self.subjects[*tag],
                    &item,
                    AdjustmentKind::Charge { units: *units },
                ))
            }
            Move::Reset(tag, which) => {
                self.reset = self.made.len();
                Call::Reset(vec![(self.subjects[*tag].clone(), self.item(*which, 0, None))])
            }
            Move::Loss => {
                self.reset = self.made.len();
                Call::Reset(self.all())
            }
            Move::Pass(steps) => Call::Pass(STEP * *steps),
            Move::PutBack(times) => Call::PutBack(FAR * *times),
        })
    }

    pub(super) fn hear(&mut self, charge: &ChargeCommand, charged: &ChargeOutcome) {
        let refunded = vec![false; charge.items.len()];
        self.made.push((charge.clone(), charged.clone(), refunded));
    }

    /// Every counter that there may be.
    fn all(&self) -> Vec<(Key, ChargeItem)> {
        let each = (0..3).flat_map(|algorithm| (0..2).map(move |subject| (subject, algorithm)));
        let each = each.flat_map(|(subject, algorithm)| {
            (0..2_u8).map(move |policy| (policy, subject, algorithm, 0))
        });
        let items: Vec<_> = each.map(|which| self.item(which, 0, None)).collect();
        let of =
            |tag: &Key| items.iter().map(|item| (tag.clone(), item.clone())).collect::<Vec<_>>();
        self.subjects.iter().flat_map(of).collect()
    }

    fn touch(&mut self, items: impl Iterator<Item = Which>) {
        for (at, (_, _, algorithm, quota)) in items.enumerate() {
            match rule(algorithm, quota) {
                QuotaRule::Sliding { window, .. } if window != self.length.0 => {
                    // Within one charge, it is changed by that charge too.
                    self.length = (window, self.made.len() + usize::from(at > 0));
                }
                _ => {}
            }
        }
    }

    fn item(
        &self,
        (policy, subject, algorithm, quota): Which,
        cost: u64,
        penalty: Option<Penalty>,
    ) -> ChargeItem {
        let policy: Arc<str> = policy.to_string().into();
        let subject = self.subjects[subject].clone();
        ChargeItem { policy, subject, rule: rule(algorithm, quota), cost, penalty }
    }
}

fn settled(tag: &Key, item: &ChargeItem, by: AdjustmentKind) -> SettleChargeCommand {
    let ChargeItem { policy, subject, rule, .. } = item.clone();
    SettleChargeCommand {
        tag: tag.clone(),
        items: vec![ChargeAdjustment { policy, subject, rule, kind: by }],
    }
}
