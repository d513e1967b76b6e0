//! What a request that was let in brings back.

use smallvec::{SmallVec, smallvec};

use crate::rate_limit::{
    decision::{Decision, PolicyDecision},
    engine::{Done, Receipt},
    gate::{run::RunCharge, status::RateStatus},
    standing::Standing,
};

/// A request that was let in. Dropped with it, what it was charged stays charged, but for what the handler has
/// said: whether the handler has run can't be told, and who breaks off must not get it for nothing.
#[derive(Debug)]
pub struct RateLimitTicket {
    pub(super) status: Option<RateStatus>,
    /// There while charges may still be changed.
    receipt: Option<Receipt>,
    /// Of each question, which of the layer's policies it is about, and whether the handler has a say.
    places: Vec<(usize, bool)>,
    /// What a run is to be charged.
    run: Option<Box<RunCharge>>,
}

impl RateLimitTicket {
    pub(super) fn new(
        status: Option<RateStatus>,
        receipt: Option<Receipt>,
        places: Vec<(usize, bool)>,
    ) -> Self {
        Self { status, receipt, places, run: None }
    }

    /// Of a run that is charged when it has run.
    pub(super) fn of_run(charge: RunCharge) -> Self {
        Self { status: None, receipt: None, places: Vec::new(), run: Some(Box::new(charge)) }
    }

    /// A run was answered by this status.
    pub(super) fn has_run(&mut self, status: u16, refunds: impl Fn(usize) -> bool) -> Option<Done> {
        self.run.take()?.made(status, refunds)
    }

    /// What is left of it if there is nothing to settle.
    pub(super) fn settled(mut self) -> Result<Option<RateStatus>, Self> {
        if self.receipt.is_some() || self.run.is_some() {
            Err(self)
        } else {
            Ok(self.status.take())
        }
    }

    /// Puts the charges right, in the background; `None` if there is nothing to do. `refunds`: by the
    /// place of the policy.
    pub(super) fn settle(&mut self, refunds: impl Fn(usize) -> bool) -> Option<Done> {
        let receipt = self.receipt.take()?;
        let set = self.status.as_ref().and_then(RateStatus::settle);
        let cost = |at: usize, was: u64| match (self.places.get(at), set) {
            (Some((place, _)), _) if refunds(*place) => 0,
            (Some((_, true)), Some(cost)) => cost,
            _ => was,
        };
        receipt.settle(cost)
    }
}

impl Drop for RateLimitTicket {
    fn drop(&mut self) {
        let _ = self.settle(|_| false);
        if let Some(run) = self.run.take() {
            run.broke_off();
        }
    }
}

/// What clients are told of a decision. Policies that are only watched are nobody's business.
pub(super) fn standings(decision: &Decision) -> SmallVec<[Standing<'_>; 1]> {
    if let [one] = decision.policies() {
        // Nearly always. Who collects does not know how many there will be.
        let told = (!one.policy().is_shadow()).then(|| standing(one)).flatten();
        return told.map_or_else(SmallVec::new, |standing| smallvec![standing]);
    }
    let enforced = decision.policies().iter().filter(|each| !each.policy().is_shadow());
    enforced.filter_map(standing).collect()
}

fn standing(each: &PolicyDecision) -> Option<Standing<'_>> {
    let (quota, remaining) = (each.quota(), each.remaining()?);
    Some(Standing {
        name: each.policy().label(),
        limit: quota.limit(),
        window: quota.window(),
        remaining,
        reset: each.reset()?,
        retry: each.retry_after(),
        violated: each.is_violated(),
    })
}
