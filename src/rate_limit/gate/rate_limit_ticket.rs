//! What a request that was let in brings back.

use smallvec::{SmallVec, smallvec};

use crate::rate_limit::{
    decision::{Decision, PolicyDecision},
    engine::{ChargeReceipt, PendingSettlement},
    gate::{rate_status::RateStatus, run_charge::RunCharge},
    policy_status::PolicyStatus,
};

/// A request that was let in. Dropped with it, what it was charged stays charged, but for what the handler has
/// said: whether the handler has run can't be told, and who breaks off must not get it for nothing.
#[derive(Debug)]
pub struct RateLimitTicket {
    pub(super) status: Option<RateStatus>,
    /// There while charges may still be changed.
    receipt: Option<ChargeReceipt>,
    /// Of each question, which of the layer's policies it is about, and whether the handler has a say.
    check_policies: Vec<(usize, bool)>,
    /// What a run is to be charged.
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

    /// Of a run that is charged when it has run.
    pub(super) fn for_run(charge: RunCharge) -> Self {
        Self {
            status: None,
            receipt: None,
            check_policies: Vec::new(),
            run_charge: Some(Box::new(charge)),
        }
    }

    /// A run was answered by this status.
    pub(super) fn settle_run(
        &mut self,
        status: u16,
        refunds: impl Fn(usize) -> bool,
    ) -> Option<PendingSettlement> {
        self.run_charge.take()?.charge_answered(status, refunds)
    }

    /// What is left of it if there is nothing to settle.
    pub(super) fn try_into_status(mut self) -> Result<Option<RateStatus>, Self> {
        if self.receipt.is_some() || self.run_charge.is_some() {
            Err(self)
        } else {
            Ok(self.status.take())
        }
    }

    /// Puts the charges right, in the background; `None` if there is nothing to do. `refunds`: by the
    /// place of the policy.
    pub(super) fn settle_charges(
        &mut self,
        refunds: impl Fn(usize) -> bool,
    ) -> Option<PendingSettlement> {
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

/// What clients are told of a decision. Policies that are only watched are nobody's business.
pub(super) fn policy_statuses(decision: &Decision) -> SmallVec<[PolicyStatus<'_>; 1]> {
    if let [one] = decision.policies() {
        // Nearly always. Who collects does not know how many there will be.
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
