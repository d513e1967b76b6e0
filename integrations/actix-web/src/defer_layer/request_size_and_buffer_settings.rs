//! Settings of `DeferLayer`: the sizes of a request that may be stored, and the memory and time for
//! reading it.

use std::time::Duration;

use lockgate::ClientAddress;

use super::DeferLayer;

impl DeferLayer {
    /// Most bytes of a body; a request with a longer one gets the busy response.
    ///
    /// See the core's [`body_limit`](lockgate::defer::DeferLayer::body_limit).
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        Self { inner: self.inner.body_limit(bytes) }
    }

    /// Most bytes of the stored head: names and values of its headers, path, query and
    /// [owner](Self::owner), without headers that are [not stored](Self::keep_header).
    ///
    /// See the core's [`head_limit`](lockgate::defer::DeferLayer::head_limit).
    #[must_use]
    pub fn head_limit(self, bytes: usize) -> Self {
        Self { inner: self.inner.head_limit(bytes) }
    }

    /// Most bytes of heads and bodies of all requests that are being read and stored in this
    /// process.
    ///
    /// See the core's [`buffer_budget`](lockgate::defer::DeferLayer::buffer_budget).
    #[must_use]
    pub fn buffer_budget(self, bytes: usize) -> Self {
        Self { inner: self.inner.buffer_budget(bytes) }
    }

    /// Client to which a share of the [`buffer_budget`](Self::buffer_budget) belongs.
    ///
    /// See the core's [`client_address`](lockgate::defer::DeferLayer::client_address).
    #[must_use]
    pub fn client_address(self, address: ClientAddress) -> Self {
        Self { inner: self.inner.client_address(address) }
    }

    /// Time for the arrival of a request's body, from when its lock was found busy.
    ///
    /// See the core's [`body_read_timeout`](lockgate::defer::DeferLayer::body_read_timeout).
    #[must_use]
    pub fn body_read_timeout(self, timeout: Duration) -> Self {
        Self { inner: self.inner.body_read_timeout(timeout) }
    }
}
