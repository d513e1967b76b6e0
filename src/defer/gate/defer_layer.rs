//! Settings of a `DeferLayer`.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::missing_lock::LockPresence;
use crate::{
    defer::{extension_snapshot::SnapshotExtractors, stored_request_headers::StoredHeaderFilter},
    gate::{ClientAddress, HttpRequestHead, MethodFilter, RequestKind},
    key::SHARD_COUNT,
    store::{MergeMode, OnFailure, StorageLimits},
};

/// Returns the webhook URL for a request.
pub(super) type WebhookUrlFn = dyn Fn(&HttpRequestHead) -> Option<String> + Send + Sync;

pub(super) type OwnerFn<N> = dyn Fn(&N) -> Option<String> + Send + Sync;

/// Accepts requests for a busy resource: 202 now, and one run later, in the order of acceptance.
///
/// See [`defer`](crate::defer) for the handling of a request. Put it outside the `LockLayer`. Jobs
/// are stored in that layer's store, beside its lock.
///
/// # When a request is deferred
///
/// | setting | lock is free | lock is busy | the client gets |
/// |---|---|---|---|
/// | [`when_busy()`] (default) | runs now | deferred at once | its response, or 202 |
/// | [`wait_up_to(d)`] | runs now | waits; deferred after `d` | its response, or 202 after `d` |
/// | [`background()`] | deferred | deferred | always 202 |
/// | [`respond_async()`] | deferred if asked for | deferred | 202 if it has asked for it |
///
/// Of the first three the last one that is set applies; `respond_async` is an addition to it, and
/// applies to requests with `Prefer: respond-async`. A 202 has the `Location` of the status
/// resource, where the client finds the response when the request has run.
///
/// [`when_busy()`]: Self::when_busy
/// [`wait_up_to(d)`]: Self::wait_up_to
/// [`background()`]: Self::background
/// [`respond_async()`]: Self::respond_async
///
/// A request that cannot be deferred gets the busy response of the `LockLayer`, with its
/// `Retry-After`. Reasons:
///
/// - a body that is too long, or a full queue
/// - an upgrade
/// - a credential that may not be stored
/// - a shared lock, a permit, or several keys
///
/// # Users and credentials
///
/// | setting | default | meaning |
/// |---|---|---|
/// | [`for_user::<U>()`](Self::for_user) | none | the authenticated user is stored and restored |
/// | [`credential_header(name)`] | [the common headers] | one more header that is not stored |
/// | [`keep_header(name)`] | none | a credential that is stored with the request |
///
/// [`credential_header(name)`]: Self::credential_header
/// [`keep_header(name)`]: Self::keep_header
/// [the common headers]: Self::keep_header
///
/// ```
/// # use std::{convert::Infallible, time::Duration};
/// # use http::{Request, Response};
/// # use lockgate::{Key, Store, defer::DeferLayer, lock::LockLayer, middleware::PlainHttp};
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
/// let _guard = store.lock(Key::header("order", b"7")).acquire().await?;
/// let request = Request::post("/refund").header("order", "7").body(Body::default())?;
/// let response = service.oneshot(request).await?;
/// assert_eq!(response.status(), 202);
/// assert!(response.headers()["location"].to_str()?.starts_with("/deferred/"));
/// # Ok(()) }
/// ```
pub struct DeferLayer<R: RequestKind>(pub(super) Arc<DeferSettings<R::Native>>);

/// Settings behind one pointer, since a layer is cloned for each request.
pub(super) struct DeferSettings<N: ?Sized> {
    /// `None` if the mounts decide.
    pub(super) status_path: Option<String>,
    pub(super) methods: MethodFilter,
    pub(super) trigger: TriggerSettings,
    pub(super) storage: StorageSettings,
    pub(super) run: RunSettings,
    pub(super) idempotency: IdempotencySettings,
    pub(super) storage_limits: StorageLimits,
    /// Number of replicas that must have a job before its 202.
    pub(super) min_replicas: u32,
    pub(super) owner: Option<Arc<OwnerFn<N>>>,
    pub(super) webhook_url: Option<Arc<WebhookUrlFn>>,
    pub(super) snapshot_extractors: SnapshotExtractors<N>,
    /// Requests of all users share idempotency keys and merges.
    pub(super) shared_by_all: bool,
    pub(super) lock_presence: LockPresence,
    /// The snapshots have been compared with the workers of the store that the layer's lock has.
    pub(super) is_store_known: Arc<AtomicBool>,
    /// A GET has passed the layer, which is set to `background`.
    pub(super) has_warned_of_get: AtomicBool,
}

/// Conditions under which a request is deferred.
#[derive(Debug, Clone)]
pub(super) struct TriggerSettings {
    /// Wait for the lock before a request is deferred.
    pub(super) lock_wait: Duration,
    /// Longest wait that a client may ask for.
    pub(super) max_wait: Duration,
    pub(super) respond_async: bool,
    /// Every request is deferred, without trying its lock.
    pub(super) background: bool,
    pub(super) require_worker: bool,
}

/// Limits of a stored request, and of the memory for reading it.
#[derive(Debug, Clone)]
pub(super) struct StorageSettings {
    pub(super) body_limit: usize,
    /// Limit of names, values, path and query, in bytes.
    pub(super) head_limit: usize,
    pub(super) buffer_budget: usize,
    /// Client that a request's share of the budget is counted for.
    pub(super) client: ClientAddress,
    /// Time limit for reading a body.
    pub(super) body_read_timeout: Duration,
    pub(super) header_filter: StoredHeaderFilter,
}

/// Settings of the job's runs.
#[derive(Debug, Clone)]
pub(super) struct RunSettings {
    pub(super) max_attempts: u32,
    pub(super) retry_unsafe: bool,
    pub(super) delay: Duration,
    pub(super) deadline: Option<Duration>,
    pub(super) on_failure: OnFailure,
    pub(super) merge_mode: Option<MergeMode>,
}

/// Settings for requests with an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub(super) struct IdempotencySettings {
    pub(super) ttl: Duration,
    pub(super) idempotent_direct: bool,
    /// Most direct runs in this process.
    pub(super) max_direct_runs: usize,
    /// Most bytes of a direct run's response body that are stored.
    pub(super) direct_response_limit: usize,
}

impl<R: RequestKind> DeferLayer<R> {
    /// Defers requests with unsafe methods and bodies of up to 64 KiB, as soon as their lock is
    /// busy. The status resource is where [`deferred_routes`](Self::status_path) is mounted.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(DeferSettings {
            status_path: None,
            methods: MethodFilter::Unsafe,
            trigger: TriggerSettings {
                lock_wait: Duration::ZERO,
                max_wait: Duration::from_secs(30),
                respond_async: false,
                background: false,
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
            lock_presence: LockPresence::default(),
            is_store_known: Arc::default(),
            has_warned_of_get: AtomicBool::new(false),
        }))
    }

    pub(super) fn with_settings(self, change: impl FnOnce(&mut DeferSettings<R::Native>)) -> Self {
        let mut settings = (*self.0).clone();
        change(&mut settings);
        Self(Arc::new(settings))
    }
}

/// Longest wait that a client can ask for. No lock waits longer (`lock::acquire_options`). The
/// response states the applied wait, so it is cut here.
pub(super) const MAX_LOCK_WAIT: Duration = Duration::from_secs(600);

/// Default storage limits.
///
/// In its shard, an owner may store as much as one resource may hold, and the shard has space
/// beyond that. Otherwise a resource could not fill its queue, or would exclude the other resources
/// of its shard.
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

/// Returns a shard's part of a limit of the whole queue. All jobs of one lock are in one shard.
pub(super) const fn per_shard(whole: u64) -> u64 {
    whole.div_ceil(SHARD_COUNT as u64)
}

impl<R: RequestKind> Default for DeferLayer<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: RequestKind> Clone for DeferLayer<R> {
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
            // Another layer, which may be around other routes.
            lock_presence: LockPresence::default(),
            is_store_known: Arc::default(),
            has_warned_of_get: AtomicBool::new(false),
        }
    }
}

impl<R: RequestKind> fmt::Debug for DeferLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferLayer")
            .field("status_path", &self.0.status_path)
            .field("methods", &self.0.methods)
            .field("trigger", &self.0.trigger)
            .field("storage", &self.0.storage)
            .field("run", &self.0.run)
            .field("idempotency", &self.0.idempotency)
            .field("storage_limits", &self.0.storage_limits)
            .field("min_replicas", &self.0.min_replicas)
            .finish_non_exhaustive()
    }
}
