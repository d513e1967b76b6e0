//! Settings of `DeferLayer`: requests with an `Idempotency-Key`.

use std::time::Duration;

use super::DeferLayer;

impl DeferLayer {
    /// Time for which an `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header) is stored,
    /// from acceptance.
    ///
    /// See the core's [`idempotency_ttl`](lockgate::defer::DeferLayer::idempotency_ttl).
    #[must_use]
    pub fn idempotency_ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.idempotency_ttl(ttl) }
    }

    /// Applies `Idempotency-Key` also to requests that run directly: one key is one execution,
    /// deferred or not.
    ///
    /// See the core's [`idempotent_direct`](lockgate::defer::DeferLayer::idempotent_direct).
    #[must_use]
    pub fn idempotent_direct(self) -> Self {
        Self { inner: self.inner.idempotent_direct() }
    }

    /// Most direct runs under [`idempotent_direct`](Self::idempotent_direct) at once in this
    /// process.
    ///
    /// See the core's [`max_direct_runs`](lockgate::defer::DeferLayer::max_direct_runs).
    #[must_use]
    pub fn max_direct_runs(self, max_runs: usize) -> Self {
        Self { inner: self.inner.max_direct_runs(max_runs) }
    }

    /// Most bytes of a response body that are stored for a direct run under
    /// [`idempotent_direct`](Self::idempotent_direct).
    ///
    /// See the core's
    /// [`direct_response_limit`](lockgate::defer::DeferLayer::direct_response_limit).
    #[must_use]
    pub fn direct_response_limit(self, bytes: usize) -> Self {
        Self { inner: self.inner.direct_response_limit(bytes) }
    }
}
