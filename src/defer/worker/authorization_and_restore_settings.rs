//! Settings of `DeferWorker`: the authorization of each run, and the extension snapshots that are
//! restored in it.

use std::{any::Any, future::Future, sync::Arc};

use futures_util::FutureExt as _;

use super::DeferWorker;
use crate::{
    defer::{
        extension_snapshot::ExtensionSnapshot,
        run_authorization::{PendingRun, RunAuthorization},
    },
    gate::RequestKind,
};

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

    /// Restores this snapshot in each run, for a replayer that is not of a framework. `put`
    /// converts it to a value that the replayer finds in
    /// [`ReplayMarker::restored_snapshots`](crate::gate::ReplayMarker::restored_snapshots).
    pub fn restore_with<T: ExtensionSnapshot, P: Any + Send + Sync>(
        mut self,
        put: impl Fn(T) -> P + Send + Sync + 'static,
    ) -> Self {
        self.settings.snapshot_restorers.add(put);
        self
    }
}

impl<R: RequestKind> DeferWorker<R> {
    /// Puts the snapshot of this type, which a layer
    /// [carries](crate::defer::DeferLayer::carry_extension), into the extensions of a run.
    ///
    /// A request with a snapshot that this worker does not restore returns to its queue uncharged,
    /// with the reason `unknown snapshot`, for a worker that does.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
    /// # use lockgate::defer::{DeferLayer, DeferWorker};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// let handler = service_fn(async |request: Request<Body>| {
    ///     let user = request.extensions().get::<User>(); // by the authentication, or restored
    ///     println!("refund for user {:?}", user.map(|user| user.id));
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let defer = DeferLayer::<PlainHttp>::new()
    ///     .carry_identity::<User>(|user| format!("user:{}", user.id));
    /// let service = defer.layer(lock.layer(handler));
    /// let worker = DeferWorker::<PlainHttp>::new(&store, service).restore_extension::<User>();
    /// # drop(worker);
    /// # Ok(()) }
    /// ```
    pub fn restore_extension<T: ExtensionSnapshot>(self) -> Self {
        self.restore_with(R::extension_inserter::<T>)
    }
}
