//! `serve`: a server with its workers, until SIGTERM.

mod closable_listener;
mod connection_service;
mod status_path_check;

use std::{
    fmt,
    future::IntoFuture,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, serve::Listener};
use futures_util::future::BoxFuture;
use lockgate::{
    Store,
    driver::{BackgroundWorker, ServerLifecycle, StopPhase},
};
use tokio::task::JoinSet;

use self::{
    closable_listener::ClosableListener, connection_service::MakeConnectionService,
    status_path_check::check_status_paths,
};

/// Serves `app` with its workers until SIGTERM or ctrl-c, and ends both in order. It replaces
/// [`axum::serve()`].
///
/// On the signal:
///
/// 1. The server stops accepting connections, and the workers stop claiming jobs. Open requests and
///    current runs may end within the [drain timeout](Serve::drain), 10 s by default.
/// 2. Then the rest is cut off. Open requests get 503, and their handlers are dropped, which
///    releases their locks. Runs return to their queues, as [`DeferWorker::drain_timeout`] says.
///    Connections that are still open a second later are closed.
/// 3. The last locks are released, and the future resolves. That is at most 4 s after the drain
///    timeout.
///
/// The address of each connection is known to [`by_ip`](crate::RateLimitLayer::by_ip) and to
/// `ConnectInfo<SocketAddr>`. Further signals change nothing.
///
/// When it starts, it sends a GET for an unknown job through `app` to each path that the `Location`
/// of a deferred request would name, and logs an error if
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
/// use std::time::Duration;
///
/// use axum::{Extension, Router, routing::post};
/// use lockgate_axum::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
///     let app: Router = Router::new()
///         .route("/orders/{id}/refund", post(async || "refunded"))
///         .layer(LockLayer::by_path_param_as::<u64>("id"))
///         .layer(DeferLayer::new())
///         .merge(deferred_routes("/deferred").store(&store))
///         .layer(Extension(store.clone()));
///     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
///     lockgate_axum::serve(listener, app.clone())
///         .worker(DeferWorker::new(&store, app))
///         .drain(Duration::from_secs(20))
///         .await?;
///     Ok(())
/// }
/// ```
///
/// # Errors
///
/// The future resolves to an error if the signal handlers cannot be installed, or if a worker has
/// panicked. A worker that panics ends the server in the same order. Failed calls of `accept` are
/// retried, as by [`axum::serve()`].
///
/// # Panics
///
/// `into_future` panics outside a tokio runtime with IO enabled, unless
/// [`with_shutdown`](Serve::with_shutdown) is set.
///
/// [`DeferWorker::drain_timeout`]: lockgate::defer::DeferWorker::drain_timeout
pub fn serve<L>(listener: L, app: Router) -> Serve<L>
where
    L: Listener<Addr = SocketAddr>,
{
    Serve { listener, app, lifecycle: ServerLifecycle::new() }
}

/// Server with its workers. Created by [`serve`]; awaiting it runs it.
#[must_use = "a server does nothing until it is awaited"]
pub struct Serve<L> {
    listener: L,
    app: Router,
    lifecycle: ServerLifecycle,
}

impl<L> Serve<L> {
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

impl<L> IntoFuture for Serve<L>
where
    L: Listener<Addr = SocketAddr>,
{
    type Output = io::Result<()>;
    type IntoFuture = ServeFuture;

    fn into_future(self) -> ServeFuture {
        let Self { listener, app, mut lifecycle } = self;
        let listening = lifecycle.listen_for_termination();
        let signals = lifecycle.signals();
        let listener = ClosableListener::new(listener, signals.clone());
        let connections = MakeConnectionService::new(app.clone(), signals.clone());
        let server = axum::serve(listener, connections)
            .with_graceful_shutdown(signals.reached(StopPhase::Draining))
            .into_future();
        ServeFuture(Box::pin(async move {
            listening?;
            // A task of its own: a panic of the application stays there. It ends with this future.
            let mut checks = JoinSet::new();
            checks.spawn(check_status_paths(app));
            lifecycle.run(server).await
        }))
    }
}

impl<L> fmt::Debug for Serve<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve").field("lifecycle", &self.lifecycle).finish_non_exhaustive()
    }
}

/// Future of a [`Serve`]. It resolves when the server and its workers have ended.
#[must_use = "a server does nothing until it is awaited"]
pub struct ServeFuture(BoxFuture<'static, io::Result<()>>);

impl Future for ServeFuture {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ServeFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeFuture").finish_non_exhaustive()
    }
}
