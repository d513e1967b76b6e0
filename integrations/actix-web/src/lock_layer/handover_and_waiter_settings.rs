//! Settings of `LockLayer` for the local wait queue: handovers and the number of waiters.

use std::time::Duration;

use super::LockLayer;

impl LockLayer {
    /// Limits handovers, which pass the lock to the next request of this process without a call to
    /// the store: at most `max_handovers` of them (at most 32), and only within `window` after the
    /// last queue snapshot.
    ///
    /// See the core's [`handover_limits`](lockgate::lock::LockLayer::handover_limits).
    #[must_use]
    pub fn handover_limits(self, max_handovers: u32, window: Duration) -> Self {
        Self { inner: self.inner.handover_limits(max_handovers, window) }
    }

    /// Disables handovers, so that requests are served in the order of arrival across processes, as
    /// far as arrivals within a round trip can be distinguished.
    ///
    /// See the core's [`strict_order`](lockgate::lock::LockLayer::strict_order).
    #[must_use]
    pub fn strict_order(self) -> Self {
        Self { inner: self.inner.strict_order() }
    }

    /// Most requests of this process that may wait for one lock.
    ///
    /// See the core's [`max_waiters`](lockgate::lock::LockLayer::max_waiters).
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { inner: self.inner.max_waiters(max_waiters) }
    }
}
