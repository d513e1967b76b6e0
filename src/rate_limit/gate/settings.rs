//! How a layer is built.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt as _;

use super::{
    RateLimitGate,
    again::Again,
    plan::{Limit, Plan},
    quotas::Quotas,
};
use crate::{
    gate::KeySource,
    outage::Outage,
    rate_limit::{facing::Facing, policy::Policy, quota::Quota},
    store::Store,
};

impl<N: ?Sized> RateLimitGate<N> {
    /// This policy for each key.
    #[must_use]
    pub fn new(source: KeySource<N>, policy: impl Into<Policy>) -> Self {
        Self(Arc::new(Plan {
            limits: vec![Limit::new(source, policy.into())],
            group: None,
            store: None,
            engine: OnceLock::new(),
            facing: Facing::default(),
            again: Again::default(),
        }))
    }

    /// See `RateLimitLayer::and`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let other = Arc::unwrap_or_clone(other.0);
        self.with(|plan| {
            plan.limits.extend(other.limits);
            plan.group = plan.group.take().or(other.group);
            plan.store = plan.store.take().or(other.store);
            plan.engine = OnceLock::new();
        })
    }

    /// See `RateLimitLayer::group_by_...`.
    #[must_use]
    pub fn group_by(self, source: KeySource<N>) -> Self {
        self.with(|plan| plan.group = Some(source))
    }

    /// See `RateLimitLayer::store`.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.with(|plan| (plan.store, plan.engine) = (Some(store.clone()), OnceLock::new()))
    }

    /// Sets what has nothing to do with how it counts.
    #[must_use]
    pub fn facing(self, set: impl FnOnce(Facing) -> Facing) -> Self {
        self.with(|plan| plan.facing = set(std::mem::take(&mut plan.facing)))
    }

    /// See `RateLimitLayer::name`.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.policy(|policy| policy.name(name))
    }

    /// See `RateLimitLayer::on_outage`.
    #[must_use]
    pub fn on_outage(self, outage: Outage) -> Self {
        self.policy(|policy| policy.on_outage(outage))
    }

    /// See `RateLimitLayer::shadow`.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.policy(Policy::shadow)
    }

    /// See `RateLimitLayer::cost_by`.
    #[must_use]
    pub fn cost_by(self, cost: impl Fn(&N) -> u64 + Send + Sync + 'static) -> Self {
        self.last(|limit| limit.cost_by = Some(Arc::new(cost)))
    }

    /// See `RateLimitLayer::quota_by`.
    #[must_use]
    pub fn quota_by<F>(self, quota: impl Fn(&N) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Quota> + Send + 'static,
    {
        let quotas = Quotas::new(Arc::new(move |native| quota(native).boxed()));
        self.last(|limit| limit.quotas = Some(Arc::new(quotas)))
    }

    /// See `RateLimitLayer::quota_fresh_for`.
    ///
    /// # Panics
    ///
    /// If there is no `quota_by` before it.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "a mistake of the wiring is told where the layer is built"
    )]
    pub fn quota_fresh_for(self, fresh: Duration) -> Self {
        self.last(|limit| {
            let quotas = limit.quotas.take().expect("quota_fresh_for: put it behind quota_by");
            limit.quotas = Some(Arc::new(quotas.fresh_for(fresh)));
        })
    }

    /// See `RateLimitLayer::refund_on`. Inside another layer that is alike otherwise, this one charges the request as well,
    /// and gives back what it has charged itself.
    #[must_use]
    pub fn refund_on(self, refund: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
        self.last(|limit| limit.refund_on = Some(Arc::new(refund)))
    }

    /// See `RateLimitLayer::settle_by_handler`. Inside another layer that is alike otherwise, this one charges the request
    /// as well, and the handler says what it costs here.
    #[must_use]
    pub fn settle_by_handler(self) -> Self {
        self.last(|limit| limit.by_handler = true)
    }

    fn with(self, change: impl FnOnce(&mut Plan<N>)) -> Self {
        let mut plan = Arc::unwrap_or_clone(self.0);
        change(&mut plan);
        Self(Arc::new(plan))
    }

    /// Settings are those of the policy that was named last.
    fn last(self, change: impl FnOnce(&mut Limit<N>)) -> Self {
        self.with(|plan| {
            if let Some(last) = plan.limits.last_mut() {
                change(last);
            }
        })
    }

    fn policy(self, change: impl FnOnce(Policy) -> Policy) -> Self {
        self.last(|limit| limit.policy = Arc::new(change((*limit.policy).clone())))
    }
}
