//! Settings of `DeferWorker`: stored responses, extension snapshots, and the check before a run.

use std::{any::Any, future::Future, sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{DeferWorker, MIN_RETENTION};
use crate::{
    clock::MAX_DURATION,
    defer::{
        run_authorization::{PendingRun, RunAuthorization},
        snapshot::ExtensionSnapshot,
    },
    gate::{RequestKind, parse_header_name},
};

impl<R> DeferWorker<R> {
    /// Most bytes of a response body that are stored. Default: 1 MiB, which stays in Redis for a
    /// day. Of a longer body, and of a stream, only status and headers are stored.
    ///
    /// A body that is not stored is still read to its end, since the handler may do its work
    /// meanwhile; an endless body takes the whole time of the run. The exception is
    /// `text/event-stream`: its body is not read, and the run ends with the head.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// Stores this response header too. By default only headers are stored that describe the body
    /// or restrict the use that a browser may make of it. `Set-Cookie` is stored only if it is
    /// named here, since a reader of the status resource is not necessarily its recipient.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name.
    pub fn keep_response_header(mut self, name: &str) -> Self {
        self.settings
            .settlement_rules
            .keep_headers
            .push(parse_header_name("DeferWorker::keep_response_header", name));
        self
    }

    /// Time for which finished requests and their responses are kept. Default: one day, for clients
    /// that ask again after a night.
    ///
    /// At least a minute: the stored job distinguishes a new request from a repeated call of an
    /// enqueue that got no reply.
    ///
    /// Each of the 64 shards of a store keeps the newest that fit into a 64th of
    /// [`max_ended_bytes`](crate::defer::DeferLayer::max_ended_bytes), 16 MiB by default. Beyond
    /// that the oldest one of the largest owner is evicted early and leaves a tombstone. That is
    /// room for 15 responses of 1 MiB, the default [limit](Self::response_limit).
    pub fn done_retention(mut self, retention: Duration) -> Self {
        self.settings.settlement_rules.done_retention =
            retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }

    /// Time for which dead letters are kept. Default: one week, to survive a weekend until an
    /// operator looks. At least a minute, as [`done_retention`](Self::done_retention).
    ///
    /// Each of the 64 shards of a store keeps the newest 10,000, within a 64th of
    /// [`max_ended_bytes`](crate::defer::DeferLayer::max_ended_bytes); beyond that the oldest is
    /// evicted early.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.settings.settlement_rules.dead_retention =
            retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }
}

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
