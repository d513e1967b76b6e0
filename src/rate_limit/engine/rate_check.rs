//! Rate check of one request: the calls, their order, and the rollback.

mod outage;
mod rollback;
mod shadow;
mod store_charge;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

pub(super) use self::store_charge::ChargeAnswer;
use self::store_charge::start_charge;
use super::{
    RateLimitEngine,
    charge_receipt::ChargeReceipt,
    check_request::{CheckRequest, PolicyCheck},
    quota_lease::LeaseSpend,
};
use crate::{
    error::Error,
    rate_limit::decision::{Decision, PolicyDecision, QuotaReading},
    store::Store,
};

/// Decision, and the charges made for it.
#[derive(Debug)]
pub(in crate::rate_limit) struct RateCheckOutcome {
    pub(in crate::rate_limit) decision: Decision,
    /// Dropping it refunds all charges; see [`ChargeReceipt::commit`].
    pub(in crate::rate_limit) receipt: ChargeReceipt,
}

struct RateCheck<'a> {
    engine: &'a Arc<RateLimitEngine>,
    store: &'a Store,
    request: &'a CheckRequest,
    policies: SmallVec<[PolicyDecision; 1]>,
    receipt: ChargeReceipt,
    decided_locally: bool,
}

impl RateLimitEngine {
    /// Charges all policies or none. `receipts` is true if charges may be adjusted later.
    ///
    /// Dropped at any point, it refunds the charges made, except for a call in flight: that one may
    /// not have run, and a refund without a charge would admit a further request.
    pub(in crate::rate_limit) async fn check(
        self: &Arc<Self>,
        store: &Store,
        ask: &CheckRequest,
        receipts: bool,
    ) -> Result<RateCheckOutcome, Error> {
        match self.cached_refusal(ask) {
            Some(decision) => Ok(RateCheckOutcome { decision, receipt: ChargeReceipt::default() }),
            None => self.check_uncached(store, ask, receipts).await,
        }
    }

    /// Like `check`, for a caller that has looked at the refusal cache already.
    pub(in crate::rate_limit) async fn check_uncached(
        self: &Arc<Self>,
        store: &Store,
        ask: &CheckRequest,
        receipts: bool,
    ) -> Result<RateCheckOutcome, Error> {
        self.ensure_background_task(store, ask);
        // Uncommon paths are boxed, since the futures of all requests are moved.
        let is_asked = |q: &&PolicyCheck| {
            !self.is_store_unavailable(store, ask.tag(q)) && !q.exceeds_capacity()
        };
        match ask.single_store_check().filter(is_asked) {
            Some(question) => {
                let (sent, call) = start_charge(store, question, ask.tag(question));
                let answer = ChargeAnswer::from_result(sent, call.await);
                let mut checking = RateCheck::new(self, store, ask);
                let group = (ask.tag(question), smallvec![0]);
                let admitted = checking.apply_answer(&group, answer, receipts, receipts)?;
                Ok(checking.finish(admitted))
            }
            None => Box::pin(self.check_all_policies(store, ask, receipts)).await,
        }
    }

    async fn check_all_policies(
        self: &Arc<Self>,
        store: &Store,
        ask: &CheckRequest,
        receipts: bool,
    ) -> Result<RateCheckOutcome, Error> {
        let mut checking = RateCheck::new(self, store, ask);
        let admitted = !checking.mark_too_costly() && checking.charge_enforced(receipts).await?;
        if admitted && ask.checks.iter().any(|question| question.policy.is_shadow()) {
            checking.charge_shadow_policies(receipts).await;
        }
        if admitted && receipts {
            checking.record_zero_cost_checks();
        }
        Ok(checking.finish(admitted))
    }

    /// Returns the decision that `check` would make now. Charges nothing, and asks the store even
    /// if a refusal is cached.
    pub(in crate::rate_limit) async fn peek(
        self: &Arc<Self>,
        store: &Store,
        ask: &CheckRequest,
    ) -> Result<Decision, Error> {
        let mut checking = RateCheck::new(self, store, ask);
        if checking.mark_too_costly() {
            let RateCheck { policies: each, .. } = checking;
            return Ok(Decision { admitted: false, decided_locally: false, policies: each });
        }
        // A check of cost 0 reads the remaining units and the block of its key. A quota of 0 has no
        // counter.
        for (each, question) in checking.policies.iter_mut().zip(&ask.checks) {
            if question.quota.is_zero() {
                (each.reading, each.violated) =
                    (Some(question.zero_quota_reading()), question.cost > 0);
            }
        }
        let is_counted = |q: &PolicyCheck| !q.quota.is_unlimited() && !q.quota.is_zero();
        let told = ask.checks.iter().enumerate().filter(|(_, q)| is_counted(q));
        let groups = ask.group_by_tag(told.map(|(at, _)| at));
        let answers = join_all(groups.iter().map(|group| checking.call_store(group, 0))).await;
        for ((_, members), answer) in groups.iter().zip(answers) {
            checking.record_states(members, &answer?, true);
        }
        checking.add_leased_units();
        let RateCheck { policies: each, .. } = checking;
        let admitted = !each.iter().any(|each| each.violated && !each.policy.is_shadow());
        Ok(Decision { admitted, decided_locally: false, policies: each })
    }
}

impl<'a> RateCheck<'a> {
    fn new(engine: &'a Arc<RateLimitEngine>, store: &'a Store, ask: &'a CheckRequest) -> Self {
        let decision =
            |question: &PolicyCheck| PolicyDecision::new(&question.policy, question.quota);
        let each = match &ask.checks[..] {
            [question] => smallvec![decision(question)],
            all => all.iter().map(decision).collect(),
        };
        Self {
            engine,
            store,
            request: ask,
            policies: each,
            receipt: ChargeReceipt::default(),
            decided_locally: false,
        }
    }

    fn finish(self, admitted: bool) -> RateCheckOutcome {
        let Self { policies: each, receipt, decided_locally: local, .. } = self;
        RateCheckOutcome {
            decision: Decision { admitted, decided_locally: local, policies: each },
            receipt,
        }
    }

    /// Marks the policies with a capacity below the request's cost. Returns true if there is one. A
    /// quota of 0 has a refusal that ends: it may belong to a plan that changes.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn mark_too_costly(&mut self) -> bool {
        let mut hopeless = false;
        for (at, question) in
            self.request.enforced_checks().filter(|(_, question)| question.exceeds_capacity())
        {
            // Cheaper requests may still fit, so the remaining units are reported.
            let (remaining, reset) = self.engine.last_known_remaining(self.request, question);
            let each = &mut self.policies[at];
            let told = QuotaReading { remaining, reset_after: reset, retry_after: Duration::MAX };
            each.reading =
                Some(if question.quota.is_zero() { question.zero_quota_reading() } else { told });
            (each.violated, hopeless) = (true, true);
        }
        hopeless
    }

    /// Adds the units leased by this process: they admit its requests, whatever the store has left.
    fn add_leased_units(&mut self) {
        for (each, question) in self.policies.iter_mut().zip(&self.request.checks) {
            if question.cost > 0 && question.lease_size().is_none() {
                continue;
            }
            let units = self.engine.leased_units(self.request.counter_ref(question));
            if let (1.., Some(told)) = (units, &mut each.reading) {
                (told.remaining, told.retry_after, each.violated) =
                    (told.remaining + units, Duration::ZERO, false);
            }
        }
    }

    /// Charges the enforced policies. Returns true if all of them admit the request.
    async fn charge_enforced(&mut self, receipts: bool) -> Result<bool, Error> {
        let ask = self.request;
        let is_alone = |(at, question)| self.is_decided_locally(ask.tag(question), &[at]);
        if ask.enforced_checks().any(is_alone) && ask.enforced_checks().all(is_alone) {
            return Ok(self.decide_locally(ask.enforced_checks().map(|(at, _)| at)));
        }
        let mut settled = Vec::new();
        for (at, question) in ask.enforced_checks() {
            let in_advance = question
                .lease_size()
                .filter(|_| !self.is_decided_locally(ask.tag(question), &[at]));
            let Some(most) = in_advance else { continue };
            match self.spend_lease(at, question, most).await? {
                Some(true) => settled.push(at),
                Some(false) => {
                    // The other policies were not asked yet, and may have a longer wait.
                    let others = ask.enforced_checks().filter(|(other, question)| {
                        let has_units = self.engine.has_leased_units(ask.counter_ref(question));
                        *other != at && !settled.contains(other) && !has_units
                    });
                    let unasked = ask.group_by_tag(others.map(|(other, _)| other));
                    return Ok(self.roll_back(&unasked).await);
                }
                None => {}
            }
        }
        let unpaid = ask.enforced_checks().filter(|(at, _)| !settled.contains(at));
        let groups = ask.group_by_tag(unpaid.map(|(at, _)| at));
        // A refusal by a later call requires a refund.
        let watched = ask.checks.iter().any(|each| each.policy.is_shadow());
        let more = groups.len() > 1 || watched;
        let mut rest = &groups[..];
        while let Some((group, later)) = rest.split_first() {
            rest = later;
            let given_back = receipts || watched || !later.is_empty();
            if !self.charge_group(group, given_back, more || receipts).await? {
                return Ok(self.roll_back(later).await);
            }
        }
        Ok(true)
    }

    /// Spends a leased unit. Returns false if the quota is spent, and `None` if the store has to
    /// charge the check.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    async fn spend_lease(
        &mut self,
        at: usize,
        question: &PolicyCheck,
        most: u32,
    ) -> Result<Option<bool>, Error> {
        let ask = self.request;
        let spot = ask.counter_ref(question);
        let LeaseSpend { sent_at: sent, state, unit } =
            match self.engine.acquire_leased_unit(self.store, spot, question, most).await {
                Ok(Some(spent)) => spent,
                Ok(None) => return Ok(None),
                Err(error) => {
                    let group = (ask.tag(question), smallvec![at]);
                    return self.decide_without_store(&group, error).map(Some);
                }
            };
        if sent.is_some() {
            self.engine.record_charge_success(self.store, spot.tag);
        }
        let admitted = unit.is_some();
        if let Some(unit) = unit {
            self.receipt.attach(self.engine, self.store).add_leased_unit(spot, at, unit);
        }
        match sent {
            Some(sent) if !admitted => {
                self.record_states(
                    &[at],
                    &ChargeAnswer { sent_at: sent, admitted, states: smallvec![state] },
                    true,
                );
            }
            _ => {
                self.policies[at].reading = Some(QuotaReading {
                    retry_after: Duration::ZERO,
                    ..QuotaReading::from_state(&state)
                });
            }
        }
        Ok(Some(admitted))
    }
}
