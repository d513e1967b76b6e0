//! `ServerLifecycle`: runs a server and its workers, and ends them in order.

use std::{fmt, future::pending, io, pin::pin, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
    time::timeout,
};

use super::{
    BackgroundWorker, StopPhase, StopSignals, live_server::LiveServer,
    termination_signal::termination_signal,
};
use crate::{
    defer::{find_dead_status_paths, warn_unrestricted_mount},
    durations::MAX_DURATION,
    gate::StatusProbe,
    store::{Store, live_store_count},
};

/// A third of the time that orchestrators usually leave between the signal and the kill, as for
/// workers. Cutting off, returning jobs and releasing locks takes up to 4 s more.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the 503 responses to open requests.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for closed connections to end. With the time above it covers the 2 s in which a worker
/// returns its jobs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the release of the last locks.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

type StartWorker = Box<dyn FnOnce(StopSignals) -> BoxFuture<'static, ()> + Send>;

/// Runs the server of an integration and the workers beside it, and ends them in order, by the
/// phases of [`StopPhase`].
///
/// Dropping the future of [`run`](Self::run) ends all parts at once: every phase counts as reached,
/// and the workers return their jobs in the background.
#[must_use = "a server does nothing until `run` is awaited"]
pub struct ServerLifecycle {
    workers: Vec<StartWorker>,
    stores: Vec<Store>,
    drain_timeout: Duration,
    shutdown: Option<BoxFuture<'static, ()>>,
    phase: watch::Sender<StopPhase>,
    signals: StopSignals,
    _live: LiveServer,
}

impl ServerLifecycle {
    /// Creates the lifecycle of a server without workers, with a drain timeout of 10 s.
    pub fn new() -> Self {
        let phase = watch::Sender::new(StopPhase::Serving);
        Self {
            workers: Vec::new(),
            stores: Vec::new(),
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            shutdown: None,
            signals: StopSignals::new(&phase),
            phase,
            _live: LiveServer::new(),
        }
    }

    /// Runs this worker beside the server. The drain timeout of the server applies to it.
    pub fn add_worker(&mut self, worker: impl BackgroundWorker) {
        self.add_store(worker.store());
        self.workers.push(Box::new(move |signals| worker.run_beside_server(signals)));
    }

    /// Shuts this store down last. Those of the workers are added already.
    pub fn add_store(&mut self, store: &Store) {
        if !self.stores.iter().any(|known| known.is_same_handle(store)) {
            self.stores.push(store.clone());
        }
    }

    /// Sets the drain timeout, at most a year.
    pub fn set_drain_timeout(&mut self, timeout: Duration) {
        self.drain_timeout = timeout.min(MAX_DURATION);
    }

    /// Returns the drain timeout.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        self.drain_timeout
    }

    /// Sets the future that begins the shutdown, in place of signals.
    pub fn set_shutdown(&mut self, shutdown: impl Future<Output = ()> + Send + 'static) {
        self.shutdown = Some(shutdown.boxed());
    }

    /// Begins to listen for SIGTERM and ctrl-c, unless the shutdown is set.
    ///
    /// # Errors
    ///
    /// If the operating system refuses the signal handlers.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with IO enabled.
    pub fn listen_for_termination(&mut self) -> io::Result<()> {
        if self.shutdown.is_none() {
            self.shutdown = Some(termination_signal()?.boxed());
        }
        Ok(())
    }

    /// Returns the phases of this server, for its connections and requests.
    #[must_use]
    pub fn signals(&self) -> StopSignals {
        self.signals.clone()
    }

    /// Resolves when no direct run is left in the stores, or when open requests are cut off. For a
    /// server whose threads run them.
    pub fn direct_runs_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let (stores, signals) = (self.stores.clone(), self.signals());
        async move {
            let idle =
                join_all(stores.iter().map(|store| store.wait_for_direct_runs(MAX_DURATION)));
            tokio::select! {
                _ = idle => {}
                () = signals.reached(StopPhase::CuttingOff) => {}
            }
        }
    }

    /// Checks whether the application serves the status routes where the `DeferLayer`s of this
    /// process send their clients, and logs an error otherwise. `send` sends a GET for a target
    /// through the application, with the probe among the extensions, and returns the status.
    ///
    /// It is silent beside another server, which may serve the routes. Warns of status routes that
    /// show every job beside layers whose jobs have owners. Cancel safe.
    pub async fn check_status_paths<Fut>(send: impl Fn(String, StatusProbe) -> Fut)
    where
        Fut: Future<Output = Option<u16>>,
    {
        warn_unrestricted_mount();
        for path in find_dead_status_paths(send).await {
            if LiveServer::is_only_one() {
                tracing::error!(
                    path,
                    "the status of deferred requests is 404: their Location begins with `path`, \
                     and deferred_routes answers elsewhere, such as below the prefix of a nested \
                     router; set .status_path(..) on the DeferLayer to the whole path, or mount \
                     the routes at `path`"
                );
            }
        }
    }

    /// Runs the workers and the server until the shutdown, drains them, and shuts the stores down.
    /// `server` has to end by itself when it is draining and no request is left.
    ///
    /// A server that ends, or a worker that panics, before the shutdown begins it.
    ///
    /// # Errors
    ///
    /// The error of the server, or that a worker has panicked.
    pub async fn run(self, server: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let stores = self.stores.clone();
        if stores.is_empty() && live_store_count() > 0 {
            tracing::warn!(
                "the server has neither a worker nor a store, so it waits for no release of locks \
                 at its end; add .store(&store) to serve(..)"
            );
        }
        let ended = self.serve_and_drain(server).await;
        // The server was dropped, and with it all requests that were left.
        join_all(stores.iter().map(|store| store.shutdown(RELEASE_TIMEOUT))).await;
        tracing::info!("server stopped");
        ended.into_result()
    }

    async fn serve_and_drain(self, server: impl Future<Output = io::Result<()>>) -> EndedParts {
        let direct_runs = self.direct_runs_ended();
        let Self { workers, drain_timeout, shutdown, phase, signals, .. } = self;
        // Dropping a handle detaches its task: a worker whose server was dropped returns its jobs.
        let mut workers: FuturesUnordered<JoinHandle<()>> = workers
            .into_iter()
            .map(|start| {
                let signals = signals.clone();
                // A worker with wrong settings panics when it starts.
                tokio::spawn(async move { start(signals).await })
            })
            .collect();
        let (mut server, mut ended) = (pin!(server), EndedParts::default());
        tokio::select! {
            result = &mut server => ended.server = Some(result),
            panic = first_panic(&mut workers) => ended.worker_panic = Some(panic),
            () = shutdown.unwrap_or_else(|| pending().boxed()) => {}
        }
        tracing::info!(?drain_timeout, "server is draining");
        phase.send_replace(StopPhase::Draining);
        let parts = async {
            if ended.server.is_none() {
                ended.server = Some(server.await);
            }
            while let Some(result) = workers.next().await {
                if let Err(panic) = result {
                    ended.worker_panic.get_or_insert(panic);
                }
            }
            direct_runs.await;
        };
        drain(&phase, drain_timeout, parts).await;
        ended
    }
}

/// Results of the parts that have ended.
#[derive(Default)]
struct EndedParts {
    server: Option<io::Result<()>>,
    worker_panic: Option<JoinError>,
}

impl EndedParts {
    fn into_result(self) -> io::Result<()> {
        self.server.unwrap_or(Ok(()))?;
        match self.worker_panic {
            Some(panic) => Err(io::Error::other(format!("a worker has ended early: {panic}"))),
            None => Ok(()),
        }
    }
}

/// Waits until a worker has panicked. A worker ends by itself in no other way.
async fn first_panic(workers: &mut FuturesUnordered<JoinHandle<()>>) -> JoinError {
    while let Some(result) = workers.next().await {
        if let Err(panic) = result {
            return panic;
        }
    }
    pending().await
}

/// Waits until all parts have ended, and goes through the phases that end them.
async fn drain(
    phase: &watch::Sender<StopPhase>,
    drain_timeout: Duration,
    parts: impl Future<Output = ()>,
) {
    let mut parts = pin!(parts);
    if timeout(drain_timeout, &mut parts).await.is_ok() {
        return;
    }
    tracing::warn!(
        ?drain_timeout,
        "requests or runs have not ended within the drain timeout and are cut off; shorten them, \
         or raise .drain(..) and the grace period of the orchestrator"
    );
    phase.send_replace(StopPhase::CuttingOff);
    if timeout(CUT_OFF_TIMEOUT, &mut parts).await.is_ok() {
        return;
    }
    phase.send_replace(StopPhase::Closing);
    if timeout(CLOSE_TIMEOUT, parts).await.is_err() {
        tracing::warn!(
            "requests or runs have not ended after they were cut off; the lock or job of one that \
             blocks its thread is left to its lease"
        );
    }
}

impl Default for ServerLifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ServerLifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLifecycle")
            .field("workers", &self.workers.len())
            .field("stores", &self.stores)
            .field("drain_timeout", &self.drain_timeout)
            .finish_non_exhaustive()
    }
}
