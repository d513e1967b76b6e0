//! Settings of `LockLayer` for a busy lock: wait, retries, and the status of the busy response.

use std::time::Duration;

use lockgate::{BusyStatus, Error};

use super::LockLayer;

impl LockLayer {
    /// Waits in the lock's queue for at most this time before the busy response.
    ///
    /// See the core's [`wait`](lockgate::lock::LockLayer::wait).
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait(wait) }
    }

    /// Responds that the lock is busy at once, without a wait.
    ///
    /// See the core's [`reject`](lockgate::lock::LockLayer::reject).
    #[must_use]
    pub fn reject(self) -> Self {
        Self { inner: self.inner.reject() }
    }

    /// Retries up to `max_retries` times, `interval` apart (at least 10 ms), before the busy
    /// response.
    ///
    /// See the core's [`retry`](lockgate::lock::LockLayer::retry).
    #[must_use]
    pub fn retry(self, max_retries: u32, interval: Duration) -> Self {
        Self { inner: self.inner.retry(max_retries, interval) }
    }

    /// Sets how long a hold usually takes, for the `Retry-After` of the busy response until it is
    /// measured. Default: 2 s.
    ///
    /// See the core's [`expected_hold`](lockgate::lock::LockLayer::expected_hold).
    #[must_use]
    pub fn expected_hold(self, hold: Duration) -> Self {
        Self { inner: self.inner.expected_hold(hold) }
    }

    /// Like [`expected_hold`](Self::expected_hold), but returns the error.
    ///
    /// See the core's [`try_expected_hold`](lockgate::lock::LockLayer::try_expected_hold).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](lockgate::ErrorKind) if the time is zero.
    pub fn try_expected_hold(self, hold: Duration) -> Result<Self, Error> {
        Ok(Self { inner: self.inner.try_expected_hold(hold)? })
    }

    /// Status of the busy response, also after a wait.
    ///
    /// See the core's [`busy_status`](lockgate::lock::LockLayer::busy_status).
    #[must_use]
    pub fn busy_status(self, status: BusyStatus) -> Self {
        Self { inner: self.inner.busy_status(status) }
    }
}
