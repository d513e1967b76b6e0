//! `RateLimitGate`: the limits in front of a request.

mod again;
mod ask;
mod plan;
mod quotas;
mod run;
mod settings;
mod status;
mod ticket;

use std::{convert::Infallible, fmt, sync::Arc};

use bytes::Bytes;
use tracing::field::display;

pub use self::{
    ask::RateLimitFacts,
    status::{ChargeBounded, RateStatus},
    ticket::RateLimitTicket,
};
use self::{plan::Plan, run::RunCharge, status::At, ticket::standings};
use super::{
    decision::Decision,
    engine::{Ask, Checked, Question, Receipt},
    standing::Standing,
};
use crate::{
    error::Error,
    gate::{Asked, Gate, GateId, Head, Outcome, Parting, RememberedRun, Verdict, View},
    reply::{Fields, Reply},
};

/// The policies of a `RateLimitLayer`.
pub struct RateLimitGate<N: ?Sized>(Arc<Plan<N>>);

impl<N: ?Sized> RateLimitGate<N> {
    fn id(&self) -> GateId {
        GateId::of(&self.0)
    }

    #[expect(clippy::indexing_slicing, reason = "places are those of its own limits")]
    fn admitted(
        &self,
        decision: Decision,
        receipt: Receipt,
        (ask, at): (Ask, At),
        outer: Option<RateStatus>,
    ) -> RateLimitTicket {
        let limits = &self.0.limits;
        let (receipt, places) = if self.0.settles() {
            let place = |each: &Question| (each.place, limits[each.place].by_handler);
            (Some(receipt), ask.questions.iter().map(place).collect())
        } else {
            receipt.keep();
            (None, Vec::new())
        };
        let heeding = ask.questions.iter().filter(|each| limits[each.place].by_handler);
        let heeded = heeding.map(|each| each.quota.most_charged()).min();
        let status = RateStatus::new(decision, (ask, at), heeded, outer);
        RateLimitTicket::new(Some(status), receipt, places)
    }

    fn verdict(
        &self,
        checked: Result<Checked, Error>,
        facts: RateLimitFacts,
    ) -> Verdict<RateLimitTicket> {
        let node = || facts.counting(&self.0).map(|(store, _)| display(store.node()));
        let refused = |reply: Reply| {
            if let Some(run) = &facts.remembered {
                run.note_refused(self.id(), reply.status);
            }
            Verdict::Answer(reply)
        };
        match checked {
            Ok(Checked { decision, receipt }) if decision.is_admitted() => {
                let RateLimitFacts { ask, at, outer, .. } = facts;
                Verdict::Pass(self.admitted(decision, receipt, (ask, at), outer))
            }
            Ok(Checked { decision, .. }) => {
                let policy = decision.binding().map(|each| each.policy().label());
                tracing::debug!(node = node(), policy, "request refused: quota spent");
                refused(self.0.facing.refuse(&standings(&decision)))
            }
            Err(error) => {
                crate::throttle::throttled!(
                    error,
                    node = node(), %error, "request refused: no quota, store away"
                );
                refused(Reply::store_away())
            }
        }
    }

    /// What a request that was let in is told. Nothing is known of the quotas while the store is away.
    fn fields(&self, status: Option<&RateStatus>) -> Fields {
        let told = |status: &RateStatus| self.0.facing.told(&standings(status.decision()));
        status.filter(|status| !status.is_local()).map_or_else(Fields::new, told)
    }
}

impl<N: ?Sized + 'static> Gate<N> for RateLimitGate<N> {
    type Facts = RateLimitFacts;
    type Ticket = RateLimitTicket;
    /// Nothing is changed about its charges any more.
    type Quick = Option<RateStatus>;
    type Parked = Infallible;

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<RateLimitFacts, Option<RateStatus>> {
        let asked = self.0.read(view);
        let refusal = match &asked {
            Asked::Answer(reply) => Some(reply.status),
            Asked::Again(repeated) => Some(repeated.reply().status),
            Asked::Pass(_) => None,
            Asked::Skip | Asked::Enter(_) => return asked,
        };
        if let Some(run) = RememberedRun::of(view) {
            match refusal {
                Some(status) => run.note_refused(self.id(), status),
                None => run.note_passed(self.id()),
            }
        }
        asked
    }

    fn quick(&self, ticket: RateLimitTicket) -> Result<Option<RateStatus>, RateLimitTicket> {
        ticket.settled()
    }

    fn part(
        &self,
        status: Option<RateStatus>,
        add: impl FnMut(&'static str, Bytes),
    ) -> Result<(), Option<RateStatus>> {
        if let Some(status) = status.filter(|status| !status.is_local()) {
            let Plan { facing, again, limits, .. } = &*self.0;
            let standings = standings(status.decision());
            let policies = |standings: &[Standing<'_>]| again.policies(standings, limits.len());
            facing.tell(&standings, policies, add);
        }
        Ok(())
    }

    fn ticket(&self, status: Option<RateStatus>) -> RateLimitTicket {
        RateLimitTicket::new(status, None, Vec::new())
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice, and this one's is in that of every request"
    )]
    fn enter(
        &self,
        mut facts: RateLimitFacts,
    ) -> impl Future<Output = Verdict<RateLimitTicket>> + Send {
        async move {
            let settles = self.0.settles();
            let asked = facts.quotas.is_empty();
            if !asked {
                Box::pin(facts.complete()).await;
            }
            let Some((store, engine)) = facts.counting(&self.0) else {
                return Verdict::Answer(ask::no_store());
            };
            if facts.run.is_some() {
                let to = (store.clone(), Arc::clone(engine));
                return Verdict::Pass(RateLimitTicket::of_run(RunCharge::new(to, facts)));
            }
            let checked = if asked {
                // What is remembered was looked at.
                engine.charge(store, &facts.ask, settles).await
            } else {
                Box::pin(engine.check(store, &facts.ask, settles)).await
            };
            self.verdict(checked, facts)
        }
    }

    fn show<V: View<Native = N>>(&self, ticket: &RateLimitTicket, view: &mut V) {
        if let Some(run) = RememberedRun::of(view) {
            run.note_passed(self.id());
        }
        if let Some(status) = &ticket.status {
            status.put(view);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "places are those of its own limits")]
    async fn leave(
        &self,
        mut ticket: RateLimitTicket,
        outcome: Outcome,
    ) -> Parting<Self::Ticket, Self::Parked> {
        // An error of the inner service becomes a 500 further out, if it becomes anything.
        let status = outcome.status().unwrap_or(500);
        let refunds =
            |at: usize| self.0.limits[at].refund_on.as_ref().is_some_and(|refund| refund(status));
        if let Some(settled) = ticket.has_run(status, refunds).or_else(|| ticket.settle(refunds)) {
            settled.wait().await;
        }
        Parting::Fields(self.fields(ticket.status.as_ref()))
    }

    async fn accept(&self, parked: Self::Parked, _: Head, _: Option<Bytes>) -> Option<Reply> {
        match parked {}
    }
}

impl<N: ?Sized> Clone for RateLimitGate<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: ?Sized> fmt::Debug for RateLimitGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
