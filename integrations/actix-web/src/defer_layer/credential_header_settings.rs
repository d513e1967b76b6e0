//! Settings of `DeferLayer`: which headers are credentials, and which of them are stored.

use super::DeferLayer;

impl DeferLayer {
    /// Stores a header that is dropped by default because it is a credential.
    ///
    /// See the core's [`keep_header`](lockgate::defer::DeferLayer::keep_header).
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        Self { inner: self.inner.keep_header(name) }
    }

    /// Declares a header, such as `X-Pass`, as a credential, like `Authorization` and the other
    /// headers that [`keep_header`](Self::keep_header) lists.
    ///
    /// See the core's [`credential_header`](lockgate::defer::DeferLayer::credential_header).
    #[must_use]
    pub fn credential_header(self, name: &str) -> Self {
        Self { inner: self.inner.credential_header(name) }
    }
}
