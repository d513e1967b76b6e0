//! Settings of `LockLayer` for the lock mode and the request methods that take the lock.

use super::LockLayer;

impl LockLayer {
    /// Locks requests with safe methods too.
    ///
    /// See the core's [`all_methods`](lockgate::lock::LockLayer::all_methods).
    #[must_use]
    pub fn all_methods(self) -> Self {
        Self { inner: self.inner.all_methods() }
    }

    /// Locks only requests with these methods, safe ones included.
    ///
    /// See the core's [`methods`](lockgate::lock::LockLayer::methods).
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        Self { inner: self.inner.methods(methods) }
    }

    /// Like [`methods`](Self::methods), for methods from a configuration.
    ///
    /// See the core's [`try_methods`](lockgate::lock::LockLayer::try_methods).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the list is empty, or if a name is not a method
    /// or is a known method in lower case.
    pub fn try_methods<M: AsRef<str>>(
        self,
        methods: impl IntoIterator<Item = M>,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_methods(methods)? })
    }

    /// Lets readers share the lock.
    ///
    /// See the core's [`read_write`](lockgate::lock::LockLayer::read_write).
    #[must_use]
    pub fn read_write(self) -> Self {
        Self { inner: self.inner.read_write() }
    }

    /// Admits up to this number of requests at once instead of one.
    ///
    /// See the core's [`permits`](lockgate::lock::LockLayer::permits).
    #[must_use]
    pub fn permits(self, permits: u32) -> Self {
        Self { inner: self.inner.permits(permits) }
    }

    /// Like [`permits`](Self::permits), for a number from a configuration.
    ///
    /// See the core's [`try_permits`](lockgate::lock::LockLayer::try_permits).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the number is 0.
    pub fn try_permits(self, permits: u32) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_permits(permits)? })
    }
}
