//! Settings of `DeferLayer`: which requests are deferred, by their method and under which
//! conditions.

use std::time::Duration;

use super::DeferLayer;

impl DeferLayer {
    /// Defers only requests with these methods.
    ///
    /// See the core's [`methods`](lockgate::defer::DeferLayer::methods).
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        Self { inner: self.inner.methods(methods) }
    }

    /// Like [`methods`](Self::methods), for methods from a configuration.
    ///
    /// See the core's [`try_methods`](lockgate::defer::DeferLayer::try_methods).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the list is empty, or if one of the names is not
    /// a method or is a safe one.
    pub fn try_methods<M: AsRef<str>>(
        self,
        methods: impl IntoIterator<Item = M>,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_methods(methods)? })
    }

    /// Defers a request as soon as its lock is busy. The default.
    ///
    /// See the core's [`when_busy`](lockgate::defer::DeferLayer::when_busy).
    #[must_use]
    pub fn when_busy(self) -> Self {
        Self { inner: self.inner.when_busy() }
    }

    /// Time that a request waits for its lock before it is deferred.
    ///
    /// See the core's [`wait_up_to`](lockgate::defer::DeferLayer::wait_up_to).
    #[must_use]
    pub fn wait_up_to(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait_up_to(wait) }
    }

    /// Longest wait that a client gets by `Prefer: wait=N` (RFC 7240).
    ///
    /// See the core's [`max_preferred_wait`](lockgate::defer::DeferLayer::max_preferred_wait).
    #[must_use]
    pub fn max_preferred_wait(self, max_wait: Duration) -> Self {
        Self { inner: self.inner.max_preferred_wait(max_wait) }
    }

    /// Defers a request if its client asks for it by `Prefer: respond-async` (RFC 7240), even if
    /// its lock is free.
    ///
    /// See the core's [`respond_async`](lockgate::defer::DeferLayer::respond_async).
    #[must_use]
    pub fn respond_async(self) -> Self {
        Self { inner: self.inner.respond_async() }
    }

    /// Defers every request without trying its lock, for work that is only done in the background.
    /// Safe methods, such as GET, are never deferred.
    ///
    /// See the core's [`background`](lockgate::defer::DeferLayer::background).
    #[must_use]
    pub fn background(self) -> Self {
        Self { inner: self.inner.background() }
    }

    /// Defers nothing while no worker is alive.
    ///
    /// See the core's [`require_worker`](lockgate::defer::DeferLayer::require_worker).
    #[must_use]
    pub fn require_worker(self) -> Self {
        Self { inner: self.inner.require_worker() }
    }
}
