//! Settings of `DeferWorker`: the authorization of each run.

use std::{future::Future, sync::Arc};

use futures_util::FutureExt as _;

use super::DeferWorker;
use crate::defer::run_authorization::{PendingRun, RunAuthorization};

impl<R> DeferWorker<R> {
    /// Authorizes each run before it starts. Default: every run may start, so a request still runs
    /// if its user has lost the right to it in the meantime. The snapshot that the layer
    /// [carries](crate::defer::DeferLayer::carry_extension) is from the arrival of the request.
    ///
    /// The function gets the stored request with its snapshots, and returns:
    ///
    /// - `Granted`: the run starts.
    /// - `Denied`: final. The handler is not called, the request becomes a dead letter with the
    ///   reason `not authorized any more`, and its response is 403.
    /// - `Unknown`: the request returns to its queue uncharged. A check that panics, or that has
    ///   not ended after half of [`max_run_time`](Self::max_run_time), counts as this.
    ///
    /// The lock of the request is held during the check, and the check counts toward
    /// `max_run_time`. Deliveries of [`DeferLayer::webhook`](crate::defer::DeferLayer::webhook) are
    /// not checked.
    ///
    /// ```
    /// use lockgate::defer::{RunAuthorization, DeferWorker, PendingRun};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # async fn is_active(user: u64) -> Result<bool, std::io::Error> { Ok(user > 0) }
    ///
    /// fn checked<R>(worker: DeferWorker<R>) -> DeferWorker<R> {
    ///     worker.authorize(|run: PendingRun| async move {
    ///         let Some(user) = run.snapshot::<User>() else { return RunAuthorization::Granted };
    ///         match is_active(user.id).await {
    ///             Ok(true) => RunAuthorization::Granted,
    ///             Ok(false) => RunAuthorization::Denied,
    ///             Err(_) => RunAuthorization::Unknown,
    ///         }
    ///     })
    /// }
    /// ```
    pub fn authorize<F>(mut self, check: impl Fn(PendingRun) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = RunAuthorization> + Send + 'static,
    {
        self.settings.authorize_fn = Some(Arc::new(move |run| check(run).boxed()));
        self
    }
}
