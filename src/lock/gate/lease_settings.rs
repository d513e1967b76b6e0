//! Settings of `LockLayer` for the lease: its length and renewal, the longest hold, and replicas.

use std::time::Duration;

use super::LockLayer;
use crate::gate::RequestKind;

impl<R: RequestKind> LockLayer<R> {
    /// Time for which the lock outlives its process; it is renewed at a third of that. At least 100
    /// ms. Default: 10 s, long enough to survive pauses and short outages, short enough to wait
    /// for.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, true))
    }

    /// Lease that is never renewed: the lock ends after it even if the handler still runs, and
    /// [`on_loss`](Self::on_loss) applies then.
    ///
    /// At least 100 ms, and never longer than [`max_hold`](Self::max_hold), which is 60 s by
    /// default: raise it for a longer lease.
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, false))
    }

    /// Longest time for which a request may hold the lock. At least 100 ms. Default: 60 s, which
    /// bounds a handler that never ends.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_max_hold(max_hold))
    }

    /// Requires a grant to reach this number of replicas; otherwise the store counts as
    /// unavailable. Default: 0. See
    /// [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.with_policy(|policy| policy.acquire_options.replicas = replicas)
    }
}
