//! `RateLimitLayer` for actix-web's `wrap`.

use std::{
    fmt::Display,
    future::{Ready, ready},
    str::FromStr,
    time::Duration,
};

use actix_web::{
    Error, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use lockgate::{
    AccessLists, ClientAddress, Policy, Quota, RateHeaders, RateLimitOutage, RateRefusal, Reply,
    Store, driver::Gate as _,
};

use crate::{
    actix_framework::{ActixFramework, KeyPart},
    gate_middleware::GateMiddleware,
};

/// Limits requests per client: 429 beyond the quota, `RateLimit` headers within it.
///
/// Each method is that of the [core's type](lockgate::rate_limit::RateLimitLayer), which documents
/// it.
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    inner: lockgate::rate_limit::RateLimitLayer<ActixFramework>,
}

impl RateLimitLayer {
    /// One quota for each value of this key: one part, or a tuple of up to four.
    ///
    /// See the core's [`by`](lockgate::rate_limit::RateLimitLayer::by).
    #[must_use]
    pub fn by(keys: impl Into<KeyPart>, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by(keys, policy) }
    }

    /// Adds the policies of another layer: a request has to be within all policies, and is charged
    /// to all of them or to none.
    ///
    /// See the core's [`and`](lockgate::rate_limit::RateLimitLayer::and).
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { inner: self.inner.and(other.inner) }
    }

    /// Counts all policies of this layer under one key, so that one call decides all of them.
    ///
    /// See the core's [`group_by`](lockgate::rate_limit::RateLimitLayer::group_by).
    #[must_use]
    pub fn group_by(self, keys: impl Into<KeyPart>) -> Self {
        Self { inner: self.inner.group_by(keys) }
    }

    /// Uses this store instead of the one that the request provides.
    ///
    /// See the core's [`store`](lockgate::rate_limit::RateLimitLayer::store).
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        Self { inner: self.inner.store(store) }
    }

    /// One quota for each client address: the address of the peer's socket.
    ///
    /// See the core's [`by_ip`](lockgate::rate_limit::RateLimitLayer::by_ip).
    #[must_use]
    pub fn by_ip(policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_ip(policy) }
    }

    /// One quota for each client address, also behind proxies: see
    /// [`ClientAddress`](crate::ClientAddress) for the trusted headers.
    ///
    /// See the core's [`by_client`](lockgate::rate_limit::RateLimitLayer::by_client).
    #[must_use]
    pub fn by_client(address: ClientAddress, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_client(address, policy) }
    }

    /// One quota for each value of a header, such as an API key.
    ///
    /// See the core's [`by_header`](lockgate::rate_limit::RateLimitLayer::by_header).
    #[must_use]
    pub fn by_header(name: &str, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_header(name, policy) }
    }

    /// One quota for each text of a parameter of the matched route.
    ///
    /// See the core's [`by_path_param`](lockgate::rate_limit::RateLimitLayer::by_path_param).
    #[must_use]
    pub fn by_path_param(name: &str, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_path_param(name, policy) }
    }

    /// One quota for each value of a parameter that the handler parses as a `T`, such as a number
    /// or a UUID.
    ///
    /// See the core's [`by_path_param_as`](lockgate::rate_limit::RateLimitLayer::by_path_param_as).
    #[must_use]
    pub fn by_path_param_as<T>(name: &str, policy: impl Into<Policy>) -> Self
    where
        T: FromStr + Display,
    {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_path_param_as::<T>(name, policy) }
    }

    /// One quota for each route, shared by all clients.
    ///
    /// See the core's [`by_route`](lockgate::rate_limit::RateLimitLayer::by_route).
    #[must_use]
    pub fn by_route(policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_route(policy) }
    }

    /// One quota for each value of type `T` that an outer layer has put into the request's
    /// extensions, such as the account of an authentication.
    ///
    /// See the core's [`by_extension`](lockgate::rate_limit::RateLimitLayer::by_extension).
    #[must_use]
    pub fn by_extension<T>(name: &str, policy: impl Into<Policy>) -> Self
    where
        T: Display + Send + Sync + 'static,
    {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_extension::<T>(name, policy) }
    }

    /// One quota for each value that the function returns.
    ///
    /// See the core's [`by_key`](lockgate::rate_limit::RateLimitLayer::by_key).
    #[must_use]
    pub fn by_key(
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
        policy: impl Into<Policy>,
    ) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_key(name, key, policy) }
    }

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
    pub fn quota_ttl(self, fresh: Duration) -> Self {
        Self { inner: self.inner.quota_ttl(fresh) }
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

    /// Admits listed clients without counting, and refuses others with 403.
    ///
    /// See the core's [`access_lists`](lockgate::rate_limit::RateLimitLayer::access_lists).
    #[must_use]
    pub fn access_lists(self, lists: AccessLists) -> Self {
        Self { inner: self.inner.access_lists(lists) }
    }

    /// Charges CORS preflights too.
    ///
    /// See the core's
    /// [`charge_preflights`](lockgate::rate_limit::RateLimitLayer::charge_preflights).
    #[must_use]
    pub fn charge_preflights(self) -> Self {
        Self { inner: self.inner.charge_preflights() }
    }

    /// Headers that report the quota to clients.
    ///
    /// See the core's [`rate_headers`](lockgate::rate_limit::RateLimitLayer::rate_headers).
    #[must_use]
    pub fn rate_headers(self, headers: RateHeaders) -> Self {
        Self { inner: self.inner.rate_headers(headers) }
    }

    /// Lists the rate headers and `Retry-After` in `Access-Control-Expose-Headers`, so that scripts
    /// of other origins can read them.
    ///
    /// See the core's [`expose_headers`](lockgate::rate_limit::RateLimitLayer::expose_headers).
    #[must_use]
    pub fn expose_headers(self) -> Self {
        Self { inner: self.inner.expose_headers() }
    }

    /// Builds the complete response to a refused request.
    ///
    /// See the core's [`refusal_response`](lockgate::rate_limit::RateLimitLayer::refusal_response).
    #[must_use]
    pub fn refusal_response(
        self,
        respond: impl Fn(&RateRefusal<'_>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.refusal_response(respond) }
    }

    /// Refuses requests in a form that gRPC clients understand:
    /// [`RateRefusal::grpc_reply`](crate::RateRefusal::grpc_reply).
    ///
    /// See the core's [`grpc_refusals`](lockgate::rate_limit::RateLimitLayer::grpc_refusals).
    #[must_use]
    pub fn grpc_refusals(self) -> Self {
        Self { inner: self.inner.grpc_refusals() }
    }
}

impl<S, B> Transform<S, ServiceRequest> for RateLimitLayer
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Transform = GateMiddleware<S, lockgate::rate_limit::RateLimitLayer<ActixFramework>>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        self.inner.validate_settings();
        ready(Ok(GateMiddleware::new(service, self.inner.clone())))
    }
}
