//! `DeferWorker`: a worker that runs deferred requests.

use std::{fmt, marker::PhantomData, pin::pin, sync::Arc};

use super::worker_settings::WorkerSettings;
use crate::{
    defer::{
        job_dispatcher::JobDispatcher,
        replayer::Replayer,
        wiring_registry::{record_worker, warn_uncarried_snapshot},
    },
    error::expect_setting,
    store::Store,
};

/// Runs deferred requests. Several processes may each run a worker; they share the jobs.
///
/// One process may run several workers on the same store, with different routes or settings. They
/// count as one member among the workers of the queue: each receives all wake-ups of the process,
/// and the shards are released when the last of them stops.
///
/// ```text
/// claim -> run through the routes -> settle: done | retry | dead | postponed; claim the next job
/// ```
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
/// # let handler = service_fn(async |_: Request<Body>| {
/// #     Ok::<_, Infallible>(Response::new(Body::default()))
/// # });
/// let store = Store::memory();
/// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
/// let service = DeferLayer::<PlainHttp>::new().layer(lock.layer(handler));
///
/// let worker = DeferWorker::<PlainHttp>::new(&store, service.clone())
///     .concurrency(4)
///     .max_run_time(Duration::from_secs(60));
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let worker = tokio::spawn(worker.run(async { stopped.await.unwrap_or_default() }));
/// // Serve requests with `service`. On SIGTERM:
/// drop(stop);
/// worker.await?; // current runs have ended
/// # Ok(()) }
/// ```
#[must_use = "a worker does nothing until `run` is awaited or spawned"]
pub struct DeferWorker<R> {
    pub(in crate::defer) settings: WorkerSettings,
    kind: PhantomData<fn() -> R>,
}

impl<R> DeferWorker<R> {
    /// Creates a worker that runs the jobs of this store by another means than routes of this
    /// process, such as `lockgate::http_replay::HttpReplayer`.
    pub fn with_replayer(store: &Store, replayer: impl Replayer) -> Self {
        Self { settings: WorkerSettings::new(store, replayer), kind: PhantomData }
    }

    /// Returns the store whose jobs this worker runs.
    #[cfg(feature = "serve")]
    pub(crate) fn store(&self) -> &Store {
        &self.settings.store
    }

    /// Runs jobs until `shutdown` resolves, then drains: stops claiming, releases its shards, and
    /// lets current runs end. Dropping the future aborts the current runs, as a crash would.
    ///
    /// # Panics
    ///
    /// If a layer of this process carries a user or another snapshot that this worker does not
    /// restore: its requests would never run. The message names the fix, such as
    /// [`for_user`](Self::for_user). The call itself panics, and the returned future if the routes
    /// are built later (actix-web). An error is logged before. In a process with several stores a
    /// layer counts from its first request on, which tells it the store of its lock; an error is
    /// logged then if this worker runs already.
    #[track_caller]
    pub fn run(self, shutdown: impl Future<Output = ()>) -> impl Future<Output = ()> {
        let drain_timeout = self.settings.drain_timeout;
        // The time begins when the drain first polls it.
        self.run_until(shutdown, async move { tokio::time::sleep(drain_timeout).await })
    }

    /// Like [`run`](Self::run), with a drain that ends when `cut_off` resolves. `cut_off` is polled
    /// only during the drain.
    #[track_caller]
    pub(crate) fn run_until(
        self,
        shutdown: impl Future<Output = ()>,
        cut_off: impl Future<Output = ()>,
    ) -> impl Future<Output = ()> {
        let settings = self.settings;
        expect_setting(settings.check_wiring());
        async move {
            let mut shutdown = pin!(shutdown);
            tokio::select! {
                biased;
                () = settings.replayer.wait_until_built() => {}
                () = &mut shutdown => return,
            }
            expect_setting(settings.check_wiring());
            let restored = settings.snapshot_restorers.names();
            // Before, the layers of its routes need not have been built.
            warn_uncarried_snapshot(&restored);
            let _record = record_worker(&settings.store, restored);
            let wakeups = settings.store.wakeups().subscribe_work();
            tracing::info!(node = %settings.store.node(), "worker started");
            JobDispatcher::new(Arc::new(settings)).run(wakeups, shutdown, cut_off).await;
        }
    }
}

impl<R> fmt::Debug for DeferWorker<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferWorker").field("settings", &self.settings).finish_non_exhaustive()
    }
}
