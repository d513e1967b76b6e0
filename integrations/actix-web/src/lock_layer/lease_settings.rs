//! Settings of `LockLayer` for the lease: its length and renewal, the longest hold, and replicas.

use std::time::Duration;

use super::LockLayer;

impl LockLayer {
    /// Time for which the lock outlives its process; it is renewed at a third of that.
    ///
    /// See the core's [`lease`](lockgate::lock::LockLayer::lease).
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { inner: self.inner.lease(lease) }
    }

    /// Lease that is never renewed: the lock ends after it even if the handler still runs, and
    /// [`on_loss`](Self::on_loss) applies then.
    ///
    /// See the core's [`fixed_lease`](lockgate::lock::LockLayer::fixed_lease).
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        Self { inner: self.inner.fixed_lease(lease) }
    }

    /// Longest time for which a request may hold the lock.
    ///
    /// See the core's [`max_hold`](lockgate::lock::LockLayer::max_hold).
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { inner: self.inner.max_hold(max_hold) }
    }

    /// Requires a grant to reach this number of replicas; otherwise the store counts as
    /// unavailable.
    ///
    /// See the core's [`min_replicas`](lockgate::lock::LockLayer::min_replicas).
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        Self { inner: self.inner.min_replicas(replicas) }
    }
}
