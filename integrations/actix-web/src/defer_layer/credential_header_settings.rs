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

    /// Like [`keep_header`](Self::keep_header), for a name from a configuration.
    ///
    /// See the core's [`try_keep_header`](lockgate::defer::DeferLayer::try_keep_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_keep_header(self, name: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_keep_header(name)? })
    }

    /// Declares a header, such as `X-Pass`, as a credential, like `Authorization` and the other
    /// headers that [`keep_header`](Self::keep_header) lists.
    ///
    /// See the core's [`credential_header`](lockgate::defer::DeferLayer::credential_header).
    #[must_use]
    pub fn credential_header(self, name: &str) -> Self {
        Self { inner: self.inner.credential_header(name) }
    }

    /// Like [`credential_header`](Self::credential_header), for a name from a configuration.
    ///
    /// See the core's
    /// [`try_credential_header`](lockgate::defer::DeferLayer::try_credential_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_credential_header(self, name: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_credential_header(name)? })
    }
}
