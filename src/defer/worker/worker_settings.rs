//! `WorkerSettings`: settings of a worker, without the type of its framework.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    defer::{
        extension_snapshot::SnapshotRestorers, job_backoff::JobBackoff, replayer::Replayer,
        run_authorization::AuthorizeFn, settlement_rules::SettlementRules,
        shared_run_limits::SharedRunLimits, webhook::WebhookSender, wiring_registry::check_worker,
    },
    error::Error,
    store::Store,
    trace::TraceRelation,
};

/// Shortest lease and shortest `max_run_time`. Below it, a slow moment of the store looks like a
/// crash.
pub(super) const MIN_LEASE: Duration = Duration::from_millis(100);

/// Shortest retention of an ended job.
///
/// An enqueue with a lost reply is sent again, possibly after the job has ended. Only the retained
/// job shows that the request must not be stored and run a second time.
pub(in crate::defer) const MIN_RETENTION: Duration = Duration::from_secs(60);

/// Settings of a [`DeferWorker`](super::DeferWorker), and the means of its runs.
pub(in crate::defer) struct WorkerSettings {
    pub(in crate::defer) store: Store,
    pub(in crate::defer) replayer: Arc<dyn Replayer>,
    pub(in crate::defer) concurrency: usize,
    pub(in crate::defer) shared_limits: SharedRunLimits,
    pub(in crate::defer) drain_timeout: Duration,
    pub(in crate::defer) lease: Duration,
    pub(in crate::defer) max_run_time: Duration,
    pub(in crate::defer) response_limit: usize,
    pub(in crate::defer) settlement_rules: SettlementRules,
    pub(in crate::defer) snapshot_restorers: SnapshotRestorers,
    /// Snapshot of a run that could not be restored, for the test kit.
    pub(in crate::defer) unrestored_snapshot: Mutex<Option<String>>,
    pub(in crate::defer) authorize_fn: Option<AuthorizeFn>,
    pub(in crate::defer) webhooks: Option<Arc<dyn WebhookSender>>,
    pub(in crate::defer) trace_relation: TraceRelation,
    /// Time since when the worker knows of no gap in the watch of its shards, by the store's clock
    /// as far as it is known.
    pub(in crate::defer) watched_since_us: AtomicU64,
}

impl WorkerSettings {
    pub(super) fn new(store: &Store, replayer: impl Replayer) -> Self {
        Self {
            store: store.clone(),
            replayer: Arc::new(replayer),
            concurrency: 16,
            shared_limits: SharedRunLimits::default(),
            drain_timeout: Duration::from_secs(10),
            lease: Duration::from_secs(10),
            max_run_time: Duration::from_secs(300),
            response_limit: 1 << 20,
            settlement_rules: SettlementRules {
                done_retention: Duration::from_secs(24 * 60 * 60),
                dead_retention: Duration::from_secs(7 * 24 * 60 * 60),
                backoff: JobBackoff::default(),
                keep_headers: Vec::new(),
            },
            snapshot_restorers: SnapshotRestorers::default(),
            unrestored_snapshot: Mutex::default(),
            authorize_fn: None,
            webhooks: None,
            trace_relation: TraceRelation::default(),
            watched_since_us: AtomicU64::new(store.backend().estimated_now_us()),
        }
    }

    /// Checks that the worker restores what the layers of this process carry, and logs an error if
    /// it does not: a panic in a task may stay unread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if a snapshot is not restored.
    pub(in crate::defer) fn check_wiring(&self) -> Result<(), Error> {
        if !self.replayer.restores_snapshots() {
            return Ok(());
        }
        check_worker(&self.store, &self.snapshot_restorers.names()).inspect_err(|error| {
            tracing::error!(node = %self.store.node(), %error, "worker not started");
        })
    }
}

impl fmt::Debug for WorkerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSettings")
            .field("store", &self.store)
            .field("concurrency", &self.concurrency)
            .field("shared_limits", &self.shared_limits)
            .field("lease", &self.lease)
            .field("drain_timeout", &self.drain_timeout)
            .field("snapshot_restorers", &self.snapshot_restorers)
            .finish_non_exhaustive()
    }
}
