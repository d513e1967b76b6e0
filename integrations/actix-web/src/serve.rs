//! `serve`: a server with its workers, until SIGTERM.

mod cut_off_app;
mod status_path_check;

use std::{
    fmt::{self, Debug},
    future::IntoFuture,
    io,
    net::TcpListener,
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll},
    time::Duration,
};

use actix_http::{Request, Response};
use actix_service::{IntoServiceFactory, Service, ServiceFactory};
use actix_web::{
    Error, HttpServer,
    body::MessageBody,
    dev::{AppConfig, Server},
};
use futures_util::future::LocalBoxFuture;
use lockgate::{
    Store,
    driver::{BackgroundWorker, ServerLifecycle, StopPhase, StopSignals, build_thread_app},
};

use self::cut_off_app::CutOffApp;

/// Serves the application with its workers until SIGTERM or ctrl-c, and ends both in order. It
/// takes the place of [`HttpServer::new`], whose closure it gets, and of `listen`.
///
/// On the signal:
///
/// 1. The server stops accepting connections, and the workers stop claiming jobs. Open requests and
///    current runs may end within the [drain timeout](Serve::drain), 10 s by default. So may the
///    direct runs of clients that have disconnected ([`DeferLayer::idempotent_direct`]).
/// 2. Then the rest is cut off. Open requests get 503, and their handlers are dropped, which
///    releases their locks. Runs return to their queues, as [`DeferWorker::drain_timeout`] says.
///    Connections that are still open three seconds later are closed.
/// 3. The last locks are released, and the future resolves. That is at most 4 s after the drain
///    timeout.
///
/// The closure is called once for each thread. Create the store outside of it, as in the example
/// below; an error is logged if the closure creates one.
///
/// A client that disconnects releases its lock at once: `h1_allow_half_closed(false)` is set.
/// Further signals change nothing.
///
/// When it starts, its first thread sends a GET for an unknown job through the application to each
/// path that the `Location` of a deferred request would name, and logs an error if
/// [`deferred_routes`](crate::deferred_routes) is not found there. The request comes from 127.0.0.1
/// and is not charged by rate limits. Nothing is sent without `deferred_routes`.
///
/// Signals are caught from [`into_future`](IntoFuture::into_future) on, which `.await` calls: call
/// it before you announce the server to other processes, if a signal may follow at once.
///
/// Dropping the future ends everything at once: the server stops accepting, open requests and
/// connections are cut off, and the workers return their jobs in the background if the runtime
/// continues. No accepted job is lost.
///
/// ```no_run
/// use std::{net::TcpListener, time::Duration};
///
/// use actix_web::{App, web};
/// use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
///
/// fn orders(store: &Store) -> impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static {
///     let store = web::Data::new(store.clone()); // and the state of your handlers
///     move |config| {
///         let refund = web::resource("/orders/{id}/refund")
///             .post(async || "refunded")
///             .wrap(LockLayer::by_path_param_as::<u64>("id"))
///             .wrap(DeferLayer::new());
///         config.app_data(store.clone()).service(refund);
///     }
/// }
///
/// #[actix_web::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
///     let orders = orders(&store);
///     let worker = DeferWorker::new(&store, orders.clone());
///     let app = move || {
///         App::new().configure(orders.clone()).service(deferred_routes("/deferred"))
///     };
///     lockgate_actix_web::serve(TcpListener::bind("127.0.0.1:3000")?, app)
///         .http_server(|server| Ok(server.workers(4)))
///         .worker(worker)
///         .drain(Duration::from_secs(20))
///         .await?;
///     Ok(())
/// }
/// ```
///
/// # Errors
///
/// The future resolves to an error if the listener or the signal handlers cannot be used, if the
/// closure of [`http_server`](Serve::http_server) fails, or if a worker has panicked. A worker that
/// panics ends the server in the same order.
///
/// # Panics
///
/// `into_future` panics outside a runtime of actix or tokio with IO enabled, unless
/// [`with_shutdown`](Serve::with_shutdown) is set.
///
/// [`DeferLayer::idempotent_direct`]: crate::DeferLayer::idempotent_direct
/// [`DeferWorker::drain_timeout`]: lockgate::defer::DeferWorker::drain_timeout
pub fn serve<F, I, S, B>(
    listener: TcpListener,
    app: F,
) -> Serve<CutOffServer<impl Fn() -> CutOffApp<S> + Send + Clone + 'static, S, B>>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig, Error = Error> + 'static,
    S::Response: Into<Response<B>> + 'static,
    S::Service: 'static,
    S::InitError: Debug + 'static,
    S::Future: 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    let lifecycle = ServerLifecycle::new();
    let signals = lifecycle.signals();
    let is_checked = Arc::new(AtomicBool::new(false));
    let cut_off_app = move || {
        let app = IntoServiceFactory::<S, Request>::into_factory(build_thread_app(&app));
        let status_of = |response: S::Response| response.into().status().as_u16();
        CutOffApp::new(app, signals.clone(), status_of, Arc::clone(&is_checked))
    };
    let server = CutOffServer::<_, S, B>::new(cut_off_app);
    Serve {
        server: server.h1_allow_half_closed(false).listen(listener),
        start: |server, shutdown_timeout_secs| {
            server.disable_signals().shutdown_timeout(shutdown_timeout_secs).run()
        },
        lifecycle,
    }
}

/// Server of applications that can be cut off.
type CutOffServer<F, S, B> = HttpServer<F, CutOffApp<S>, CutOffApp<S>, B>;

/// Server with its workers. Created by [`serve`]; awaiting it runs it.
#[must_use = "a server does nothing until it is awaited"]
pub struct Serve<H> {
    server: io::Result<H>,
    /// Starts the server with this shutdown timeout, in seconds.
    start: fn(H, u64) -> Server,
    lifecycle: ServerLifecycle,
}

impl<H> Serve<H> {
    /// Changes the settings of the [`HttpServer`], such as its number of threads, or binds it to
    /// more addresses: `.http_server(|server| server.workers(4).bind("[::1]:3000"))`. Default: the
    /// settings of actix-web, with `h1_allow_half_closed(false)`.
    ///
    /// The signals and the shutdown timeout of the `HttpServer` have no effect.
    pub fn http_server(mut self, change: impl FnOnce(H) -> io::Result<H>) -> Self {
        self.server = self.server.and_then(change);
        self
    }

    /// Runs this worker beside the server: a [`DeferWorker`](crate::DeferWorker) or a
    /// [`QueueWorker`](crate::queue::QueueWorker). Each call adds one. Default: no worker.
    ///
    /// The [drain timeout](Self::drain) of the server replaces the one of the worker, so that both
    /// end at the same time.
    pub fn worker(mut self, worker: impl BackgroundWorker) -> Self {
        self.lifecycle.add_worker(worker);
        self
    }

    /// Waits at the end for the release of this store's locks, and during the drain for its direct
    /// runs. Default: the stores of the workers. Set it if there is no worker, which is logged at
    /// the start, and for a store that no worker uses.
    pub fn store(mut self, store: &Store) -> Self {
        self.lifecycle.add_store(store);
        self
    }

    /// Time for which open requests and current runs may continue after the signal, at most a year.
    ///
    /// Default: 10 s, a third of the 30 s that orchestrators usually leave between SIGTERM and
    /// SIGKILL. Leave at least 4 s between this time and the kill, in which the rest is cut off,
    /// jobs return to their queues and locks are released.
    pub fn drain(mut self, timeout: Duration) -> Self {
        self.lifecycle.set_drain_timeout(timeout);
        self
    }

    /// Future that begins the shutdown. Default: SIGTERM or ctrl-c, which are not caught if this is
    /// set.
    pub fn with_shutdown(mut self, shutdown: impl Future<Output = ()> + Send + 'static) -> Self {
        self.lifecycle.set_shutdown(shutdown);
        self
    }
}

impl<H: 'static> IntoFuture for Serve<H> {
    type Output = io::Result<()>;
    type IntoFuture = ServeFuture;

    fn into_future(self) -> ServeFuture {
        let Self { server, start, mut lifecycle } = self;
        let listening = lifecycle.listen_for_termination();
        ServeFuture(Box::pin(async move {
            listening?;
            // Open requests are cut off before, by `CutOffApp`, and the connections are closed when
            // the server is dropped.
            let shutdown_timeout = lifecycle.drain_timeout().as_secs().saturating_add(60);
            let server = start(server?, shutdown_timeout);
            let (signals, direct_runs) = (lifecycle.signals(), lifecycle.direct_runs_ended());
            lifecycle.run(run_until_drained(server, signals, direct_runs)).await
        }))
    }
}

async fn run_until_drained(
    server: Server,
    signals: StopSignals,
    direct_runs: impl Future<Output = ()>,
) -> io::Result<()> {
    let handle = server.handle();
    let mut server = pin!(server);
    tokio::select! {
        result = &mut server => return result,
        () = signals.reached(StopPhase::Draining) => {}
    }
    let stopping = async {
        handle.pause().await;
        // Direct runs of disconnected clients run on the server's threads and end with them.
        direct_runs.await;
        handle.stop(true).await;
    };
    let (result, ()) = tokio::join!(server, stopping);
    result
}

impl<H> Debug for Serve<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve").field("lifecycle", &self.lifecycle).finish_non_exhaustive()
    }
}

/// Future of a [`Serve`]. It resolves when the server and its workers have ended.
#[must_use = "a server does nothing until it is awaited"]
pub struct ServeFuture(LocalBoxFuture<'static, io::Result<()>>);

impl Future for ServeFuture {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll(cx)
    }
}

impl Debug for ServeFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeFuture").finish_non_exhaustive()
    }
}
