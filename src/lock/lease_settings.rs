//! Settings of a `LockLayer` for leases, handovers, replicas and the limit of waiters.

use std::time::Duration;

use super::gate::LockGate;

impl<N: ?Sized> LockGate<N> {
    /// See `LockLayer::lease`.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, true))
    }

    /// See `LockLayer::fixed_lease`.
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, false))
    }

    /// See `LockLayer::max_hold`.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_max_hold(max_hold))
    }

    /// See `LockLayer::handover_limits`.
    #[must_use]
    pub fn handover_limits(self, most: u32, within: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_handover_limits(most, within))
    }

    /// See `LockLayer::min_replicas`.
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.with_policy(|policy| policy.acquire_options.replicas = replicas)
    }

    /// See `LockLayer::max_waiters`.
    #[must_use]
    pub fn max_waiters(self, most: usize) -> Self {
        self.with_policy(|policy| policy.acquire_options.max_waiters = most)
    }
}
