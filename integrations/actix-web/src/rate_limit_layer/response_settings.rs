//! Settings of `RateLimitLayer` about exemptions, headers and refusals.

use lockgate::{AccessLists, RateHeaders, RateRefusal, Reply};

use super::RateLimitLayer;

impl RateLimitLayer {
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
