//! Settings of `RateLimitLayer` for the policy that was added last.

use std::time::Duration;

use actix_web::HttpRequest;
use lockgate::{Quota, RateLimitOutage};

use super::RateLimitLayer;

impl RateLimitLayer {
    /// Name of the policy, which clients see and counters are stored under: see
    /// [`Policy::with_name`](crate::Policy::with_name).
    ///
    /// See the core's [`policy_name`](lockgate::rate_limit::RateLimitLayer::policy_name).
    #[must_use]
    pub fn policy_name(self, name: &str) -> Self {
        Self { inner: self.inner.policy_name(name) }
    }

    /// Reaction to an unavailable store.
    ///
    /// See the core's [`on_outage`](lockgate::rate_limit::RateLimitLayer::on_outage).
    #[must_use]
    pub fn on_outage(self, outage: RateLimitOutage) -> Self {
        Self { inner: self.inner.on_outage(outage) }
    }

    /// Charges and reports, but never refuses: see [`Policy::shadow`](crate::Policy::shadow).
    ///
    /// See the core's [`shadow`](lockgate::rate_limit::RateLimitLayer::shadow).
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { inner: self.inner.shadow() }
    }

    /// Cost of a request.
    ///
    /// See the core's [`cost_by`](lockgate::rate_limit::RateLimitLayer::cost_by).
    #[must_use]
    pub fn cost_by(self, cost: impl Fn(&HttpRequest) -> u64 + Send + Sync + 'static) -> Self {
        Self { inner: self.inner.cost_by(cost) }
    }

    /// Quota that depends on the request, such as on its client's plan.
    ///
    /// See the core's [`quota_by`](lockgate::rate_limit::RateLimitLayer::quota_by).
    #[must_use]
    pub fn quota_by<F>(self, quota: impl Fn(&HttpRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Quota> + Send + 'static,
    {
        Self { inner: self.inner.quota_by(quota) }
    }

    /// Time for which the result of `quota_by` is cached.
    ///
    /// See the core's [`quota_ttl`](lockgate::rate_limit::RateLimitLayer::quota_ttl).
    #[must_use]
    pub fn quota_ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.quota_ttl(ttl) }
    }

    /// Refunds the charge of a request if the function returns true for the status of its response.
    ///
    /// See the core's [`refund_on`](lockgate::rate_limit::RateLimitLayer::refund_on).
    #[must_use]
    pub fn refund_on(self, refund: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
        Self { inner: self.inner.refund_on(refund) }
    }

    /// Lets the handler set the cost of its request by
    /// [`RateStatus::set_cost`](crate::RateStatus::set_cost).
    ///
    /// See the core's
    /// [`handler_sets_cost`](lockgate::rate_limit::RateLimitLayer::handler_sets_cost).
    #[must_use]
    pub fn handler_sets_cost(self) -> Self {
        Self { inner: self.inner.handler_sets_cost() }
    }
}
