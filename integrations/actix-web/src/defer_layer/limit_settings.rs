//! Settings of `DeferLayer`: limits of the queue, of its owners, and of the ended requests.

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
}
