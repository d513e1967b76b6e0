//! The worker: takes jobs whose lock comes free, and runs them through the application's routes.

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

/// Shortest lease, and shortest longest run: below it a slow moment of the store looks like a crash.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// Shortest time for which an ended job is kept. A call that stored it, and whose answer was lost, is sent again, also when
/// the job has ended: what is kept of it alone tells that it is not to be stored, and run, once more.
pub(super) const MIN_RETENTION: Duration = Duration::from_secs(60);

/// Runs deferred requests until it is told to stop. Each integration has a constructor of its own.
///
/// Several of one process can be on the same store, for routes or settings of their own. They count as one among
/// the workers of the queue: each hears of all that the process is told of, and its shards are given up when the
/// last of them stops.
///
/// ```text
/// claim -> run through the routes -> settle: done | retry | dead | back in line; claim the next of the line
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
    /// A worker that runs jobs of this store through these routes.
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

    /// Most requests that run at once in this worker. Default 16, at least 1; those of one resource never
    /// do.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = most.max(1);
        self
    }

    /// Most requests that run at once in all workers of this queue, at least 1. Default: as many as they
    /// have room for. Every worker should be given the same number; it costs two calls per visit to a
    /// line. What runs is counted by leases: a run whose worker died counts until its lease ends.
    pub fn queue_concurrency(mut self, most: u32) -> Self {
        self.shared_limits.max_concurrent = Some(most.max(1));
        self
    }

    /// Most requests that are started per time by all workers of this queue, evenly, and at most a tenth
    /// of them at once: GCRA. Default: no limit. Every worker should be given the same. A run that is
    /// tried again counts again.
    ///
    /// # Panics
    ///
    /// If either is zero, or the time is longer than a year.
    pub fn queue_rate(mut self, requests: u64, per: Duration) -> Self {
        assert!(
            requests > 0 && !per.is_zero() && per <= MAX_DURATION,
            "DeferWorker::queue_rate: {requests} per {per:?}; take at least one per time, up to a year"
        );
        self.shared_limits.rate = Some((requests, per));
        self
    }

    /// How long runs may go on after the signal to stop. Default 10 s. What still runs then is
    /// abandoned: what may run again, or has not come to its lock yet, goes back in line uncharged, the
    /// others among the dead letters.
    pub fn drain_timeout(mut self, deadline: Duration) -> Self {
        self.drain_timeout = deadline.min(MAX_DURATION);
        self
    }

    /// How long a run outlives its process. Default 10 s, at least 100 ms; renewed at a third.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Longest run. Default 5 minutes, at least 100 ms, at most a year; its lock is then left to end, and
    /// the run is lost, as in a crash.
    pub fn max_run_time(mut self, max: Duration) -> Self {
        self.max_run = max.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Makes the calls of `DeferLayer::webhook`. Without it, they are left to workers that have it.
    #[cfg(feature = "webhook")]
    pub fn webhooks(mut self, callbacks: super::Webhooks) -> Self {
        self.webhooks = Some(Arc::new(callbacks));
        self
    }

    /// Most bytes of a response's body that are kept. Default 1 MiB. Of a longer one status and fields
    /// are, and of a stream, whatever its length.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.response_limit = bytes;
        self
    }

    /// Keeps this field of responses, too. Kept are those that say what the body is, and what a browser may do with it;
    /// `Set-Cookie` only if it is named here: whoever reads the status resource is not necessarily whom it is for.
    ///
    /// # Panics
    ///
    /// If the name is none that a field can have.
    pub fn keep_response_header(mut self, name: &str) -> Self {
        self.settlement_rules
            .keep_headers
            .push(parse_header_name("DeferWorker::keep_response_header", name));
        self
    }

    /// How long a request waits after a failed run: between nothing and `base`, twice as much after each
    /// further one, at most `cap`, drawn evenly. Default 1 s and 5 minutes.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.settlement_rules.backoff.base = base.min(MAX_DURATION);
        self.settlement_rules.backoff.cap = cap.min(MAX_DURATION);
        self
    }

    /// Longest `Retry-After` of a handler that is honoured; a longer one counts as this. Default an hour.
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.settlement_rules.backoff.max_retry_after = longest.min(MAX_DURATION);
        self
    }

    /// How long finished jobs and their responses are kept. Default a day, at least a minute; of each shard no more than a
    /// 64th of the layers' `ended_bytes`, by default 16 MiB, the newest.
    pub fn done_retention(mut self, retention: Duration) -> Self {
        self.settlement_rules.done_retention = retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }

    /// How long dead letters are kept. Default a week, at least a minute.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.settlement_rules.dead_retention = retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }

    /// Restores this snapshot: `put` makes of it what the replayer finds among
    /// [`ReplayMarker::restored_snapshots`](crate::gate::ReplayMarker::restored_snapshots).
    pub fn restore_with<T: ExtensionSnapshot, P: std::any::Any + Send + Sync>(
        mut self,
        put: impl Fn(T) -> P + Send + Sync + 'static,
    ) -> Self {
        self.snapshot_restorers.add(put);
        self
    }

    /// Has this function decide before each run whether it may begin: of a request whose user has lost
    /// the right to it while it waited, say. It gets what was stored, with the snapshots that the request
    /// carries. Default: every run may. Calls that tell of an end are not asked about.
    ///
    /// The lock of the request is held meanwhile, and the check counts into
    /// [`max_run`](Self::max_run_time). One that panics, or has not ended after half of that time, is
    /// [`RunAuthorization::ClientAddressError`].
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
    ///         let Some(user) = run.carried::<User>() else { return RunAuthorization::Granted };
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

    /// Works until `shutdown` resolves, then drains: it stops claiming, lets runs end, and gives its
    /// shards up. If this future is dropped instead, runs are aborted, as in a crash.
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
