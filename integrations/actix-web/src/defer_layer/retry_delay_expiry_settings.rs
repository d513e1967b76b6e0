//! Settings of `DeferLayer` for the runs of a deferred request: attempts and retries, delay and
//! expiry.

use std::time::Duration;

use lockgate::OnFailure;

use super::DeferLayer;

impl DeferLayer {
    /// Most runs of a PUT or DELETE, at least 1.
    ///
    /// See the core's [`max_attempts`](lockgate::defer::DeferLayer::max_attempts).
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        Self { inner: self.inner.max_attempts(attempts) }
    }

    /// Retries requests with any method after a failure or a crash, POST and PATCH too, and also
    /// those that ran directly under [`idempotent_direct`](Self::idempotent_direct).
    ///
    /// See the core's [`retry_non_idempotent`](lockgate::defer::DeferLayer::retry_non_idempotent).
    #[must_use]
    pub fn retry_non_idempotent(self) -> Self {
        Self { inner: self.inner.retry_non_idempotent() }
    }

    /// Time from acceptance before which a deferred request does not run.
    ///
    /// See the core's [`delay`](lockgate::defer::DeferLayer::delay).
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { inner: self.inner.delay(delay) }
    }

    /// Time from acceptance after which a request that has not started is `expired` and never runs.
    ///
    /// See the core's [`expires_after`](lockgate::defer::DeferLayer::expires_after).
    #[must_use]
    pub fn expires_after(self, max_wait: Duration) -> Self {
        Self { inner: self.inner.expires_after(max_wait) }
    }

    /// Handling of later requests for a resource while one waits for its retry.
    ///
    /// See the core's [`on_failure`](lockgate::defer::DeferLayer::on_failure).
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { inner: self.inner.on_failure(on_failure) }
    }
}
