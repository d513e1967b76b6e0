//! Rate limits, per-resource locks and deferred requests for [axum](https://docs.rs/axum), shared
//! by all processes of a service over one Redis.
//!
//! `app` returns the router for the server and the worker that runs deferred requests:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use axum::{Extension, Router, routing::post};
//! use lockgate_axum::{
//!     DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
//! };
//!
//! fn app(store: &Store) -> (Router, DeferWorker) {
//!     let app: Router = Router::new()
//!         .route("/orders/{id}/refund", post(|| async { "refunded" }))
//!         .layer(LockLayer::by_path_param_as::<u64>("id")) // one request per order at a time
//!         .layer(DeferLayer::new()) // order is locked: 202, and the request runs later
//!         .merge(deferred_routes("/deferred")) // status of deferred requests
//!         .layer(RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60))))
//!         .layer(Extension(store.clone()));
//!     let worker = DeferWorker::new(store, app.clone()); // serve(listener, app).worker(worker)
//!     (app, worker)
//! }
//! ```
//!
//! The store is [`Store::connect`] with the URL of a Redis, or [`Store::memory`] for one process
//! and for tests.
//!
//! # The three layers
//!
//! | layer | acts if | default response |
//! |---|---|---|
//! | [`RateLimitLayer`] | the client's quota is used up | 429 with `Retry-After` and `RateLimit` |
//! | [`LockLayer`] | another request holds the lock of the resource | 409 with `Retry-After` |
//! | [`DeferLayer`] | the lock inside it is busy | 202 with `Location`; the request runs later |
//!
//! `RateLimitLayer` and `LockLayer` also work alone; `DeferLayer` needs a `LockLayer` inside. Safe
//! methods (GET, HEAD, OPTIONS, TRACE) take no lock by default, and are never deferred.
//!
//! A `DeferLayer` defers [`when_busy`](DeferLayer::when_busy);
//! [`wait_up_to`](DeferLayer::wait_up_to) waits first, [`background`](DeferLayer::background)
//! always defers, and [`respond_async`](DeferLayer::respond_async) adds clients that ask for it.
//! `for_user` on [layer](DeferLayer::for_user), [worker](DeferWorker::for_user) and [status
//! routes](DeferredRoutes::for_user) carries the authenticated user, a [`RequestUser`].
//!
//! # Where to go next
//!
//! - [`lockgate::rate_limit`], [`lockgate::lock`] and [`lockgate::defer`]: rules of quotas, locks
//!   and deferred requests.
//! - [`queue`]: queues of typed tasks, separate from requests.
//! - The book: [getting started], [rate limits], [locks], [deferred requests], [task queues],
//!   [deployment], [observability], [testing], [guarantees] and [limitations].
//!
//! [getting started]: https://github.com/lockgate/lockgate/blob/main/docs/getting-started.md
//! [rate limits]: https://github.com/lockgate/lockgate/blob/main/docs/rate-limit.md
//! [locks]: https://github.com/lockgate/lockgate/blob/main/docs/lock.md
//! [deferred requests]: https://github.com/lockgate/lockgate/blob/main/docs/defer.md
//! [task queues]: https://github.com/lockgate/lockgate/blob/main/docs/queue.md
//! [deployment]: https://github.com/lockgate/lockgate/blob/main/docs/deployment.md
//! [observability]: https://github.com/lockgate/lockgate/blob/main/docs/observability.md
//! [testing]: https://github.com/lockgate/lockgate/blob/main/docs/testing.md
//! [guarantees]: https://github.com/lockgate/lockgate/blob/main/docs/guarantees.md
//! [limitations]: https://github.com/lockgate/lockgate/blob/main/docs/limitations.md
//!
//! # A complete server
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use axum::{Extension, Router, routing::post};
//! use lockgate_axum::{
//!     DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
//! };
//!
//! # async fn pay() {}
//! # async fn refund() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
//! let orders = Router::new()
//!     .route("/orders/{id}/pay", post(pay))
//!     .layer(LockLayer::by_path_param_as::<u64>("id")); // 409 while another change runs
//! let later = Router::new()
//!     .route("/orders/{id}/refund", post(refund))
//!     .layer(LockLayer::by_path_param_as::<u64>("id"))
//!     .layer(DeferLayer::new()); // 202 instead of 409
//! let app: Router = orders
//!     .merge(later)
//!     .merge(deferred_routes("/deferred").store(&store)) // status of deferred requests
//!     .layer(RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60))))
//!     .layer(Extension(store.clone())); // one store for all three
//!
//! let worker = DeferWorker::new(&store, app.clone()); // runs the deferred requests
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! lockgate_axum::serve(listener, app).worker(worker).await?; // until SIGTERM or ctrl-c
//! # Ok(()) }
//! ```
//!
//! # Shutdown
//!
//! [`serve()`] ends everything in order: it stops accepting connections and claiming jobs, lets
//! open requests and runs end for 10 s ([`drain`](Serve::drain)), cuts off the rest, and releases
//! the last locks.
//!
//! With another server, do the same yourself: resolve the shutdown of the server and the one of
//! [`DeferWorker::run`](lockgate::defer::DeferWorker::run) at the same time, await both, and then
//! [`Store::shutdown`]. A worker that is not awaited ends with the runtime, as in a crash: a POST
//! that it was running becomes a dead letter.
//!
//! # In the handler
//!
//! Extractors provide the data of the layers: [`Fence`], [`CurrentLock`], [`CurrentLocks`],
//! [`CurrentRate`], and in the run of a deferred request [`CurrentJob`] and
//! [`CurrentCancellation`].
//!
//! Store the fence beside the data. A process that was paused beyond its lease continues as if it
//! still held the lock, and the database can detect that:
//!
//! ```no_run
//! use axum::{extract::Path, http::StatusCode};
//! use lockgate_axum::Fence;
//!
//! async fn pay(Path(id): Path<u64>, Fence(fence): Fence) -> StatusCode {
//!     // UPDATE orders SET state = 'paid', fence = $2 WHERE id = $1 AND fence <= $2
//!     match update(id, fence).await {
//!         0 => StatusCode::CONFLICT, // a newer holder has written
//!         _ => StatusCode::NO_CONTENT,
//!     }
//! }
//! # async fn update(_: u64, _: u64) -> u64 { 1 }
//! ```
//!
//! # Order of the layers
//!
//! From the outside in: authentication, rate limit, defer, lock, handler. In axum the layer added
//! last is the outermost. A `DeferLayer` inside a `LockLayer` gets 500 and a log message.
//!
//! Merge routers first, and add the layers that apply to all routes afterwards. Of two merged
//! routers the second one has the fallback, so a limit around the first one alone does not count
//! the 404s.
//!
//! # Placement of a layer
//!
//! Put a layer around its routes, or around a `Router` of them.
//!
//! - Around a router that nests a service by `nest_service`, a layer does not know the routes of
//!   that service. If its key needs the route or one of its parameters, the response is 500, and a
//!   log message says so. Put the layer around the nested routes instead; there the bare prefix
//!   counts as a route without parameters, even if no handler is there.
//! - In a `ServiceBuilder` between the nesting router and the nested one, and before a
//!   `fallback_service`, a layer cannot distinguish such a request from one that will be a 404. The
//!   request passes without a lock, and a message is logged if its response is below 400.
//!
//! # 404 and 405
//!
//! A request that matches no route takes no lock by a path parameter, by a route or by another key
//! that it lacks. It does take a lock by a key that it has (`by_ip`, a header).
//!
//! A request with a wrong method takes a lock for a moment under `Router::layer`, because axum
//! selects the method further inside. While the resource is busy, or always with `background`, it
//! gets the busy response or is deferred: a 202, and later a stored 405. If that matters, put the
//! layers on the methods:
//!
//! ```no_run
//! use axum::{Router, routing::post};
//! use lockgate_axum::{DeferLayer, LockLayer};
//!
//! async fn refund() {}
//!
//! let method = post(refund)
//!     .route_layer(LockLayer::by_path_param_as::<u64>("id"))
//!     .route_layer(DeferLayer::new());
//! let app: Router = Router::new().route("/orders/{id}/refund", method);
//! ```
//!
//! # Client addresses
//!
//! `by_ip` and `by_client` need the peer's address from the server. [`serve()`] provides it; give
//! `axum::serve` an `app.into_make_service_with_connect_info::<SocketAddr>()`.
//!
//! # Disconnects
//!
//! If the client disconnects, hyper drops the request's future, and the lock is released within
//! milliseconds. An upload that the handler does not read hides the disconnect until the handler
//! has ended.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `redis` (default) | stores that several processes share: [`Store::connect`] |
//! | `tls` | TLS to them (`rediss://`) by rustls; the application installs the crypto provider |
//! | `bb8-redis` | `Store::from_pool`: connections from a pool of the application |
//! | `fsck` | `Store::check`: finds and repairs lost requests and wrong counts |
//! | `metrics` | `metrics`: counters, gauges and histograms for a recorder |
//! | `console` | `console`: a page for operators, with actions |
//! | `quorum` | `Store::quorum`: locks over several independent stores |
//! | `seal` | encryption of stored requests, responses and tasks: `Store::with_keyring` |
//! | `webhook` | `Webhooks`: signed webhooks when deferred requests have ended |
//! | `http-replay` | `http_replay`: runs of deferred requests in another process |
//! | `http-replay-tls` | the same over `https` |
//! | `test-kit` | `testing`, for tests of applications; not for production |

// docs.rs shows the required feature of each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
// A panic must not become a response by accident, so these lints warn about possible panics.
// Exceptions state their reason; tests are exempt.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_wrap,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod axum_framework;
#[cfg(feature = "console")]
mod console_routes;
mod extractors;
mod layers;
mod loopback_only;
#[cfg(feature = "console")]
mod operators_only;
mod serve;
mod status_routes;

pub use lockgate::HttpRequestHead;
#[cfg(feature = "seal")]
pub use lockgate::Keyring;
#[cfg(feature = "redis")]
pub use lockgate::StoreBuilder;
pub use lockgate::admin;
#[cfg(feature = "console")]
pub use lockgate::console::{
    BasicAuth, BasicAuthError, ConsoleGuard, GuardRequest, GuardVerdict, LocalOperator,
};
#[cfg(feature = "webhook")]
pub use lockgate::defer::Webhooks;
pub use lockgate::defer::{
    DeferStats, DeferredJobs, JobCursor, JobFilter, JobGroup, JobHead, JobInfo, JobPage,
    JobRequest, JobRun, JobSearchPage, ParseCursorError, PendingRun, RetainedRequest,
    RunAuthorization,
};
#[cfg(feature = "http-replay")]
pub use lockgate::http_replay;
#[cfg(feature = "metrics")]
pub use lockgate::metrics;
pub use lockgate::middleware::GateService;
#[cfg(feature = "test-kit")]
pub use lockgate::testing;
pub use lockgate::{
    AccessLists, AcquireError, BusyStatus, ChargeCappedError, ClientAddress, Clock, Decision,
    DeployedPolicy, Error, ErrorKind, ExtensionSnapshot, FleetReport, HeaderSet, HeldLock,
    HeldLocks, HoldReport, HoldUntil, JobId, JobState, Key, LockBusy, LockGuard, LockLoss,
    LockOutage, LockRequest, LockSet, LockSetRequest, MissingAddress, OnFailure, OnLoss,
    ParseIdError, Policy, PolicyDecision, PolicyReport, PolicyStatus, ProcessReport, Quota,
    QuotaBuilder, RateHeaders, RateLimitOutage, RateLimiter, RateRefusal, RateStatus,
    RefusalReason, RefusedSubject, ReleaseStatus, Reply, RequestUser, RunCancellation, RunningJob,
    SharedSecret, SilentNode, Store, StoreStats, TraceContext, TracePropagator, TraceRelation,
    WaitReport, WorkerReport, queue,
};
#[cfg(feature = "fsck")]
pub use lockgate::{CheckFinding, CheckProgress, CheckReport, FindingKind, StoreCheck};
#[cfg(feature = "quorum")]
pub use lockgate::{Quorum, QuorumGuard, QuorumRequest, quorum};

pub use self::{
    axum_framework::AxumFramework,
    extractors::{
        CurrentCancellation, CurrentJob, CurrentLock, CurrentLocks, CurrentRate, Fence,
        MissingLayerRejection,
    },
    layers::{DeferLayer, DeferWorker, KeyPart, LockLayer, RateLimitLayer},
    loopback_only::loopback_only,
    serve::{Serve, ServeFuture, serve},
    status_routes::{DeferredRoutes, deferred_routes},
};
#[cfg(feature = "console")]
pub use self::{
    console_routes::{ConsoleRoutes, console},
    operators_only::operators_only,
};
