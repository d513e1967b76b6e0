//! Settings of `DeferLayer`: how clients learn the end of a job, by the status resource or a
//! webhook.

use lockgate::driver::HttpRequestHead;

use super::DeferLayer;

impl DeferLayer {
    /// Path of the status resource as clients see it, including the prefix of `Router::nest`,
    /// `web::scope` or a proxy.
    ///
    /// See the core's [`status_path`](lockgate::defer::DeferLayer::status_path).
    #[must_use]
    pub fn status_path(self, path: &str) -> Self {
        Self { inner: self.inner.status_path(path) }
    }

    /// Like [`status_path`](Self::status_path), for a path from a configuration.
    ///
    /// See the core's [`try_status_path`](lockgate::defer::DeferLayer::try_status_path).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the path is not in the form of a URL.
    pub fn try_status_path(self, path: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_status_path(path)? })
    }

    /// Delivers a webhook when a deferred request has ended, with any outcome.
    ///
    /// See the core's [`webhook`](lockgate::defer::DeferLayer::webhook).
    #[must_use]
    pub fn webhook(
        self,
        url: impl Fn(&HttpRequestHead) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.webhook(url) }
    }
}
