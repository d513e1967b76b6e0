//! Ticket of an admitted request.

use smallvec::{SmallVec, smallvec};

use crate::rate_limit::{
    decision::{Decision, PolicyDecision},
    engine::{ChargeReceipt, SettlementHandle},
    gate::{rate_status::RateStatus, run_charge::RunCharge},
    policy_status::PolicyStatus,
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
    /// For each check, the index of its policy in the layer, and true if the handler can set its
    /// cost.
    check_policies: Vec<(usize, bool)>,
    /// Charge of a run of a deferred request.
    run_charge: Option<Box<RunCharge>>,
}

impl RateLimitTicket {
    pub(super) fn new(
        status: Option<RateStatus>,
        receipt: Option<ChargeReceipt>,
        places: Vec<(usize, bool)>,
    ) -> Self {
        Self { status, receipt, check_policies: places, run_charge: None }
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
        refunds: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        self.run_charge.take()?.charge_answered(status, refunds)
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
    /// `refunds` takes the index of a policy.
    pub(super) fn settle_charges(
        &mut self,
        refunds: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        let receipt = self.receipt.take()?;
        let set = self.status.as_ref().and_then(RateStatus::take_handler_cost);
        let cost = |at: usize, was: u64| match (self.check_policies.get(at), set) {
            (Some((place, _)), _) if refunds(*place) => 0,
            (Some((_, true)), Some(cost)) => cost,
            _ => was,
        };
        receipt.settle(cost)
    }
}

impl Drop for RateLimitTicket {
    fn drop(&mut self) {
        let _ = self.settle_charges(|_| false);
        if let Some(run) = self.run_charge.take() {
            run.charge_dropped();
        }
    }
}

/// Returns the policies reported to clients. Shadow policies are not reported.
pub(super) fn policy_statuses(decision: &Decision) -> SmallVec<[PolicyStatus<'_>; 1]> {
    if let [one] = decision.policies() {
        // The common case. Collecting an iterator does not know its length.
        let told = (!one.policy().is_shadow()).then(|| policy_status(one)).flatten();
        return told.map_or_else(SmallVec::new, |standing| smallvec![standing]);
    }
    let enforced = decision.policies().iter().filter(|each| !each.policy().is_shadow());
    enforced.filter_map(policy_status).collect()
}

fn policy_status(each: &PolicyDecision) -> Option<PolicyStatus<'_>> {
    let (quota, remaining) = (each.quota(), each.remaining()?);
    Some(PolicyStatus {
        name: each.policy().name(),
        limit: quota.limit(),
        window: quota.window(),
        remaining,
        reset_after: each.reset_after()?,
        retry_after: each.retry_after(),
        violated: each.is_violated(),
    })
}
