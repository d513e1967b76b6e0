//! Settings of `LockLayer` for other services: the fence header and trusted delegations.

use lockgate::SharedSecret;

use super::LockLayer;

impl LockLayer {
    /// Sets this request header to the fence, for upstream services to which a handler forwards the
    /// request's headers.
    ///
    /// See the core's [`fence_header`](lockgate::lock::LockLayer::fence_header).
    #[must_use]
    pub fn fence_header(self, name: &str) -> Self {
        Self { inner: self.inner.fence_header(name) }
    }

    /// Like [`fence_header`](Self::fence_header), for a name from a configuration.
    ///
    /// See the core's [`try_fence_header`](lockgate::lock::LockLayer::try_fence_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_fence_header(self, name: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_fence_header(name)? })
    }

    /// Trusts delegations that are signed with this secret: a request from a caller that holds the
    /// lock runs under it, instead of waiting for its caller.
    ///
    /// See the core's [`trust_delegation`](lockgate::lock::LockLayer::trust_delegation).
    #[must_use]
    pub fn trust_delegation(self, secret: &SharedSecret) -> Self {
        Self { inner: self.inner.trust_delegation(secret) }
    }
}
