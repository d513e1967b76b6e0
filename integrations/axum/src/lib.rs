//! lockgate for [axum](https://docs.rs/axum): [`RateLimitLayer`], [`LockLayer`] and [`DeferLayer`].
//!
//! ```no_run
//! use std::{net::SocketAddr, time::Duration};
//!
//! use axum::{Extension, Router, routing::post};
//! use lockgate_axum::{
//!     DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
//! };
//!
//! # async fn pay() {}
//! # async fn refund() {}
//! # async fn shutdown() {}
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
//!     .merge(deferred_routes("/deferred").store(&store)) // where clients ask how it went
//!     .layer(RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60))))
//!     .layer(Extension(store.clone())); // one store for all three
//!
//! let worker = DeferWorker::new(&store, app.clone()); // runs what was deferred
//! let worker = tokio::spawn(worker.run(shutdown()));
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
//!     .with_graceful_shutdown(shutdown())
//!     .await?;
//! worker.await?; // what runs may end
//! store.shutdown(Duration::from_secs(1)).await; // what was held last is given back
//! # Ok(()) }
//! ```
//!
//! # The end
//!
//! Here `shutdown` is a future that resolves on SIGTERM. The server and the worker stop by it beside each other; `main` waits
//! for both, and then for [`Store::shutdown`]. A worker whose handle is thrown away ends with the runtime, as in a crash: a
//! POST that it was running becomes a dead letter.
//!
//! # In the handler
//!
//! What the layers know of a request is an extractor: [`Fence`], [`CurrentLock`], [`CurrentLocks`], [`CurrentRate`], and
//! [`CurrentJob`] for a deferred request that runs now. The fence belongs beside the data: a process that was paused past its
//! lease goes on as if it still held the lock, and the database is where that can be seen.
//!
//! ```no_run
//! use axum::{extract::Path, http::StatusCode};
//! use lockgate_axum::Fence;
//!
//! async fn pay(Path(id): Path<u64>, Fence(fence): Fence) -> StatusCode {
//!     // UPDATE orders SET state = 'paid', fence = $2 WHERE id = $1 AND fence <= $2
//!     match update(id, fence).await {
//!         0 => StatusCode::CONFLICT, // somebody has had the lock since
//!         _ => StatusCode::NO_CONTENT,
//!     }
//! }
//! # async fn update(_: u64, _: u64) -> u64 { 1 }
//! ```
//!
//! # Order
//!
//! From the outside in: authentication, rate limit, defer, lock, handler. In axum the layer added last
//! is the outermost. A `DeferLayer` inside a `LockLayer` is answered with 500 and a log line.
//!
//! Merge first, and put what is for all around it afterwards: of two routers that are merged the second has the fallback, so
//! a limit around the first alone does not count the 404s.
//!
//! # Where to put a layer
//!
//! Around the routes that it is for, or a `Router` of them. Before a service that is nested (`nest_service`) a layer knows no
//! route, and answers with 500 and a log line that says so, as does a quota by route; put it around what is nested, where
//! the bare prefix counts as a route without parameters, whether or not anything is there. In a `ServiceBuilder` between the two,
//! and before a `fallback_service`, it cannot tell such a request from one that will be a 404: it passes without a lock, and
//! the log says so if it was answered with less than 400.
//!
//! # 404 and 405
//!
//! A request that matches no route takes no lock by a path parameter, a route, or anything else that it lacks; by a key that it has
//! (`by_ip`, a header field) it does. One with a wrong method takes one, for a moment, under
//! `Router::layer`, because axum decides about methods further in; and while the resource is busy it is told so, or deferred:
//! a 202, and later a stored 405. Where that matters, put the layers on the methods:
//! `post(handler).route_layer(LockLayer::by_path_param_as::<u64>("id")).route_layer(DeferLayer::new())`.
//!
//! # Client addresses
//!
//! `by_ip` and `by_client` need the server to say who is calling: serve with
//! `app.into_make_service_with_connect_info::<SocketAddr>()`.
//!
//! # Disconnects
//!
//! When the client goes away, hyper drops the request's future, and the lock is given back within
//! milliseconds; an upload that nobody reads hides it until the handler has ended.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `redis` (default) | stores beyond one process: [`Store::connect`] |
//! | `tls` | TLS on the way to them (`rediss://`), by rustls; the application installs the crypto provider |
//! | `bb8-redis` | `Store::from_pool`: connections out of a pool that the application has |
//! | `fsck` | `Store::check`: a pass that finds requests without a place and wrong counts, and mends them |
//! | `quorum` | `Store::quorum`: locks over several independent stores |
//! | `seal` | deferred requests, their responses and tasks are sealed at rest: `Keyring`, `Store::with_keyring` |
//! | `callback` | `Webhooks`: signed calls when deferred requests have ended |
//! | `http-replay` | `remote`: deferred requests that run in another process; `http-replay-tls`: by https |
//! | `test-kit` | `testing`, for tests of applications; not for what is deployed |

// docs.rs says beside each item which feature it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// A panic is an answer that nobody has decided on. Where one can't be, each place says why; tests may as they like.
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
mod extractors;
mod layers;
mod status_routes;

#[cfg(feature = "seal")]
pub use lockgate::Keyring;
#[cfg(feature = "redis")]
pub use lockgate::StoreBuilder;
#[cfg(feature = "webhook")]
pub use lockgate::defer::Webhooks;
pub use lockgate::defer::{
    DeferStats, DeferredJobs, JobCursor, JobHead, JobInfo, JobPage, JobRequest, JobRun,
    ParseCursorError, PendingRun, RetainedRequest, RunAuthorization,
};
pub use lockgate::gate::HttpRequestHead;
pub use lockgate::middleware::GateService;
#[cfg(feature = "http-replay")]
pub use lockgate::remote;
#[cfg(feature = "test-kit")]
pub use lockgate::testing;
pub use lockgate::{
    AccessLists, AcquireError, BusyStatus, ChargeCappedError, ClientAddress, Clock, Decision,
    Error, ErrorKind, ExtensionSnapshot, HeaderSet, HeldLock, HeldLocks, HoldUntil, JobId,
    JobState, Key, LockBusy, LockGuard, LockLoss, LockOutage, LockRequest, LockSet, LockSetRequest,
    MissingAddress, OnFailure, OnLoss, Policy, PolicyDecision, PolicyStatus, Quota, QuotaBuilder,
    RateHeaders, RateLimitOutage, RateLimiter, RateRefusal, RateStatus, RefusalReason,
    ReleaseStatus, Reply, RunningJob, SharedSecret, Store, queue,
};
#[cfg(feature = "fsck")]
pub use lockgate::{CheckFinding, CheckReport, FindingKind, StoreCheck};
#[cfg(feature = "quorum")]
pub use lockgate::{Quorum, QuorumGuard, QuorumRequest, quorum};

pub use self::{
    extractors::{
        CurrentJob, CurrentLock, CurrentLocks, CurrentRate, Fence, MissingLayerRejection,
    },
    layers::{
        DeferLayer, DeferWorker, DeferredRoutes, KeyPart, LockLayer, RateLimitLayer,
        deferred_routes,
    },
};
