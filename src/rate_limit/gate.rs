//! `RateLimitGate`: the limit in front of a request.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    facing::Facing,
    limiter::Decision,
    quota::{Policy, Quota},
    standing::Standing,
};
use crate::{
    gate::{Asked, Gate, Head, KeySource, Outcome, Parting, Verdict, View, current_replay},
    key::Key,
    outage::Outage,
    reply::{Fields, Reply},
    store::Store,
};

/// The policy of a `RateLimitLayer`.
pub struct RateLimitGate<N: ?Sized> {
    source: Arc<KeySource<N>>,
    policy: Policy,
    store: Option<Store>,
    outage: Outage,
    facing: Arc<Facing>,
}

impl<N: ?Sized> RateLimitGate<N> {
    /// This quota for each key.
    #[must_use]
    pub fn new(source: KeySource<N>, quota: Quota) -> Self {
        let policy = Policy::new(quota);
        Self {
            source: Arc::new(source),
            policy,
            store: None,
            outage: Outage::Admit,
            facing: Arc::default(),
        }
    }

    /// See `RateLimitLayer::name`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.policy = self.policy.name(name);
        self
    }

    /// See `RateLimitLayer::store`.
    #[must_use]
    pub fn store(mut self, store: &Store) -> Self {
        self.store = Some(store.clone());
        self
    }

    /// See `RateLimitLayer::on_outage`.
    #[must_use]
    pub fn on_outage(mut self, outage: Outage) -> Self {
        self.outage = outage;
        self
    }

    /// Sets what has nothing to do with how it counts.
    #[must_use]
    pub fn facing(mut self, set: impl FnOnce(Facing) -> Facing) -> Self {
        self.facing = Arc::new(set(Arc::unwrap_or_clone(self.facing)));
        self
    }
}

/// What a limit needs of a request.
#[derive(Debug)]
pub struct RateLimitFacts {
    store: Store,
    key: Key,
}

/// What the handler may know of the quota. Absent while the store is away and requests are admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateStatus {
    policy: Policy,
    decision: Decision,
}

impl RateStatus {
    /// The policy the request was charged to.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How it was decided.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    fn standing(&self) -> Standing<'_> {
        let (quota, decision) = (self.policy.quota(), &self.decision);
        let violated = !decision.is_admitted();
        Standing {
            name: self.policy.label(),
            limit: quota.limit(),
            window: quota.window(),
            remaining: decision.remaining(),
            reset: decision.reset(),
            retry: if violated { decision.reset() } else { Duration::ZERO },
            violated,
        }
    }
}

impl<N: ?Sized + 'static> Gate<N> for RateLimitGate<N> {
    type Facts = RateLimitFacts;
    type Ticket = Option<RateStatus>;
    type Parked = std::convert::Infallible;

    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<RateLimitFacts> {
        // Charged when it was accepted.
        if current_replay(view).is_some() {
            return Asked::Skip;
        }
        if let Some(asked) = self.facing.ask(view, &self.source) {
            return asked;
        }
        let key = match self.source.read(view) {
            Ok(key) => key,
            Err(fault) => {
                return fault.answer("RateLimitLayer").map_or(Asked::Skip, Asked::Answer);
            }
        };
        if let Some(asked) = self.facing.ask_keys([&key]) {
            return asked;
        }
        match self.store.clone().or_else(|| view.store()) {
            Some(store) => Asked::Enter(RateLimitFacts { store, key }),
            None => Asked::Answer(crate::outage::no_store("RateLimitLayer")),
        }
    }

    async fn enter(&self, facts: RateLimitFacts) -> Verdict<Option<RateStatus>> {
        let RateLimitFacts { store, key } = facts;
        match store.rate_limit(self.policy.clone()).check(key.clone(), 1).await {
            Ok(decision) if decision.is_admitted() => {
                Verdict::Pass(Some(RateStatus { policy: self.policy.clone(), decision }))
            }
            Ok(decision) => {
                tracing::debug!(
                    node = %store.node(), subject = %key.hashed(), policy = self.policy.label(),
                    "request refused: quota spent"
                );
                let status = RateStatus { policy: self.policy.clone(), decision };
                Verdict::Answer(self.facing.refuse(&[status.standing()]))
            }
            Err(error) => {
                tracing::error!(
                    node = %store.node(), %error, policy = ?self.outage, "no quota: store away"
                );
                match self.outage {
                    Outage::Admit => Verdict::Pass(None),
                    Outage::Refuse => Verdict::Answer(Reply::store_away()),
                }
            }
        }
    }

    fn show<V: View<Native = N>>(&self, ticket: &Option<RateStatus>, view: &mut V) {
        if let Some(status) = ticket {
            view.put(status.clone());
        }
    }

    async fn leave(
        &self,
        ticket: Option<RateStatus>,
        _: Outcome,
    ) -> Parting<Self::Ticket, Self::Parked> {
        let told = |status: RateStatus| self.facing.told(&[status.standing()]);
        Parting::Fields(ticket.map_or_else(Fields::new, told))
    }

    async fn accept(&self, parked: Self::Parked, _: Head, _: Bytes) -> Option<Reply> {
        match parked {}
    }
}

impl<N: ?Sized> Clone for RateLimitGate<N> {
    fn clone(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            policy: self.policy.clone(),
            store: self.store.clone(),
            outage: self.outage,
            facing: Arc::clone(&self.facing),
        }
    }
}

impl<N: ?Sized> fmt::Debug for RateLimitGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitGate")
            .field("source", &self.source)
            .field("policy", &self.policy)
            .field("outage", &self.outage)
            .field("facing", &self.facing)
            .finish_non_exhaustive()
    }
}
