//! `DeferWorker`: runs deferred requests through the routes of an `App`.

use std::{future::Future, io, thread, time::Duration};

use actix_http::Request;
use actix_service::{IntoServiceFactory, ServiceFactory};
use actix_web::{
    App, Error,
    body::MessageBody,
    dev::{AppConfig, ServiceResponse},
    web::{Data, ServiceConfig},
};
use futures_util::future::BoxFuture;
use lockgate::{
    ExtensionSnapshot, RequestUser, Store,
    defer::{PendingRun, Replayer, RunAuthorization},
    driver::{BackgroundWorker, StopSignals},
};

use crate::{actix_framework::ActixFramework, app_replayer::AppReplayer};

/// Runs deferred requests. Several processes may each run a worker; they share the jobs.
///
/// Each method is that of the [core's type](lockgate::defer::DeferWorker), which documents it. Only
/// [`new`](Self::new), [`from_app`](Self::from_app) and their `try_` forms are of this crate.
///
/// ```
/// # use actix_web::web;
/// # use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, Store};
/// fn orders(config: &mut web::ServiceConfig) {
///     let refund = web::resource("/orders/{id}/refund")
///         .post(async || "refunded")
///         .wrap(LockLayer::by_path_param_as::<u64>("id"))
///         .wrap(DeferLayer::new());
///     config.service(refund);
/// }
///
/// # #[actix_web::main]
/// # async fn main() {
/// let worker = DeferWorker::new(&Store::memory(), orders).concurrency(4);
/// worker.run(std::future::ready(())).await; // until the shutdown signal
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a worker does nothing until `run` is awaited or spawned"]
pub struct DeferWorker {
    inner: lockgate::defer::DeferWorker<ActixFramework>,
}

impl DeferWorker {
    /// Creates a worker that runs the jobs of this store through the routes that `configure`
    /// registers. Pass the function that `App::configure` gets, and register all data of the
    /// handlers there, by `config.app_data(..)`.
    ///
    /// The routes run in a thread of their own, on an `App` that has only the store. Everything
    /// that the application adds around `configure` is missing there: the `App::wrap` layers, the
    /// `app_data` with the configuration of extractors (`JsonConfig`, `PathConfig`, `QueryConfig`,
    /// `FormConfig`, `PayloadConfig`), and a `web::scope` in which `configure` is called. actix-web
    /// keeps that data inside each `App`, where no other one can read it;
    /// [`from_app`](Self::from_app) builds the whole `App` for the worker too. For the
    /// authentication the absence is intended, since credentials are not stored and a run has none
    /// to present. Keep the `LockLayer` of the routes: without it a run is not recognized and
    /// becomes a dead letter.
    ///
    /// A handler that takes a `web::Data` which is missing in the worker fails there, although it
    /// succeeds in the server: its job is dead, and an error is logged that names the fix. An
    /// extractor whose configuration is missing has its defaults, and may refuse what it accepts in
    /// the server: its response is stored, and a warning is logged once for each route if this
    /// process has deferred requests with that configuration (of `PathConfig` none is logged).
    ///
    /// ```
    /// # use actix_web::{App, test::{TestRequest, call_service, init_service}, web};
    /// # use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
    /// fn orders(store: &Store) -> impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static {
    ///     let store = web::Data::new(store.clone()); // and the state of your handlers
    ///     move |config| {
    ///         let refund = web::resource("/orders/{id}/refund")
    ///             .post(async || "refunded")
    ///             .wrap(LockLayer::by_path_param_as::<u64>("id"))
    ///             .wrap(DeferLayer::new().background());
    ///         config.app_data(store.clone()).service(refund);
    ///     }
    /// }
    ///
    /// # #[actix_web::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::memory();
    /// let worker = DeferWorker::new(&store, orders(&store));
    /// let worker = actix_web::rt::spawn(worker.run(std::future::pending()));
    /// let app = App::new().configure(orders(&store)).service(deferred_routes("/deferred"));
    /// let app = init_service(app).await;
    ///
    /// let request = TestRequest::post().uri("/orders/7/refund").to_request();
    /// let accepted = call_service(&app, request).await;
    /// let location = accepted.headers().get("location").expect("path of the status resource");
    /// let request = TestRequest::get().uri(&format!("{}/response", location.to_str()?));
    /// let request = request.insert_header(("prefer", "wait=10")).to_request();
    /// assert_eq!(call_service(&app, request).await.status(), 200); // the response of the handler
    /// # worker.abort();
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread, as [`std::thread::spawn`], or a runtime for
    /// it. [`try_new`](Self::try_new) returns an error instead.
    #[expect(clippy::expect_used, reason = "panics like `std::thread::spawn`, at startup only")]
    pub fn new<F>(store: &Store, configure: F) -> Self
    where
        F: FnOnce(&mut ServiceConfig) + Send + 'static,
    {
        Self::try_new(store, configure)
            .expect("the thread for deferred requests could not be started")
    }

    /// Like [`new`](Self::new), without a panic.
    ///
    /// # Errors
    ///
    /// If the operating system cannot start a thread or a runtime for it.
    pub fn try_new<F>(store: &Store, configure: F) -> io::Result<Self>
    where
        F: FnOnce(&mut ServiceConfig) + Send + 'static,
    {
        let app_store = store.clone();
        // The store first, so that `configure` may replace it.
        let app = move || App::new().app_data(Data::new(app_store)).configure(configure);
        Self::try_from_app(store, app)
    }

    /// Creates a worker that runs the jobs of this store through the `App` that the function
    /// returns, with its `app_data`, scopes and layers. It is called once, in the thread of the
    /// runs.
    ///
    /// Use one function for the worker and the server, and let the server add the layers that a run
    /// does not pass: authentication, since credentials are not stored, and layers about
    /// connections.
    /// The function registers the store, as for a server.
    ///
    /// ```
    /// # use actix_web::{App, test::{TestRequest, call_service, init_service}, web};
    /// # use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
    /// # #[actix_web::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// fn orders(config: &mut web::ServiceConfig) {
    ///     let refund = web::resource("/orders/{id}/refund")
    ///         .post(async |greeting: web::Data<String>| greeting.to_string())
    ///         .wrap(LockLayer::by_path_param_as::<u64>("id"))
    ///         .wrap(DeferLayer::new().background());
    ///     config.service(refund);
    /// }
    ///
    /// let store = Store::memory();
    /// let (data, greeting) =
    ///     (web::Data::new(store.clone()), web::Data::new("refunded".to_owned()));
    /// let app = move || {
    ///     App::new().app_data(data.clone()).app_data(greeting.clone()).configure(orders)
    /// };
    /// let worker = DeferWorker::from_app(&store, app.clone());
    /// let worker = actix_web::rt::spawn(worker.run(std::future::pending()));
    /// // In `HttpServer::new`, with the authentication around it.
    /// let server = init_service(app().service(deferred_routes("/deferred"))).await;
    ///
    /// let request = TestRequest::post().uri("/orders/7/refund").to_request();
    /// let accepted = call_service(&server, request).await;
    /// let location = accepted.headers().get("location").expect("path of the status resource");
    /// let request = TestRequest::get().uri(&format!("{}/response", location.to_str()?));
    /// let request = request.insert_header(("prefer", "wait=10")).to_request();
    /// assert_eq!(call_service(&server, request).await.status(), 200);
    /// # worker.abort();
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread, as [`std::thread::spawn`], or a runtime for
    /// it. [`try_from_app`](Self::try_from_app) returns an error instead.
    #[expect(clippy::expect_used, reason = "panics like `std::thread::spawn`, at startup only")]
    pub fn from_app<F, A, S, B>(store: &Store, app: F) -> Self
    where
        F: FnOnce() -> A + Send + 'static,
        A: IntoServiceFactory<S, Request> + 'static,
        S: ServiceFactory<
                Request,
                Config = AppConfig,
                Response = ServiceResponse<B>,
                Error = Error,
            > + 'static,
        B: MessageBody + 'static,
    {
        Self::try_from_app(store, app)
            .expect("the thread for deferred requests could not be started")
    }

    /// Like [`from_app`](Self::from_app), without a panic.
    ///
    /// # Errors
    ///
    /// If the operating system cannot start a thread or a runtime for it.
    pub fn try_from_app<F, A, S, B>(store: &Store, app: F) -> io::Result<Self>
    where
        F: FnOnce() -> A + Send + 'static,
        A: IntoServiceFactory<S, Request> + 'static,
        S: ServiceFactory<
                Request,
                Config = AppConfig,
                Response = ServiceResponse<B>,
                Error = Error,
            > + 'static,
        B: MessageBody + 'static,
    {
        let replayer = AppReplayer::start(app, thread::Builder::new())?;
        Ok(Self::with_replayer(store, replayer))
    }

    /// Creates a worker that runs the jobs of this store by another means than routes of this
    /// process, such as `lockgate::http_replay::HttpReplayer`.
    ///
    /// See the core's [`with_replayer`](lockgate::defer::DeferWorker::with_replayer).
    pub fn with_replayer(store: &Store, replayer: impl Replayer) -> Self {
        Self { inner: lockgate::defer::DeferWorker::with_replayer(store, replayer) }
    }

    /// Most requests that run at once in this worker, at least 1.
    ///
    /// See the core's [`concurrency`](lockgate::defer::DeferWorker::concurrency).
    pub fn concurrency(self, max_runs: usize) -> Self {
        Self { inner: self.inner.concurrency(max_runs) }
    }

    /// Most requests that run at once in all workers of this queue, at least 1.
    ///
    /// See the core's [`queue_concurrency`](lockgate::defer::DeferWorker::queue_concurrency).
    pub fn queue_concurrency(self, max_runs: u32) -> Self {
        Self { inner: self.inner.queue_concurrency(max_runs) }
    }

    /// Most requests that all workers of this queue start in this time, evenly spread and at most a
    /// tenth of them at once.
    ///
    /// See the core's [`queue_rate`](lockgate::defer::DeferWorker::queue_rate).
    pub fn queue_rate(self, requests: u64, per: Duration) -> Self {
        Self { inner: self.inner.queue_rate(requests, per) }
    }

    /// Like [`queue_rate`](Self::queue_rate), for values from a configuration.
    ///
    /// See the core's [`try_queue_rate`](lockgate::defer::DeferWorker::try_queue_rate).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if either value is zero, or if the time is longer
    /// than a year.
    pub fn try_queue_rate(self, requests: u64, per: Duration) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_queue_rate(requests, per)? })
    }

    /// Sets the relation of a run's span to the span that accepted the request.
    ///
    /// See the core's [`trace_runs`](lockgate::defer::DeferWorker::trace_runs).
    pub fn trace_runs(self, relation: lockgate::TraceRelation) -> Self {
        Self { inner: self.inner.trace_runs(relation) }
    }

    /// Time for which runs may continue after the shutdown signal.
    ///
    /// See the core's [`drain_timeout`](lockgate::defer::DeferWorker::drain_timeout).
    pub fn drain_timeout(self, timeout: Duration) -> Self {
        Self { inner: self.inner.drain_timeout(timeout) }
    }

    /// Time for which a run outlives its process; its lease is the lease of the lock.
    ///
    /// See the core's [`lease`](lockgate::defer::DeferWorker::lease).
    pub fn lease(self, lease: Duration) -> Self {
        Self { inner: self.inner.lease(lease) }
    }

    /// Longest run; a longer one is lost, as in a crash.
    ///
    /// See the core's [`max_run_time`](lockgate::defer::DeferWorker::max_run_time).
    pub fn max_run_time(self, max: Duration) -> Self {
        Self { inner: self.inner.max_run_time(max) }
    }

    /// Delay after a failed run: a random time between zero and `base`, doubled after each further
    /// failure, at most `cap` ("full jitter").
    ///
    /// See the core's [`backoff`](lockgate::defer::DeferWorker::backoff).
    pub fn backoff(self, base: Duration, cap: Duration) -> Self {
        Self { inner: self.inner.backoff(base, cap) }
    }

    /// Longest `Retry-After` of a failed run that is honored; a longer one counts as this.
    ///
    /// See the core's [`max_retry_after`](lockgate::defer::DeferWorker::max_retry_after).
    pub fn max_retry_after(self, max_wait: Duration) -> Self {
        Self { inner: self.inner.max_retry_after(max_wait) }
    }

    /// Delivers the webhooks of [`DeferLayer::webhook`](crate::DeferLayer::webhook).
    ///
    /// See the core's [`webhooks`](lockgate::defer::DeferWorker::webhooks).
    #[cfg(feature = "webhook")]
    pub fn webhooks(self, webhooks: lockgate::defer::Webhooks) -> Self {
        Self { inner: self.inner.webhooks(webhooks) }
    }

    /// Most bytes of a response body that are stored.
    ///
    /// See the core's [`response_limit`](lockgate::defer::DeferWorker::response_limit).
    pub fn response_limit(self, bytes: usize) -> Self {
        Self { inner: self.inner.response_limit(bytes) }
    }

    /// Stores this response header too.
    ///
    /// See the core's [`keep_response_header`](lockgate::defer::DeferWorker::keep_response_header).
    pub fn keep_response_header(self, name: &str) -> Self {
        Self { inner: self.inner.keep_response_header(name) }
    }

    /// Like [`keep_response_header`](Self::keep_response_header), for a name from a configuration.
    ///
    /// See the core's
    /// [`try_keep_response_header`](lockgate::defer::DeferWorker::try_keep_response_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_keep_response_header(self, name: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_keep_response_header(name)? })
    }

    /// Time for which finished requests and their responses are kept.
    ///
    /// See the core's [`done_retention`](lockgate::defer::DeferWorker::done_retention).
    pub fn done_retention(self, retention: Duration) -> Self {
        Self { inner: self.inner.done_retention(retention) }
    }

    /// Time for which dead letters are kept.
    ///
    /// See the core's [`dead_retention`](lockgate::defer::DeferWorker::dead_retention).
    pub fn dead_retention(self, retention: Duration) -> Self {
        Self { inner: self.inner.dead_retention(retention) }
    }

    /// Authorizes each run before it starts.
    ///
    /// See the core's [`authorize`](lockgate::defer::DeferWorker::authorize).
    pub fn authorize<F>(self, check: impl Fn(PendingRun) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = RunAuthorization> + Send + 'static,
    {
        Self { inner: self.inner.authorize(check) }
    }

    /// Puts the user, which [`DeferLayer::for_user`](crate::DeferLayer::for_user) carries, into the
    /// extensions of a run.
    ///
    /// See the core's [`for_user`](lockgate::defer::DeferWorker::for_user).
    pub fn for_user<U: RequestUser>(self) -> Self {
        Self { inner: self.inner.for_user::<U>() }
    }

    /// Puts the snapshot of this type, which a layer [carries](crate::DeferLayer::carry_extension),
    /// into the extensions of a run.
    ///
    /// See the core's [`restore_extension`](lockgate::defer::DeferWorker::restore_extension).
    pub fn restore_extension<T: ExtensionSnapshot>(self) -> Self {
        Self { inner: self.inner.restore_extension::<T>() }
    }

    /// Runs jobs until `shutdown` resolves, then drains. It starts when the routes are built.
    ///
    /// See the core's [`run`](lockgate::defer::DeferWorker::run).
    ///
    /// # Panics
    ///
    /// If the routes carry a user or another snapshot that the worker does not restore; before that
    /// it logs an error.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        self.inner.run(shutdown).await;
    }
}

impl BackgroundWorker for DeferWorker {
    fn store(&self) -> &Store {
        BackgroundWorker::store(&self.inner)
    }

    fn run_beside_server(self, signals: StopSignals) -> BoxFuture<'static, ()> {
        BackgroundWorker::run_beside_server(self.inner, signals)
    }
}

impl From<DeferWorker> for lockgate::defer::DeferWorker<ActixFramework> {
    /// Converts to the core's type, which a test kit takes.
    fn from(worker: DeferWorker) -> Self {
        worker.inner
    }
}
