//! What a `DeferLayer` is set to.

mod setters;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    defer::{snapshot::SnapshotExtractors, stored_headers::StoredHeaderFilter},
    gate::{ClientAddress, HttpRequestHead, MethodFilter},
    key::SHARD_COUNT,
    store::{MergeMode, OnFailure, StorageLimits},
};

/// Whom to tell of a request that has ended.
pub(super) type WebhookUrlFn = dyn Fn(&HttpRequestHead) -> Option<String> + Send + Sync;

pub(super) type OwnerFn<N> = dyn Fn(&N) -> Option<String> + Send + Sync;

/// The policy of a `DeferLayer`: what is deferred, and within which bounds.
pub struct DeferGate<N: ?Sized>(pub(super) Arc<DeferSettings<N>>);

/// The settings. A gate is cloned for each request, so they lie behind one pointer.
pub(super) struct DeferSettings<N: ?Sized> {
    pub(super) status_path: String,
    pub(super) methods: MethodFilter,
    pub(super) trigger: TriggerSettings,
    pub(super) storage: StorageSettings,
    pub(super) run: RunSettings,
    pub(super) idempotency: IdempotencySettings,
    pub(super) storage_limits: StorageLimits,
    /// How many must have what a 202 speaks of.
    pub(super) min_replicas: u32,
    pub(super) owner: Option<Arc<OwnerFn<N>>>,
    pub(super) webhook_url: Option<Arc<WebhookUrlFn>>,
    pub(super) snapshot_extractors: SnapshotExtractors<N>,
    /// Requests of all users share keys and merges.
    pub(super) shared_by_all: bool,
}

/// When a request is deferred.
#[derive(Debug, Clone)]
pub(super) struct TriggerSettings {
    /// What is waited for the lock before.
    pub(super) lock_wait: Duration,
    /// Most that a client may ask for.
    pub(super) max_wait: Duration,
    pub(super) respond_async: bool,
    pub(super) defer_always: bool,
    pub(super) require_worker: bool,
}

/// What may be stored of it.
#[derive(Debug, Clone)]
pub(super) struct StorageSettings {
    pub(super) body_limit: usize,
    /// Of names, values, path and query.
    pub(super) head_limit: usize,
    pub(super) buffer_budget: usize,
    /// Whose share of the budget a request takes.
    pub(super) client: ClientAddress,
    /// How long a body is read.
    pub(super) body_read_timeout: Duration,
    pub(super) header_filter: StoredHeaderFilter,
}

/// How it runs.
#[derive(Debug, Clone)]
pub(super) struct RunSettings {
    pub(super) max_attempts: u32,
    pub(super) retry_unsafe: bool,
    pub(super) delay: Duration,
    pub(super) deadline: Option<Duration>,
    pub(super) on_failure: OnFailure,
    pub(super) merge_mode: Option<MergeMode>,
}

/// What is remembered of an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub(super) struct IdempotencySettings {
    pub(super) ttl: Duration,
    pub(super) idempotent_direct: bool,
    /// Most of those that run at once in this process.
    pub(super) max_direct_runs: usize,
    /// Most bytes of the body of a response that is kept of one.
    pub(super) direct_response_limit: usize,
}

impl<N: ?Sized> DeferGate<N> {
    /// Defers unsafe requests with bodies up to 64 KiB; the status resource is at `/deferred`.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(DeferSettings {
            status_path: "/deferred".to_owned(),
            methods: MethodFilter::Unsafe,
            trigger: TriggerSettings {
                lock_wait: Duration::ZERO,
                max_wait: Duration::from_secs(30),
                respond_async: false,
                defer_always: false,
                require_worker: false,
            },
            storage: StorageSettings {
                body_limit: 64 * 1024,
                head_limit: 16 * 1024,
                client: ClientAddress::peer(),
                buffer_budget: 64 << 20,
                body_read_timeout: Duration::from_secs(10),
                header_filter: StoredHeaderFilter::default(),
            },
            run: RunSettings {
                max_attempts: 5,
                retry_unsafe: false,
                delay: Duration::ZERO,
                deadline: None,
                on_failure: OnFailure::Block,
                merge_mode: None,
            },
            idempotency: IdempotencySettings {
                ttl: Duration::from_secs(24 * 60 * 60),
                idempotent_direct: false,
                max_direct_runs: 1024,
                direct_response_limit: 64 * 1024,
            },
            storage_limits: DEFAULT_STORAGE_LIMITS,
            min_replicas: 0,
            owner: None,
            webhook_url: None,
            snapshot_extractors: SnapshotExtractors::default(),
            shared_by_all: false,
        }))
    }

    fn with_settings(self, change: impl FnOnce(&mut DeferSettings<N>)) -> Self {
        let mut settings = (*self.0).clone();
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

/// For longer no lock is waited for, whoever asks (`lock::asking`). A client is told which wait it got, so it is cut here.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(600);

/// What is stored at most. What one resource takes, an owner may have in its shard, and there is room left beside it: else
/// a resource could not fill its line, or would keep the others of its shard out.
const DEFAULT_STORAGE_LIMITS: StorageLimits = StorageLimits {
    resource_jobs: 1_000,
    resource_bytes: 8 << 20,
    shard_jobs: per_shard(100_000),
    shard_bytes: per_shard(1 << 30),
    owner_jobs: per_shard(64_000),
    owner_bytes: per_shard(1 << 29),
    ended_bytes: per_shard(1 << 30),
    owner_records: per_shard(1 << 20),
};

/// The part that a shard has in what the whole queue may hold: jobs of one lock all lie in one.
const fn per_shard(whole: u64) -> u64 {
    whole.div_ceil(SHARD_COUNT as u64)
}

impl<N: ?Sized> Default for DeferGate<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: ?Sized> Clone for DeferGate<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: ?Sized> Clone for DeferSettings<N> {
    fn clone(&self) -> Self {
        Self {
            status_path: self.status_path.clone(),
            methods: self.methods.clone(),
            trigger: self.trigger.clone(),
            storage: self.storage.clone(),
            run: self.run.clone(),
            idempotency: self.idempotency.clone(),
            storage_limits: self.storage_limits,
            min_replicas: self.min_replicas,
            owner: self.owner.clone(),
            webhook_url: self.webhook_url.clone(),
            snapshot_extractors: self.snapshot_extractors.clone(),
            shared_by_all: self.shared_by_all,
        }
    }
}

impl<N: ?Sized> fmt::Debug for DeferGate<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferGate")
            .field("status_at", &self.0.status_path)
            .field("methods", &self.0.methods)
            .field("when", &self.0.trigger)
            .field("what", &self.0.storage)
            .field("how", &self.0.run)
            .field("keys", &self.0.idempotency)
            .field("caps", &self.0.storage_limits)
            .field("replicas", &self.0.min_replicas)
            .finish_non_exhaustive()
    }
}
