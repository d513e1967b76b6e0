//! Settings of `LockLayer` for the name of the lock: scope, name and stripes.

use super::LockLayer;

impl LockLayer {
    /// Separates keys of one kind: with scopes, `/orders/7` and `/users/7` are two locks.
    ///
    /// See the core's [`scope`](lockgate::lock::LockLayer::scope).
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        Self { inner: self.inner.scope(scope) }
    }

    /// Names the lock by `name` instead of by the parameter or header, so that `/orders/{id}` and
    /// `/payments/{order}` can share a lock: see [`Key::named`](crate::Key::named).
    ///
    /// See the core's [`named`](lockgate::lock::LockLayer::named).
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { inner: self.inner.named(name) }
    }

    /// Maps all keys of this kind, name and scope onto `n` locks.
    ///
    /// See the core's [`stripes`](lockgate::lock::LockLayer::stripes).
    #[must_use]
    pub fn stripes(self, n: u32) -> Self {
        Self { inner: self.inner.stripes(n) }
    }

    /// Like [`stripes`](Self::stripes), for a number from a configuration.
    ///
    /// See the core's [`try_stripes`](lockgate::lock::LockLayer::try_stripes).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `n` is not within 1 to 65,536.
    pub fn try_stripes(self, n: u32) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_stripes(n)? })
    }
}
