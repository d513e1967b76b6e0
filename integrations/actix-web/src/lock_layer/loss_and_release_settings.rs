//! Settings of `LockLayer` for the loss of the lock, its release, and the read of the request body.

use std::time::Duration;

use lockgate::{HoldUntil, OnLoss};

use super::LockLayer;

impl LockLayer {
    /// Reaction to the loss of the lock while the handler runs.
    ///
    /// See the core's [`on_loss`](lockgate::lock::LockLayer::on_loss).
    #[must_use]
    pub fn on_loss(self, on_loss: OnLoss) -> Self {
        Self { inner: self.inner.on_loss(on_loss) }
    }

    /// End of the hold.
    ///
    /// See the core's [`hold_until`](lockgate::lock::LockLayer::hold_until).
    #[must_use]
    pub fn hold_until(self, hold_until: HoldUntil) -> Self {
        Self { inner: self.inner.hold_until(hold_until) }
    }

    /// Total time that a handler under the lock may wait for the request's body.
    ///
    /// See the core's [`body_read_timeout`](lockgate::lock::LockLayer::body_read_timeout).
    #[must_use]
    pub fn body_read_timeout(self, timeout: Duration) -> Self {
        Self { inner: self.inner.body_read_timeout(timeout) }
    }

    /// Releases the lock while the response is already on its way, which saves the response a round
    /// trip.
    ///
    /// See the core's [`release_in_background`](lockgate::lock::LockLayer::release_in_background).
    #[must_use]
    pub fn release_in_background(self) -> Self {
        Self { inner: self.inner.release_in_background() }
    }
}
