//! Settings of `DeferLayer`: limits of the queue, runs, and `Idempotency-Key`.

use std::time::Duration;

use lockgate::OnFailure;

use super::DeferLayer;

impl DeferLayer {
    /// Most requests that wait for one resource; beyond it requests get the busy response.
    ///
    /// See the core's [`max_resource_jobs`](lockgate::defer::DeferLayer::max_resource_jobs).
    #[must_use]
    pub fn max_resource_jobs(self, per_resource: u64) -> Self {
        Self { inner: self.inner.max_resource_jobs(per_resource) }
    }

    /// Most bytes of the requests that wait for one resource, heads and bodies; beyond it requests
    /// get the busy response.
    ///
    /// See the core's [`max_resource_bytes`](lockgate::defer::DeferLayer::max_resource_bytes).
    #[must_use]
    pub fn max_resource_bytes(self, per_resource: u64) -> Self {
        Self { inner: self.inner.max_resource_bytes(per_resource) }
    }

    /// Most requests that wait in the whole queue, which is the store's namespace; beyond it
    /// requests get the busy response.
    ///
    /// See the core's [`max_queue_jobs`](lockgate::defer::DeferLayer::max_queue_jobs).
    #[must_use]
    pub fn max_queue_jobs(self, jobs: u64) -> Self {
        Self { inner: self.inner.max_queue_jobs(jobs) }
    }

    /// Most bytes of the whole queue: requests that wait or run, and for each of them its webhook.
    ///
    /// See the core's [`max_queue_bytes`](lockgate::defer::DeferLayer::max_queue_bytes).
    #[must_use]
    pub fn max_queue_bytes(self, bytes: u64) -> Self {
        Self { inner: self.inner.max_queue_bytes(bytes) }
    }

    /// Most requests of one [`owner`](Self::owner) that wait in the whole queue, including its
    /// undelivered [webhooks](Self::webhook); beyond it requests get the busy response.
    ///
    /// See the core's [`max_owner_jobs`](lockgate::defer::DeferLayer::max_owner_jobs).
    #[must_use]
    pub fn max_owner_jobs(self, jobs: u64) -> Self {
        Self { inner: self.inner.max_owner_jobs(jobs) }
    }

    /// Most bytes of the waiting requests of one [`owner`](Self::owner).
    ///
    /// See the core's [`max_owner_bytes`](lockgate::defer::DeferLayer::max_owner_bytes).
    #[must_use]
    pub fn max_owner_bytes(self, bytes: u64) -> Self {
        Self { inner: self.inner.max_owner_bytes(bytes) }
    }

    /// Most bytes of ended requests, so that many or large results do not fill the server before
    /// their retention ends.
    ///
    /// See the core's [`max_ended_bytes`](lockgate::defer::DeferLayer::max_ended_bytes).
    #[must_use]
    pub fn max_ended_bytes(self, bytes: u64) -> Self {
        Self { inner: self.inner.max_ended_bytes(bytes) }
    }

    /// Most `Idempotency-Key`s that the whole queue stores for one [`owner`](Self::owner); requests
    /// without an owner count as one owner.
    ///
    /// See the core's [`max_idempotency_keys`](lockgate::defer::DeferLayer::max_idempotency_keys).
    #[must_use]
    pub fn max_idempotency_keys(self, keys: u64) -> Self {
        Self { inner: self.inner.max_idempotency_keys(keys) }
    }

    /// Requires an accepted request to reach this number of replicas; otherwise the response is 503
    /// with the `Location`, as for every request that may not have been stored.
    ///
    /// See the core's [`min_replicas`](lockgate::defer::DeferLayer::min_replicas).
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        Self { inner: self.inner.min_replicas(replicas) }
    }

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
    pub fn expires_after(self, deadline: Duration) -> Self {
        Self { inner: self.inner.expires_after(deadline) }
    }

    /// Handling of later requests for a resource while one waits for its retry.
    ///
    /// See the core's [`on_failure`](lockgate::defer::DeferLayer::on_failure).
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { inner: self.inner.on_failure(on_failure) }
    }

    /// Merges requests into the first: while a request waits, another one with the same owner,
    /// method and target is not stored, and its response refers to the waiting one.
    ///
    /// See the core's [`coalesce`](lockgate::defer::DeferLayer::coalesce).
    #[must_use]
    pub fn coalesce(self) -> Self {
        Self { inner: self.inner.coalesce() }
    }

    /// Merges requests into the last: while a request waits, another one with the same owner,
    /// method and target supersedes it.
    ///
    /// See the core's [`supersede`](lockgate::defer::DeferLayer::supersede).
    #[must_use]
    pub fn supersede(self) -> Self {
        Self { inner: self.inner.supersede() }
    }

    /// Time for which an `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header) is stored,
    /// from acceptance.
    ///
    /// See the core's [`idempotency_ttl`](lockgate::defer::DeferLayer::idempotency_ttl).
    #[must_use]
    pub fn idempotency_ttl(self, life: Duration) -> Self {
        Self { inner: self.inner.idempotency_ttl(life) }
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
    pub fn max_direct_runs(self, most: usize) -> Self {
        Self { inner: self.inner.max_direct_runs(most) }
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
