//! Settings of `DeferLayer`: the path of the status resource, and the webhook of a request.

use std::sync::Arc;

use super::defer_layer::DeferLayer;
use crate::{
    defer::status::normalize_path,
    error::{Error, expect_setting},
    gate::{HttpRequestHead, RequestKind},
};

impl<R: RequestKind> DeferLayer<R> {
    /// Path of the status resource as clients see it, including the prefix of `Router::nest`,
    /// `web::scope` or a proxy. It becomes the `Location` of a 202.
    ///
    /// Default: the path of `deferred_routes`, if this process mounts it once for the lock's store
    /// (or for no store, so that the requests provide it), and otherwise `/deferred`. A prefix is
    /// known to no part of the application before a request has passed it, so set the path if
    /// `deferred_routes` is nested, behind a proxy with a prefix, in another process, or mounted at
    /// the root.
    ///
    /// A warning is logged once if a 202 names a path at which nothing is mounted, if this process
    /// mounts no status routes for the store and the layer sets no path, and if jobs are found
    /// under other paths alone. `serve` of the integrations also logs an error at its start if its
    /// application answers the path with a 404 of its own, as it does for nested routes.
    ///
    /// # Panics
    ///
    /// If the path is not in the form of a URL: without a query, and with other characters
    /// percent-encoded. For a path from a configuration use
    /// [`try_status_path`](Self::try_status_path).
    #[must_use]
    pub fn status_path(self, path: &str) -> Self {
        expect_setting(self.try_status_path(path))
    }

    /// Like [`status_path`](Self::status_path), for a path from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the path is not in the form of a URL.
    pub fn try_status_path(self, path: &str) -> Result<Self, Error> {
        let Some(path) = normalize_path(path) else {
            return Err(Error::setting(format!(
                "DeferLayer::status_path: {path:?} is not a path such as /deferred; it is part of \
                 `Location`"
            )));
        };
        Ok(self.with_settings(|settings| settings.status_path = Some(path)))
    }

    /// Delivers a webhook when a deferred request has ended, with any outcome. The function returns
    /// the URL for a request as it was sent, or `None` for no webhook.
    ///
    /// The worker needs `.webhooks(..)`, of the feature `webhook`. See
    /// [`webhook`](crate::defer::webhook) for the payload and the permitted addresses.
    ///
    /// A URL that clients choose is a URL that attackers choose: take it from a header only if that
    /// is intended.
    ///
    /// ```
    /// # use lockgate::{defer::DeferLayer, middleware::PlainHttp};
    /// # fn main() -> Result<(), lockgate::Error> {
    /// let defer = DeferLayer::<PlainHttp>::new().webhook(|head| {
    ///     let is_refund = head.target.ends_with("/refund");
    ///     is_refund.then(|| "https://shop.example/hooks/refunds".to_owned())
    /// });
    /// # drop(defer);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn webhook(
        self,
        url: impl Fn(&HttpRequestHead) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| settings.webhook_url = Some(Arc::new(url)))
    }
}
