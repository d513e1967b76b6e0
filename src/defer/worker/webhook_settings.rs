//! Setting of `DeferWorker` for the delivery of webhooks.

use std::sync::Arc;

use super::DeferWorker;
use crate::defer::Webhooks;

impl<R> DeferWorker<R> {
    /// Delivers the webhooks of [`DeferLayer::webhook`](crate::defer::DeferLayer::webhook). A
    /// worker without this setting leaves them to workers that have it.
    ///
    /// A worker delivers a quarter as many webhooks at once as it runs requests, and at least two,
    /// in addition to the requests. [`queue_concurrency`](Self::queue_concurrency) and
    /// [`queue_rate`](Self::queue_rate) do not apply to them, since a receiver may be arbitrarily
    /// slow.
    pub fn webhooks(mut self, webhooks: Webhooks) -> Self {
        self.settings.webhooks = Some(Arc::new(webhooks));
        self
    }
}
