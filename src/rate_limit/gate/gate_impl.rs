//! `Gate` implementation of `RateLimitLayer`.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use tracing::field::{Empty, display};

use super::{
    rate_limit_context::{self, RateLimitContext},
    rate_limit_layer::{RateLimitLayer, policy_conflict_error},
    rate_limit_settings::RateLimitSettings,
    rate_limit_ticket::{CheckPolicy, RateLimitTicket},
    rate_status::{RateStatus, StoreIdentity},
    run_charge::RunCharge,
};
use crate::{
    error::{Error, expect_setting},
    gate::{
        DirectRunRefusals, Gate, GateId, GateRequest, HttpRequestHead, InitialVerdict, LeaveAction,
        RequestKind, ServiceOutcome, UnchargedMark, Verdict,
    },
    rate_limit::{
        decision::Decision,
        engine::{ChargeReceipt, CheckRequest, PolicyCheck, RateCheckOutcome},
        policy_status::{PolicyStatus, policy_statuses},
    },
    reply::{HeaderSet, Reply},
    trace::BoxedSpan,
};

impl<R: RequestKind> Gate<R::Native> for RateLimitLayer<R> {
    type EntryContext = RateLimitContext;
    type Ticket = RateLimitTicket;
    /// Status of a request with final charges.
    type LightTicket = Option<RateStatus>;
    type AcceptTicket = Infallible;

    /// A name or quota may have been set after the policy was added.
    fn validate_settings(&self) {
        if let Some(name) = self.0.conflicting_policy_name() {
            expect_setting::<()>(Err(policy_conflict_error("RateLimitLayer", name)));
        }
        if let Some(store) = &self.0.store {
            self.0.register_policies(store);
        }
    }

    fn inspect<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<RateLimitContext, Option<RateStatus>> {
        let verdict = self.0.read_request(view);
        let refusal = match &verdict {
            InitialVerdict::Answer(reply) => Some(reply.status),
            InitialVerdict::SharedAnswer(shared_reply) => Some(shared_reply.reply().status),
            InitialVerdict::PassLight(_) => None,
            InitialVerdict::Skip => {
                view.insert_extension(UnchargedMark);
                return verdict;
            }
            InitialVerdict::Enter(_) => return verdict,
        };
        if let Some(run) = DirectRunRefusals::from_view(view) {
            match refusal {
                Some(status) => run.record_refused(self.gate_id(), status),
                None => run.record_passed(self.gate_id()),
            }
        }
        verdict
    }

    fn try_light_ticket(
        &self,
        ticket: RateLimitTicket,
    ) -> Result<Option<RateStatus>, RateLimitTicket> {
        ticket.try_into_status()
    }

    fn settle_with_headers(
        &self,
        status: Option<RateStatus>,
        add: impl FnMut(&'static str, Bytes),
    ) -> Result<(), Option<RateStatus>> {
        if let Some(status) = status.filter(|status| !status.is_local()) {
            let RateLimitSettings { response, reply_cache, policies, .. } = &*self.0;
            let statuses = policy_statuses(status.decision());
            let policy_header =
                |statuses: &[PolicyStatus<'_>]| reply_cache.policy_header(statuses, policies.len());
            response.for_each_header(&statuses, policy_header, add);
        }
        Ok(())
    }

    fn full_ticket(&self, status: Option<RateStatus>) -> RateLimitTicket {
        RateLimitTicket::new(status, None, Vec::new())
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice; this future is part of every request's"
    )]
    fn enter(
        &self,
        mut context: RateLimitContext,
    ) -> impl Future<Output = Verdict<RateLimitTicket>> + Send {
        async move {
            let may_settle = self.0.may_settle();
            let knows_quotas = context.pending_quotas.is_empty();
            if !knows_quotas {
                Box::pin(context.resolve_quotas()).await;
            }
            let Some((store, engine)) = context.store_and_engine(&self.0) else {
                return Verdict::Answer(rate_limit_context::missing_store_reply());
            };
            self.0.register_policies(store);
            if context.replay.is_some() {
                let store_and_engine = (store.clone(), Arc::clone(engine));
                return Verdict::Pass(RateLimitTicket::for_run(RunCharge::new(
                    store_and_engine,
                    context,
                )));
            }
            let span = BoxedSpan::new(tracing::debug_span!(
                "lockgate.rate_limit",
                otel.status_code = Empty,
                policies = self.0.policies.len(),
                admitted = Empty,
                local = Empty,
            ));
            let result = if knows_quotas {
                // `inspect` has looked at the refusal cache.
                engine.check_uncached(store, &context.request, may_settle).await
            } else {
                Box::pin(engine.check(store, &context.request, may_settle)).await
            };
            record_check(&span, &result);
            self.to_verdict(result, context)
        }
    }

    fn annotate_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        ticket: &RateLimitTicket,
        view: &mut V,
    ) {
        if let Some(run) = DirectRunRefusals::from_view(view) {
            run.record_passed(self.gate_id());
        }
        match &ticket.status {
            Some(status) => status.insert_into(view),
            None => view.insert_extension(UnchargedMark),
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the indices belong to the limits of this layer")]
    async fn leave(
        &self,
        mut ticket: RateLimitTicket,
        outcome: ServiceOutcome,
    ) -> LeaveAction<Self::Ticket, Self::AcceptTicket> {
        // An error of the inner service becomes a 500 further out, if it becomes a response at all.
        let status = outcome.status().unwrap_or(500);
        let is_refunded = |policy_index: usize| {
            let refund_on = self.0.policies[policy_index].refund_on.as_ref();
            refund_on.is_some_and(|refund_on| refund_on(status))
        };
        if let Some(settlement) =
            ticket.settle_run(status, is_refunded).or_else(|| ticket.settle_charges(is_refunded))
        {
            settlement.wait().await;
        }
        LeaveAction::AddHeaders(self.response_headers(ticket.status.as_ref()))
    }

    async fn accept_parked(
        &self,
        parked: Self::AcceptTicket,
        _: HttpRequestHead,
        _: Option<Bytes>,
    ) -> Option<Reply> {
        match parked {}
    }
}

// Steps of a request.
impl<R: RequestKind> RateLimitLayer<R> {
    fn gate_id(&self) -> GateId {
        GateId::of(&self.0)
    }

    #[expect(clippy::indexing_slicing, reason = "the indices belong to the limits of this layer")]
    fn admission_ticket(
        &self,
        decision: Decision,
        receipt: ChargeReceipt,
        (request, store_identity): (CheckRequest, StoreIdentity),
        outer_status: Option<RateStatus>,
    ) -> RateLimitTicket {
        let policies = &self.0.policies;
        let (receipt, check_policies) = if self.0.may_settle() {
            let check_policy = |check: &PolicyCheck| CheckPolicy {
                policy_index: check.policy_index,
                handler_sets_cost: policies[check.policy_index].handler_sets_cost,
            };
            (Some(receipt), request.checks.iter().map(check_policy).collect())
        } else {
            receipt.commit();
            (None, Vec::new())
        };
        let is_adjustable = |check: &&PolicyCheck| policies[check.policy_index].handler_sets_cost;
        let adjustable_checks = request.checks.iter().filter(is_adjustable);
        let max_cost = adjustable_checks.map(|check| check.quota.max_charge()).min();
        let status = RateStatus::new(decision, (request, store_identity), max_cost, outer_status);
        RateLimitTicket::new(Some(status), receipt, check_policies)
    }

    fn to_verdict(
        &self,
        result: Result<RateCheckOutcome, Error>,
        context: RateLimitContext,
    ) -> Verdict<RateLimitTicket> {
        let node = || context.store_and_engine(&self.0).map(|(store, _)| display(store.node()));
        let refused = |reply: Reply| {
            if let Some(run) = &context.direct_run {
                run.record_refused(self.gate_id(), reply.status);
            }
            Verdict::Answer(reply)
        };
        match result {
            Ok(RateCheckOutcome { decision, receipt }) if decision.is_admitted() => {
                let RateLimitContext { request, store_identity, outer_status, .. } = context;
                let charged = (request, store_identity);
                Verdict::Pass(self.admission_ticket(decision, receipt, charged, outer_status))
            }
            Ok(RateCheckOutcome { decision, .. }) => {
                let policy = decision.binding_policy().map(|binding| binding.policy().name());
                tracing::debug!(node = node(), policy, "request refused: quota exceeded");
                refused(self.0.response.refusal_reply(&policy_statuses(&decision)))
            }
            Err(error) => {
                crate::throttle::throttled!(
                    error,
                    node = node(), %error, "request refused: the store is unavailable"
                );
                refused(Reply::store_unavailable())
            }
        }
    }

    /// Returns the headers for an admitted request. Without the store the quotas are unknown, so
    /// there are none.
    fn response_headers(&self, status: Option<&RateStatus>) -> HeaderSet {
        let headers_of =
            |status: &RateStatus| self.0.response.headers_for(&policy_statuses(status.decision()));
        status.filter(|status| !status.is_local()).map_or_else(HeaderSet::new, headers_of)
    }
}

/// Records the result of a check in its span.
fn record_check(span: &BoxedSpan, result: &Result<RateCheckOutcome, Error>) {
    match result {
        Ok(RateCheckOutcome { decision, .. }) => {
            span.record("admitted", decision.admitted);
            span.record("local", decision.decided_locally);
        }
        Err(_) => span.record("otel.status_code", "ERROR"),
    }
}
