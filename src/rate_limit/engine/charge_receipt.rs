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
        check: &PolicyCheck,
        check_index: usize,
        window: ChargedWindow,
    ) {
        self.charges.push(RecordedCharge {
            check_index,
            tag: tag.clone(),
            check: check.clone(),
            window,
        });
    }

    pub(super) fn add_leased_unit(
        &mut self,
        counter_id: BorrowedCounterId<'_>,
        check_index: usize,
        unit: LeasedUnit,
    ) {
        self.leased_units.push((check_index, CounterId::from_ref(counter_id), unit));
    }

    /// Returns the charges of the store, by the index of the check.
    pub(super) fn charged_costs(&self) -> impl Iterator<Item = (usize, u64)> {
        self.charges.iter().map(|recorded| (recorded.check_index, recorded.check.cost))
    }

    /// Returns the checks that have spent a leased unit.
    pub(super) fn leased_checks(&self) -> impl Iterator<Item = usize> {
        self.leased_units.iter().map(|(check_index, ..)| *check_index)
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
    /// have run, see [`background_settlement`](super::background_settlement).
    pub(in crate::rate_limit) fn settle(
        mut self,
        costs: impl Fn(usize, u64) -> u64,
    ) -> Option<SettlementHandle> {
        self.settle_costs(costs)
    }

    fn settle_costs(&mut self, costs: impl Fn(usize, u64) -> u64) -> Option<SettlementHandle> {
        let (engine, store) = self.engine_and_store.as_ref()?;
        let mut commands: Vec<SettleChargeCommand> = Vec::new();
        for (check_index, counter_id, unit) in self.leased_units.drain(..) {
            match costs(check_index, 1) {
                0 => commands.extend(engine.return_leased_unit(&counter_id, &unit)),
                1 => {}
                cost => {
                    commands.extend(
                        counter_id.settle_command(AdjustmentKind::Charge { units: cost - 1 }),
                    );
                }
            }
        }
        for recorded in self.charges.drain(..) {
            let Some(adjustment) =
                recorded.adjustment_to(costs(recorded.check_index, recorded.check.cost))
            else {
                continue;
            };
            if matches!(adjustment.kind, AdjustmentKind::Refund { .. }) {
                let group = Some(recorded.tag.clone());
                let request = CheckRequest { checks: smallvec::SmallVec::new(), group };
                engine.invalidate_counter(request.borrowed_counter_id(&recorded.check));
            }
            match commands.iter_mut().find(|command| command.tag == recorded.tag) {
                Some(command) => command.items.push(adjustment),
                None => commands
                    .push(SettleChargeCommand { tag: recorded.tag, items: vec![adjustment] }),
            }
        }
        (!commands.is_empty()).then(|| engine.settle_charges(store, commands))
    }
}

impl RateLimitEngine {
    /// Charges an admitted request, even beyond the remaining units, to the policies that `charges`
    /// selects by index.
    pub(in crate::rate_limit) fn charge_unconditionally(
        self: &Arc<Self>,
        store: &Store,
        request: &CheckRequest,
        charges: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        let mut commands: Vec<SettleChargeCommand> = Vec::new();
        for check in
            request.checks.iter().filter(|check| charges(check.policy_index) && check.cost > 0)
        {
            let (tag, adjustment_kind) =
                (request.tag(check), AdjustmentKind::Charge { units: check.cost });
            let Some(adjustment) = check.adjustment(adjustment_kind) else { continue };
            match commands.iter_mut().find(|command| command.tag == *tag) {
                Some(command) => command.items.push(adjustment),
                None => {
                    commands
                        .push(SettleChargeCommand { tag: tag.clone(), items: vec![adjustment] });
                }
            }
        }
        (!commands.is_empty()).then(|| self.settle_charges(store, commands))
    }
}

impl RecordedCharge {
    /// Returns the adjustment to this cost, or `None` if the cost is the same.
    fn adjustment_to(&self, cost: u64) -> Option<ChargeAdjustment> {
        let (previous_cost, window) = (self.check.cost, self.window);
        let adjustment_kind = match cost {
            cost if cost < previous_cost => {
                AdjustmentKind::Refund { units: previous_cost - cost, window }
            }
            cost if cost > previous_cost => AdjustmentKind::Charge { units: cost - previous_cost },
            _ => return None,
        };
        self.check.adjustment(adjustment_kind)
    }
}

impl Drop for ChargeReceipt {
    fn drop(&mut self) {
        let _ = self.refund_all();
    }
}
