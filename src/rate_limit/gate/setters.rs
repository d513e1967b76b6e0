//! Setters of `RateLimitGate`.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt as _;

use super::{
    RateLimitGate,
    quota_lookup::QuotaLookup,
    rate_limit_settings::{LayerPolicy, RateLimitSettings},
    refusal_reply_cache::RefusalReplyCache,
};
use crate::{
    gate::KeySource,
    outage::RateLimitOutage,
    rate_limit::{policy::Policy, quota::Quota, response_options::ResponseOptions},
    store::Store,
};

impl<N: ?Sized> RateLimitGate<N> {
    /// Applies this policy to each key.
    #[must_use]
    pub fn new(source: KeySource<N>, policy: impl Into<Policy>) -> Self {
        Self(Arc::new(RateLimitSettings {
            policies: vec![LayerPolicy::new(source, policy.into())],
            group_source: None,
            store: None,
            engine: OnceLock::new(),
            response: ResponseOptions::default(),
            reply_cache: RefusalReplyCache::default(),
        }))
    }

    /// See `RateLimitLayer::and`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let other = Arc::unwrap_or_clone(other.0);
        self.update(|plan| {
            plan.policies.extend(other.policies);
            plan.group_source = plan.group_source.take().or(other.group_source);
            plan.store = plan.store.take().or(other.store);
            plan.engine = OnceLock::new();
        })
    }

    /// See `RateLimitLayer::group_by`.
    #[must_use]
    pub fn group_by(self, source: KeySource<N>) -> Self {
        self.update(|plan| plan.group_source = Some(source))
    }

    /// See `RateLimitLayer::store`.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.update(|plan| (plan.store, plan.engine) = (Some(store.clone()), OnceLock::new()))
    }

    /// Changes the settings that do not affect the counting.
    #[must_use]
    pub fn response_options(self, set: impl FnOnce(ResponseOptions) -> ResponseOptions) -> Self {
        self.update(|plan| plan.response = set(std::mem::take(&mut plan.response)))
    }

    /// See `RateLimitLayer::policy_name`.
    #[must_use]
    pub fn policy_name(self, name: &str) -> Self {
        self.map_last_policy(|policy| policy.with_name(name))
    }

    /// See `RateLimitLayer::on_outage`.
    #[must_use]
    pub fn on_outage(self, outage: RateLimitOutage) -> Self {
        self.map_last_policy(|policy| policy.on_outage(outage))
    }

    /// See `RateLimitLayer::shadow`.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.map_last_policy(Policy::shadow)
    }

    /// See `RateLimitLayer::cost_by`.
    #[must_use]
    pub fn cost_by(self, cost: impl Fn(&N) -> u64 + Send + Sync + 'static) -> Self {
        self.update_last_policy(|limit| limit.cost_by = Some(Arc::new(cost)))
    }

    /// See `RateLimitLayer::quota_by`.
    #[must_use]
    pub fn quota_by<F>(self, quota: impl Fn(&N) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Quota> + Send + 'static,
    {
        let quotas = QuotaLookup::new(Arc::new(move |native| quota(native).boxed()));
        self.update_last_policy(|limit| limit.quota_by = Some(Arc::new(quotas)))
    }

    /// See `RateLimitLayer::quota_ttl`.
    ///
    /// # Panics
    ///
    /// If no `quota_by` precedes it.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "a misconfiguration is reported where the layer is built"
    )]
    pub fn quota_ttl(self, fresh: Duration) -> Self {
        self.update_last_policy(|limit| {
            let quotas =
                limit.quota_by.take().expect("RateLimitLayer::quota_ttl: call quota_by first");
            limit.quota_by = Some(Arc::new(quotas.with_ttl(fresh)));
        })
    }

    /// See `RateLimitLayer::refund_on`. Inside another layer that is otherwise alike, this layer
    /// charges the request too, and refunds its own charge.
    #[must_use]
    pub fn refund_on(self, refund: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
        self.update_last_policy(|limit| limit.refund_on = Some(Arc::new(refund)))
    }

    /// See `RateLimitLayer::handler_sets_cost`. Inside another layer that is otherwise alike, this
    /// layer charges the request too, and the handler sets its cost here.
    #[must_use]
    pub fn handler_sets_cost(self) -> Self {
        self.update_last_policy(|limit| limit.handler_sets_cost = true)
    }

    fn update(self, change: impl FnOnce(&mut RateLimitSettings<N>)) -> Self {
        let mut plan = Arc::unwrap_or_clone(self.0);
        change(&mut plan);
        Self(Arc::new(plan))
    }

    /// Changes the policy that was added last.
    fn update_last_policy(self, change: impl FnOnce(&mut LayerPolicy<N>)) -> Self {
        self.update(|plan| {
            if let Some(last) = plan.policies.last_mut() {
                change(last);
            }
        })
    }

    fn map_last_policy(self, change: impl FnOnce(Policy) -> Policy) -> Self {
        self.update_last_policy(|limit| limit.policy = Arc::new(change((*limit.policy).clone())))
    }
}
