//! Charge receipt: the charges of one check, to be refunded or adjusted.

use std::sync::Arc;

use super::{
    RateLimitEngine,
    background_settlement::SettlementHandle,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{BorrowedCounterId, CounterId},
    quota_lease::LeasedUnit,
};
use crate::{
    key::Key,
    store::{AdjustmentKind, ChargeAdjustment, ChargedWindow, SettleChargeCommand, Store},
};

/// Charges that can still be adjusted. Dropping the receipt refunds them in the background.
#[derive(Debug, Default)]
pub(in crate::rate_limit) struct ChargeReceipt {
    /// Set with the first charge. Most receipts are empty, and the reference counts of both are
    /// shared by all threads.
    engine_and_store: Option<(Arc<RateLimitEngine>, Store)>,
    charges: Vec<RecordedCharge>,
    leased_units: Vec<(usize, CounterId, LeasedUnit)>,
}

#[derive(Debug)]
struct RecordedCharge {
    /// Index of the check in its request.
    check_index: usize,
    tag: Key,
    check: PolicyCheck,
    window: ChargedWindow,
}

impl ChargeReceipt {
    /// Stores the handles that a receipt with charges needs.
    pub(super) fn attach(&mut self, engine: &Arc<RateLimitEngine>, store: &Store) -> &mut Self {
        self.engine_and_store.get_or_insert_with(|| (Arc::clone(engine), store.clone()));
        self
    }

    pub(super) fn add_charge(
        &mut self,
        tag: &Key,
        question: &PolicyCheck,
        at: usize,
        window: ChargedWindow,
    ) {
        self.charges.push(RecordedCharge {
            check_index: at,
            tag: tag.clone(),
            check: question.clone(),
            window,
        });
    }

    pub(super) fn add_leased_unit(
        &mut self,
        spot: BorrowedCounterId<'_>,
        at: usize,
        unit: LeasedUnit,
    ) {
        self.leased_units.push((at, CounterId::from_ref(spot), unit));
    }

    /// Returns the charges of the store, by the index of the check.
    pub(super) fn charged_costs(&self) -> impl Iterator<Item = (usize, u64)> {
        self.charges.iter().map(|paid| (paid.check_index, paid.check.cost))
    }

    /// Returns the checks that have spent a leased unit.
    pub(super) fn leased_checks(&self) -> impl Iterator<Item = usize> {
        self.leased_units.iter().map(|(at, ..)| *at)
    }

    /// Admits the request: its charges stay.
    pub(in crate::rate_limit) fn commit(mut self) {
        self.leased_units.clear();
        self.charges.clear();
    }

    /// Refunds all charges.
    pub(super) fn refund_all(&mut self) -> Option<SettlementHandle> {
        self.settle_costs(|_, _| 0)
    }

    /// Changes the cost of each check to `costs(check_index, cost_so_far)`.
    ///
    /// An adjustment without an answer is not retried, since it may have run. For one that can't
    /// have run, see [`pending_settlement`](super::pending_settlement).
    pub(in crate::rate_limit) fn settle(
        mut self,
        costs: impl Fn(usize, u64) -> u64,
    ) -> Option<SettlementHandle> {
        self.settle_costs(costs)
    }

    fn settle_costs(&mut self, costs: impl Fn(usize, u64) -> u64) -> Option<SettlementHandle> {
        let (engine, store) = self.engine_and_store.as_ref()?;
        let mut calls: Vec<SettleChargeCommand> = Vec::new();
        for (at, place, unit) in self.leased_units.drain(..) {
            match costs(at, 1) {
                0 => calls.extend(engine.return_leased_unit(&place, &unit)),
                1 => {}
                more => {
                    calls.extend(place.settle_command(AdjustmentKind::Charge { units: more - 1 }));
                }
            }
        }
        for paid in self.charges.drain(..) {
            let Some(settled) = paid.adjustment_to(costs(paid.check_index, paid.check.cost)) else {
                continue;
            };
            if matches!(settled.kind, AdjustmentKind::Refund { .. }) {
                let group = Some(paid.tag.clone());
                let ask = CheckRequest { checks: smallvec::SmallVec::new(), group };
                engine.invalidate_counter(ask.counter_ref(&paid.check));
            }
            match calls.iter_mut().find(|call| call.tag == paid.tag) {
                Some(call) => call.items.push(settled),
                None => calls.push(SettleChargeCommand { tag: paid.tag, items: vec![settled] }),
            }
        }
        (!calls.is_empty()).then(|| engine.settle_charges(store, calls))
    }
}

impl RateLimitEngine {
    /// Charges an admitted request, even beyond the remaining units, to the policies that `charges`
    /// selects by index.
    pub(in crate::rate_limit) fn charge_unconditionally(
        self: &Arc<Self>,
        store: &Store,
        ask: &CheckRequest,
        charges: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        let mut calls: Vec<SettleChargeCommand> = Vec::new();
        for question in ask.checks.iter().filter(|each| charges(each.policy_index) && each.cost > 0)
        {
            let (tag, by) = (ask.tag(question), AdjustmentKind::Charge { units: question.cost });
            let Some(settled) = question.adjustment(by) else { continue };
            match calls.iter_mut().find(|call| call.tag == *tag) {
                Some(call) => call.items.push(settled),
                None => calls.push(SettleChargeCommand { tag: tag.clone(), items: vec![settled] }),
            }
        }
        (!calls.is_empty()).then(|| self.settle_charges(store, calls))
    }
}

impl RecordedCharge {
    /// Returns the adjustment to this cost, or `None` if the cost is the same.
    fn adjustment_to(&self, cost: u64) -> Option<ChargeAdjustment> {
        let (was, window) = (self.check.cost, self.window);
        let by = match cost {
            less if less < was => AdjustmentKind::Refund { units: was - less, window },
            more if more > was => AdjustmentKind::Charge { units: more - was },
            _ => return None,
        };
        self.check.adjustment(by)
    }
}

impl Drop for ChargeReceipt {
    fn drop(&mut self) {
        let _ = self.refund_all();
    }
}
