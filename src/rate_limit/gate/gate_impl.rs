//! `Gate` implementation of `RateLimitLayer`.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use tracing::field::display;

use super::{
    rate_limit_context::{self, RateLimitContext},
    rate_limit_layer::RateLimitLayer,
    rate_limit_settings::RateLimitSettings,
    rate_limit_ticket::{RateLimitTicket, policy_statuses},
    rate_status::{RateStatus, StoreIdentity},
    run_charge::RunCharge,
};
use crate::{
    error::Error,
    gate::{
        Gate, GateId, GateRequest, HttpRequestHead, InitialVerdict, LeaveAction, RefusalTracker,
        RequestKind, ServiceOutcome, Verdict,
    },
    rate_limit::{
        decision::Decision,
        engine::{ChargeReceipt, CheckRequest, PolicyCheck, RateCheckOutcome},
        policy_status::PolicyStatus,
    },
    reply::{HeaderSet, Reply},
};

impl<R: RequestKind> Gate<R::Native> for RateLimitLayer<R> {
    type EntryContext = RateLimitContext;
    type Ticket = RateLimitTicket;
    /// Status of a request with final charges.
    type LightTicket = Option<RateStatus>;
    type AcceptTicket = Infallible;

    fn inspect<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<RateLimitContext, Option<RateStatus>> {
        let asked = self.0.read_request(view);
        let refusal = match &asked {
            InitialVerdict::Answer(reply) => Some(reply.status),
            InitialVerdict::SharedAnswer(repeated) => Some(repeated.reply().status),
            InitialVerdict::PassLight(_) => None,
            InitialVerdict::Skip | InitialVerdict::Enter(_) => return asked,
        };
        if let Some(run) = RefusalTracker::from_view(view) {
            match refusal {
                Some(status) => run.record_refused(self.gate_id(), status),
                None => run.record_passed(self.gate_id()),
            }
        }
        asked
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
            let RateLimitSettings {
                response: facing, reply_cache: again, policies: limits, ..
            } = &*self.0;
            let standings = policy_statuses(status.decision());
            let policies =
                |standings: &[PolicyStatus<'_>]| again.policy_header(standings, limits.len());
            facing.for_each_header(&standings, policies, add);
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
        mut facts: RateLimitContext,
    ) -> impl Future<Output = Verdict<RateLimitTicket>> + Send {
        async move {
            let settles = self.0.may_settle();
            let asked = facts.pending_quotas.is_empty();
            if !asked {
                Box::pin(facts.resolve_quotas()).await;
            }
            let Some((store, engine)) = facts.store_and_engine(&self.0) else {
                return Verdict::Answer(rate_limit_context::missing_store_reply());
            };
            if facts.replay.is_some() {
                let to = (store.clone(), Arc::clone(engine));
                return Verdict::Pass(RateLimitTicket::for_run(RunCharge::new(to, facts)));
            }
            let checked = if asked {
                // `inspect` has looked at the refusal cache.
                engine.check_uncached(store, &facts.request, settles).await
            } else {
                Box::pin(engine.check(store, &facts.request, settles)).await
            };
            self.to_verdict(checked, facts)
        }
    }

    fn annotate_request<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        ticket: &RateLimitTicket,
        view: &mut V,
    ) {
        if let Some(run) = RefusalTracker::from_view(view) {
            run.record_passed(self.gate_id());
        }
        if let Some(status) = &ticket.status {
            status.insert_into(view);
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
        let refunds =
            |at: usize| self.0.policies[at].refund_on.as_ref().is_some_and(|refund| refund(status));
        if let Some(settled) =
            ticket.settle_run(status, refunds).or_else(|| ticket.settle_charges(refunds))
        {
            settled.wait().await;
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
        (ask, at): (CheckRequest, StoreIdentity),
        outer: Option<RateStatus>,
    ) -> RateLimitTicket {
        let limits = &self.0.policies;
        let (receipt, places) = if self.0.may_settle() {
            let place = |each: &PolicyCheck| {
                (each.policy_index, limits[each.policy_index].handler_sets_cost)
            };
            (Some(receipt), ask.checks.iter().map(place).collect())
        } else {
            receipt.commit();
            (None, Vec::new())
        };
        let heeding = ask.checks.iter().filter(|each| limits[each.policy_index].handler_sets_cost);
        let heeded = heeding.map(|each| each.quota.max_charge()).min();
        let status = RateStatus::new(decision, (ask, at), heeded, outer);
        RateLimitTicket::new(Some(status), receipt, places)
    }

    fn to_verdict(
        &self,
        checked: Result<RateCheckOutcome, Error>,
        facts: RateLimitContext,
    ) -> Verdict<RateLimitTicket> {
        let node = || facts.store_and_engine(&self.0).map(|(store, _)| display(store.node()));
        let refused = |reply: Reply| {
            if let Some(run) = &facts.remembered_run {
                run.record_refused(self.gate_id(), reply.status);
            }
            Verdict::Answer(reply)
        };
        match checked {
            Ok(RateCheckOutcome { decision, receipt }) if decision.is_admitted() => {
                let RateLimitContext {
                    request: ask, store_identity: at, outer_status: outer, ..
                } = facts;
                Verdict::Pass(self.admission_ticket(decision, receipt, (ask, at), outer))
            }
            Ok(RateCheckOutcome { decision, .. }) => {
                let policy = decision.binding_policy().map(|each| each.policy().name());
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
        let told =
            |status: &RateStatus| self.0.response.headers_for(&policy_statuses(status.decision()));
        status.filter(|status| !status.is_local()).map_or_else(HeaderSet::new, told)
    }
}
