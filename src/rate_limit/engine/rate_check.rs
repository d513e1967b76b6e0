//! Rate check of one request: the calls, their order, and the rollback.

mod decide_in_outage;
mod peek_without_charge;
mod query_unsent_policies;
mod rollback;
mod shadow_charges;
mod store_charge;

use std::{sync::Arc, time::Duration};

use smallvec::{SmallVec, smallvec};

pub(super) use self::store_charge::ChargeAnswer;
use self::store_charge::start_charge;
use super::{
    RateLimitEngine,
    charge_receipt::ChargeReceipt,
    check_request::{CheckGroup, CheckRequest, PolicyCheck},
    quota_lease::LeaseSpend,
};
use crate::{
    error::Error,
    instruments::DecisionSource,
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
    decisions: SmallVec<[PolicyDecision; 1]>,
    receipt: ChargeReceipt,
    decided_locally: bool,
}

impl RateLimitEngine {
    /// Charges all policies or none. `keep_receipts` is true if charges may be adjusted later.
    ///
    /// Dropped at any point, it refunds the charges made, except for a call in flight: that one may
    /// not have run, and a refund without a charge would admit a further request.
    pub(in crate::rate_limit) async fn check(
        self: &Arc<Self>,
        store: &Store,
        request: &CheckRequest,
        keep_receipts: bool,
    ) -> Result<RateCheckOutcome, Error> {
        match self.cached_refusal(request) {
            Some(decision) => {
                decision.record(store.counters(), request, DecisionSource::Memory);
                Ok(RateCheckOutcome { decision, receipt: ChargeReceipt::default() })
            }
            None => self.check_uncached(store, request, keep_receipts).await,
        }
    }

    /// Like `check`, for a caller that has looked at the refusal cache already.
    pub(in crate::rate_limit) async fn check_uncached(
        self: &Arc<Self>,
        store: &Store,
        request: &CheckRequest,
        keep_receipts: bool,
    ) -> Result<RateCheckOutcome, Error> {
        self.ensure_policy_follower(store);
        self.ensure_background_task(store, request);
        // Uncommon paths are boxed, since the futures of all requests are moved.
        let can_ask_store = |q: &&PolicyCheck| {
            !self.is_store_unavailable(store, request.tag(q)) && !q.exceeds_capacity()
        };
        match request.single_store_check().filter(can_ask_store) {
            Some(check) => {
                let (sent_at, charge_future) = start_charge(store, check, request.tag(check));
                let answer = ChargeAnswer::from_result(sent_at, charge_future.await);
                let mut rate_check = RateCheck::new(self, store, request);
                let group = CheckGroup { tag: request.tag(check), check_indices: smallvec![0] };
                let admitted =
                    rate_check.apply_answer(&group, answer, keep_receipts, keep_receipts)?;
                Ok(rate_check.finish(admitted))
            }
            None => Box::pin(self.check_all_policies(store, request, keep_receipts)).await,
        }
    }

    async fn check_all_policies(
        self: &Arc<Self>,
        store: &Store,
        request: &CheckRequest,
        keep_receipts: bool,
    ) -> Result<RateCheckOutcome, Error> {
        let mut rate_check = RateCheck::new(self, store, request);
        let admitted =
            !rate_check.mark_too_costly() && rate_check.charge_enforced(keep_receipts).await?;
        if admitted && request.checks.iter().any(|check| check.policy.is_shadow()) {
            rate_check.charge_shadow_policies(keep_receipts).await;
        }
        if admitted && keep_receipts {
            rate_check.record_zero_cost_checks();
        }
        Ok(rate_check.finish(admitted))
    }
}

impl<'a> RateCheck<'a> {
    fn new(engine: &'a Arc<RateLimitEngine>, store: &'a Store, request: &'a CheckRequest) -> Self {
        let decision = |check: &PolicyCheck| PolicyDecision::new(&check.policy, check.quota);
        let decisions = match &request.checks[..] {
            [check] => smallvec![decision(check)],
            checks => checks.iter().map(decision).collect(),
        };
        Self {
            engine,
            store,
            request,
            decisions,
            receipt: ChargeReceipt::default(),
            decided_locally: false,
        }
    }

    fn finish(self, admitted: bool) -> RateCheckOutcome {
        let Self { store, request, decisions, receipt, decided_locally, .. } = self;
        let decision = Decision { admitted, decided_locally, policies: decisions };
        decision.record(store.counters(), request, DecisionSource::Store);
        RateCheckOutcome { decision, receipt }
    }

    /// Marks the policies with a capacity below the request's cost. Returns true if there is one. A
    /// quota of 0 has a refusal that ends: it may belong to a plan that changes.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    fn mark_too_costly(&mut self) -> bool {
        let mut is_too_costly = false;
        for (index, check) in
            self.request.enforced_checks().filter(|(_, check)| check.exceeds_capacity())
        {
            // Cheaper requests may still fit, so the remaining units are reported.
            let (remaining, reset_after) = self.engine.last_known_remaining(self.request, check);
            let decision = &mut self.decisions[index];
            let reading = QuotaReading { remaining, reset_after, retry_after: Duration::MAX };
            decision.reading =
                Some(if check.quota.is_zero() { check.zero_quota_reading() } else { reading });
            (decision.violated, is_too_costly) = (true, true);
        }
        is_too_costly
    }

    /// Charges the enforced policies. Returns true if all of them admit the request.
    async fn charge_enforced(&mut self, keep_receipts: bool) -> Result<bool, Error> {
        let request = self.request;
        let is_local = |(index, check)| self.is_decided_locally(request.tag(check), &[index]);
        if request.enforced_checks().any(is_local) && request.enforced_checks().all(is_local) {
            return Ok(self.decide_locally(request.enforced_checks().map(|(index, _)| index)));
        }
        let Some(leased_indices) = self.spend_leases().await? else { return Ok(false) };
        let unleased_checks =
            request.enforced_checks().filter(|(index, _)| !leased_indices.contains(index));
        let groups = request.group_by_tag(unleased_checks.map(|(index, _)| index));
        let has_shadow_policies = request.checks.iter().any(|check| check.policy.is_shadow());
        // A refusal by a later call requires a refund.
        let may_roll_back = groups.len() > 1 || has_shadow_policies;
        let mut unsent_groups = &groups[..];
        while let Some((group, later_groups)) = unsent_groups.split_first() {
            unsent_groups = later_groups;
            let may_be_refunded = keep_receipts || has_shadow_policies || !later_groups.is_empty();
            let keep_receipt = may_roll_back || keep_receipts;
            if !self.charge_group(group, may_be_refunded, keep_receipt).await? {
                return Ok(self.roll_back(later_groups).await);
            }
        }
        Ok(true)
    }

    /// Spends a leased unit of each policy that has one. Returns their indices, or `None` if one of
    /// the quotas is spent; all charges are refunded then.
    async fn spend_leases(&mut self) -> Result<Option<Vec<usize>>, Error> {
        let request = self.request;
        let mut leased_indices = Vec::new();
        for (index, check) in request.enforced_checks() {
            let usable_lease_size = check
                .lease_size()
                .filter(|_| !self.is_decided_locally(request.tag(check), &[index]));
            let Some(lease_size) = usable_lease_size else { continue };
            match self.spend_lease(index, check, lease_size).await? {
                Some(true) => leased_indices.push(index),
                Some(false) => {
                    // The other policies were not asked yet, and may have a longer wait.
                    let other_checks = request.enforced_checks().filter(|(other_index, check)| {
                        let counter_id = request.borrowed_counter_id(check);
                        let has_units = self.engine.has_leased_units(counter_id);
                        *other_index != index && !leased_indices.contains(other_index) && !has_units
                    });
                    let unsent_groups = request.group_by_tag(other_checks.map(|(index, _)| index));
                    self.roll_back(&unsent_groups).await;
                    return Ok(None);
                }
                None => {}
            }
        }
        Ok(Some(leased_indices))
    }

    /// Spends a leased unit. Returns false if the quota is spent, and `None` if the store has to
    /// charge the check.
    #[expect(
        clippy::indexing_slicing,
        reason = "indices belong to this request's checks, and each list has one element per check"
    )]
    async fn spend_lease(
        &mut self,
        index: usize,
        check: &PolicyCheck,
        lease_size: u32,
    ) -> Result<Option<bool>, Error> {
        let request = self.request;
        let counter_id = request.borrowed_counter_id(check);
        let LeaseSpend { sent_at, state, unit } = match self
            .engine
            .acquire_leased_unit(self.store, counter_id, check, lease_size)
            .await
        {
            Ok(Some(lease_spend)) => lease_spend,
            Ok(None) => return Ok(None),
            Err(error) => {
                let group = CheckGroup { tag: request.tag(check), check_indices: smallvec![index] };
                return self.decide_in_outage(&group, error).map(Some);
            }
        };
        if sent_at.is_some() {
            self.engine.record_charge_success(self.store, counter_id.tag);
        }
        let admitted = unit.is_some();
        if let Some(unit) = unit {
            self.receipt.attach(self.engine, self.store).add_leased_unit(counter_id, index, unit);
        }
        match sent_at {
            Some(sent_at) if !admitted => {
                self.record_states(
                    &[index],
                    &ChargeAnswer { sent_at, admitted, states: smallvec![state] },
                    true,
                );
            }
            _ => {
                self.decisions[index].reading = Some(QuotaReading {
                    retry_after: Duration::ZERO,
                    ..QuotaReading::from_state(&state)
                });
            }
        }
        Ok(Some(admitted))
    }
}
