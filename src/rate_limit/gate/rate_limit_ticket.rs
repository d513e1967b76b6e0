//! Ticket of an admitted request.

use crate::rate_limit::{
    engine::{ChargeReceipt, SettlementHandle},
    gate::{rate_status::RateStatus, run_charge::RunCharge},
};

/// Ticket of an admitted request.
///
/// Dropping it keeps the charge, adjusted to the cost set by the handler. The handler may have run,
/// and a client that disconnects must not get its work for free.
#[derive(Debug)]
pub struct RateLimitTicket {
    pub(super) status: Option<RateStatus>,
    /// Present while charges may still be adjusted.
    receipt: Option<ChargeReceipt>,
    /// For each check, its policy.
    check_policies: Vec<CheckPolicy>,
    /// Charge of a run of a deferred request.
    run_charge: Option<Box<RunCharge>>,
}

/// Policy of one check of an admitted request.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckPolicy {
    /// Index of the policy in the layer.
    pub(super) policy_index: usize,
    pub(super) handler_sets_cost: bool,
}

impl RateLimitTicket {
    pub(super) fn new(
        status: Option<RateStatus>,
        receipt: Option<ChargeReceipt>,
        check_policies: Vec<CheckPolicy>,
    ) -> Self {
        Self { status, receipt, check_policies, run_charge: None }
    }

    /// Creates the ticket of a run, which is charged after it has run.
    pub(super) fn for_run(charge: RunCharge) -> Self {
        Self {
            status: None,
            receipt: None,
            check_policies: Vec::new(),
            run_charge: Some(Box::new(charge)),
        }
    }

    /// Charges a run that was answered with this status.
    pub(super) fn settle_run(
        &mut self,
        status: u16,
        is_refunded: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        self.run_charge.take()?.charge_answered(status, is_refunded)
    }

    /// Returns the status, if there is nothing to settle.
    pub(super) fn try_into_status(mut self) -> Result<Option<RateStatus>, Self> {
        if self.receipt.is_some() || self.run_charge.is_some() {
            Err(self)
        } else {
            Ok(self.status.take())
        }
    }

    /// Adjusts the charges, in the background. Returns `None` if there is nothing to adjust.
    /// `is_refunded` takes the index of a policy.
    pub(super) fn settle_charges(
        &mut self,
        is_refunded: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        let receipt = self.receipt.take()?;
        let handler_cost = self.status.as_ref().and_then(RateStatus::take_handler_cost);
        let cost = |check_index: usize, previous_cost: u64| match (
            self.check_policies.get(check_index),
            handler_cost,
        ) {
            (Some(policy), _) if is_refunded(policy.policy_index) => 0,
            (Some(CheckPolicy { handler_sets_cost: true, .. }), Some(cost)) => cost,
            _ => previous_cost,
        };
        receipt.settle(cost)
    }
}

impl Drop for RateLimitTicket {
    fn drop(&mut self) {
        let _ = self.settle_charges(|_| false);
        if let Some(run_charge) = self.run_charge.take() {
            run_charge.charge_dropped();
        }
    }
}
