//! Worker that claims jobs when their lock is released and runs them through the application's
//! routes.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{
    job_backoff::JobBackoff,
    job_dispatcher::JobDispatcher,
    replayer::Replayer,
    run_authorization::{AuthorizeFn, PendingRun, RunAuthorization},
    settlement_rules::SettlementRules,
    shared_run_limits::SharedRunLimits,
    snapshot::{ExtensionSnapshot, SnapshotRestorers},
    webhook::WebhookSender,
};
use crate::{clock::MAX_DURATION, gate::parse_header_name, store::Store};

/// Shortest lease and shortest `max_run_time`. Below it, a slow moment of the store looks like a
/// crash.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// Shortest retention of an ended job.
///
/// An enqueue with a lost reply is sent again, possibly after the job has ended. Only the retained
/// job shows that the request must not be stored and run a second time.
pub(super) const MIN_RETENTION: Duration = Duration::from_secs(60);

/// Runs deferred requests until it is told to stop. Each integration has its own constructor.
///
/// One process may run several workers on the same store, with different routes or settings. They
/// count as one member among the workers of the queue: each receives all wake-ups of the process,
/// and the shards are released when the last of them stops.
///
/// ```text
/// claim -> run through the routes -> settle: done | retry | dead | postponed; claim the next job
/// ```
#[must_use = "a worker does nothing until `run` is awaited or spawned"]
pub struct DeferWorker {
    pub(super) store: Store,
    pub(super) replayer: Arc<dyn Replayer>,
    pub(super) concurrency: usize,
    pub(super) shared_limits: SharedRunLimits,
    pub(super) drain_timeout: Duration,
    pub(super) lease: Duration,
    pub(super) max_run: Duration,
    pub(super) response_limit: usize,
    pub(super) settlement_rules: SettlementRules,
    pub(super) snapshot_restorers: SnapshotRestorers,
    pub(super) authorize_fn: Option<AuthorizeFn>,
    pub(super) webhooks: Option<Arc<dyn WebhookSender>>,
}

impl DeferWorker {
    /// Creates a worker that runs the jobs of this store through `replayer`.
    pub fn new(store: &Store, replayer: impl Replayer) -> Self {
        Self {
            store: store.clone(),
            replayer: Arc::new(replayer),
            concurrency: 16,
            shared_limits: SharedRunLimits::default(),
            drain_timeout: Duration::from_secs(10),
            lease: Duration::from_secs(10),
            max_run: Duration::from_secs(300),
            response_limit: 1 << 20,
            settlement_rules: SettlementRules {
                done_retention: Duration::from_secs(24 * 60 * 60),
                dead_retention: Duration::from_secs(7 * 24 * 60 * 60),
                backoff: JobBackoff::default(),
                keep_headers: Vec::new(),
            },
            snapshot_restorers: SnapshotRestorers::default(),
            authorize_fn: None,
            webhooks: None,
        }
    }

    /// Sets how many requests this worker runs at once. Default 16, at least 1. Requests of one
    /// resource never run at once.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = most.max(1);
        self
    }

    /// Limits how many requests run at once in all workers of this queue. At least 1. Default: no
    /// limit but the workers' own.
    ///
    /// Set the same number in every worker. The limit costs two calls for each series of runs on
    /// one lock. Permits are leases: the run of a dead worker counts until its lease expires.
    pub fn queue_concurrency(mut self, most: u32) -> Self {
        self.shared_limits.max_concurrent = Some(most.max(1));
        self
    }

    /// Limits how many requests all workers of this queue start per time (GCRA). Default: no limit.
    ///
    /// Starts are spread evenly, with a burst of at most a tenth of `requests`. Set the same rate
    /// in every worker. A retry counts again.
    ///
    /// # Panics
    ///
    /// Panics if either is zero, or the time is longer than a year.
    pub fn queue_rate(mut self, requests: u64, per: Duration) -> Self {
        assert!(
            requests > 0 && !per.is_zero() && per <= MAX_DURATION,
            "DeferWorker::queue_rate: {requests} per {per:?}; it takes at least 1, per more than 0 \
             and at most a year"
        );
        self.shared_limits.rate = Some((requests, per));
        self
    }

    /// Sets how long runs may continue after the signal to stop. Default 10 s.
    ///
    /// Runs that are still active after it are aborted. Jobs that may run again, and jobs that have
    /// not reached their lock yet, return to their queue uncharged. The others become dead letters.
    pub fn drain_timeout(mut self, deadline: Duration) -> Self {
        self.drain_timeout = deadline.min(MAX_DURATION);
        self
    }

    /// Sets the lease of a run's lock, which bounds how long a run outlives its process. Default 10
    /// s, at least 100 ms. It is renewed after a third.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Sets the longest duration of a run. Default 5 minutes, at least 100 ms, at most a year.
    ///
    /// A longer run is lost as in a crash: its lock is renewed no more, and expires.
    pub fn max_run_time(mut self, max: Duration) -> Self {
        self.max_run = max.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Sends the webhooks of `DeferLayer::webhook`. A worker without this setting leaves them to
    /// workers that have it.
    #[cfg(feature = "webhook")]
    pub fn webhooks(mut self, callbacks: super::Webhooks) -> Self {
        self.webhooks = Some(Arc::new(callbacks));
        self
    }

    /// Sets the largest response body that is stored, in bytes. Default 1 MiB.
    ///
    /// Of a response with a larger body, and of any stream, only status and headers are stored.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.response_limit = bytes;
        self
    }

    /// Stores this response header too. By default, headers that describe the content, or tell a
    /// browser how to treat it, are stored.
    ///
    /// `Set-Cookie` is stored only if it is named here, because the reader of the status resource
    /// is not necessarily the client that the cookie is for.
    ///
    /// # Panics
    ///
    /// Panics if the name is not a valid header name.
    pub fn keep_response_header(mut self, name: &str) -> Self {
        self.settlement_rules
            .keep_headers
            .push(parse_header_name("DeferWorker::keep_response_header", name));
        self
    }

    /// Sets the delay before a retry. Default 1 s and 5 minutes.
    ///
    /// The delay is drawn evenly between zero and a bound. The bound is `base` after the first
    /// failed run, doubles with each further one, and is at most `cap`.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.settlement_rules.backoff.base = base.min(MAX_DURATION);
        self.settlement_rules.backoff.cap = cap.min(MAX_DURATION);
        self
    }

    /// Sets the longest `Retry-After` of a handler that is honoured; a longer one is cut to it.
    /// Default one hour.
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.settlement_rules.backoff.max_retry_after = longest.min(MAX_DURATION);
        self
    }

    /// Sets the retention of finished jobs and their responses. Default one day, at least one
    /// minute.
    ///
    /// Each shard keeps at most a 64th of the layers' `max_ended_bytes`, by default 16 MiB. The
    /// newest jobs stay.
    pub fn done_retention(mut self, retention: Duration) -> Self {
        self.settlement_rules.done_retention = retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }

    /// Sets the retention of dead letters. Default one week, at least one minute.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.settlement_rules.dead_retention = retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }

    /// Restores this snapshot in each run. `put` converts it to a value that the replayer finds in
    /// [`ReplayMarker::restored_snapshots`](crate::gate::ReplayMarker::restored_snapshots).
    pub fn restore_with<T: ExtensionSnapshot, P: std::any::Any + Send + Sync>(
        mut self,
        put: impl Fn(T) -> P + Send + Sync + 'static,
    ) -> Self {
        self.snapshot_restorers.add(put);
        self
    }

    /// Sets a check that decides before each run whether it may begin, for example because the user
    /// has lost the permission since the request was accepted. Default: every run begins.
    ///
    /// The check receives the stored request with its snapshots. Webhooks are not checked. The
    /// request's lock is held during the check, and the check counts towards
    /// [`max_run_time`](Self::max_run_time). A check that panics, or takes longer than half of that
    /// time, counts as [`RunAuthorization::Unknown`].
    ///
    /// ```
    /// use lockgate::defer::{RunAuthorization, DeferWorker, PendingRun};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # async fn is_active(user: u64) -> Result<bool, std::io::Error> { Ok(user > 0) }
    ///
    /// fn checked(worker: DeferWorker) -> DeferWorker {
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
        self.authorize_fn = Some(Arc::new(move |run| check(run).boxed()));
        self
    }

    /// Works until `shutdown` resolves, then drains: stops claiming, releases its shards, and lets
    /// current runs end. If this future is dropped instead, runs are aborted as in a crash.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let hints = self.store.wakeups().subscribe_work();
        tracing::info!(node = %self.store.node(), "worker started");
        JobDispatcher::new(Arc::new(self)).run(hints, shutdown).await;
    }
}

impl fmt::Debug for DeferWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferWorker")
            .field("store", &self.store)
            .field("concurrency", &self.concurrency)
            .field("shared_limits", &self.shared_limits)
            .field("lease", &self.lease)
            .field("drain_timeout", &self.drain_timeout)
            .field("snapshot_restorers", &self.snapshot_restorers)
            .finish_non_exhaustive()
    }
}
