//! Rate limits, per-resource locks and deferred requests for
//! [actix-web](https://docs.rs/actix-web), shared by all processes of a service over one Redis.
//!
//! `app` goes into `App::new().configure(app(&store))`. `worker` runs deferred requests through the
//! same routes, with the same data:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use actix_web::web;
//! use lockgate_actix_web::{
//!     DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
//! };
//!
//! fn app(store: &Store) -> impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static {
//!     let store = web::Data::new(store.clone()); // and the state of your handlers
//!     move |config| {
//!         let refund = web::resource("/orders/{id}/refund")
//!             .route(web::post().to(|| async { "refunded" }))
//!             .wrap(LockLayer::by_path_param_as::<u64>("id"))
//!             .wrap(DeferLayer::new())
//!             .wrap(RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60))));
//!         config
//!             .app_data(store.clone()) // not on the `App`: the worker has one of its own
//!             .service(refund)
//!             .service(deferred_routes("/deferred"));
//!     }
//! }
//!
//! fn worker(store: &Store) -> DeferWorker {
//!     DeferWorker::new(store, app(store)) // serve(listener, ..).worker(worker(&store))
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
//! use std::{net::TcpListener, time::Duration};
//!
//! use actix_web::{App, web};
//! use lockgate_actix_web::{
//!     DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
//! };
//!
//! # async fn pay() -> &'static str { "" }
//! # async fn refund() -> &'static str { "" }
//! fn orders(store: &Store) -> impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static {
//!     let store = web::Data::new(store.clone()); // and the state of your handlers
//!     move |config| {
//!         let pay = web::resource("/orders/{id}/pay")
//!             .post(pay)
//!             .wrap(LockLayer::by_path_param_as::<u64>("id")); // 409 while another change runs
//!         let refund = web::resource("/orders/{id}/refund")
//!             .post(refund)
//!             .wrap(LockLayer::by_path_param_as::<u64>("id"))
//!             .wrap(DeferLayer::new()); // 202 instead of 409
//!         config.app_data(store.clone()).service(pay).service(refund);
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
//! let orders = orders(&store);
//! let worker = DeferWorker::new(&store, orders.clone()); // runs the deferred requests
//!
//! let limit = RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60)));
//! let app = move || {
//!     App::new()
//!         .configure(orders.clone()) // with the store of all three
//!         .service(deferred_routes("/deferred"))
//!         .wrap(limit.clone()) // one layer for all threads
//! };
//! let listener = TcpListener::bind("127.0.0.1:8080")?;
//! lockgate_actix_web::serve(listener, app).worker(worker).await?; // until SIGTERM or ctrl-c
//! # Ok(()) }
//! ```
//!
//! The worker has the data of `orders`, and nothing of the server's `App`. A handler that takes
//! a `web::Data` of `App::app_data` succeeds in the server and fails in the worker, which logs it.
//! The configuration of extractors, such as `JsonConfig`, is missing there as well.
//! [`DeferWorker::from_app`] gives the worker a whole `App`.
//!
//! # Shutdown
//!
//! [`serve()`] ends everything in order: it stops accepting connections and claiming jobs, lets
//! open requests and runs end for 10 s ([`drain`](Serve::drain)), cuts off the rest, and releases
//! the last locks.
//!
//! With an `HttpServer` of your own, do the same yourself: resolve its `shutdown_signal` and the
//! one of [`DeferWorker::run`] at the same time, await both, and then [`Store::shutdown`]. Without
//! `shutdown_signal`, `HttpServer` handles signals itself, and the worker does not learn of them. A
//! worker that is not awaited ends with the runtime, as in a crash: a POST that it was running
//! becomes a dead letter.
//!
//! A direct run ([`DeferLayer::idempotent_direct`]) that has lost its client continues on its
//! thread of the server. `serve` waits for it; an `HttpServer` does not: let `shutdown_signal` wait
//! for [`Store::wait_for_direct_runs`] after the signal. Such runs need a `LocalSet`, as
//! `HttpServer` and `#[actix_web::test]` provide one.
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
//! use actix_web::{HttpResponse, web};
//! use lockgate_actix_web::Fence;
//!
//! async fn pay(id: web::Path<u64>, Fence(fence): Fence) -> HttpResponse {
//!     // UPDATE orders SET state = 'paid', fence = $2 WHERE id = $1 AND fence <= $2
//!     match update(*id, fence).await {
//!         0 => HttpResponse::Conflict().finish(), // a newer holder has written
//!         _ => HttpResponse::NoContent().finish(),
//!     }
//! }
//! # async fn update(_: u64, _: u64) -> u64 { 1 }
//! ```
//!
//! # Order of the layers
//!
//! From the outside in: authentication, rate limit, defer, lock, handler. In actix-web the layer
//! wrapped last is the outermost. A `DeferLayer` inside a `LockLayer` gets 500 and a log message.
//!
//! # Placement of a layer
//!
//! All layers can wrap a `Route`, a `Resource`, a `Scope` or an `App`, and derive the same key in
//! each place.
//!
//! Around a route or a resource the layer knows the match. Around a scope or an app it runs before
//! the router, and uses the first pattern that fits the path, without regard to guards and to
//! further patterns of a resource.
//!
//! - If guards distinguish scopes with the same prefix, wrap the resources: the layer may take a
//!   path of the second scope for a 404. Such a request passes without a lock, and a message is
//!   logged if its response is below 400.
//! - A middleware that changes the path, such as `NormalizePath`, must be outside the layers.
//!   Otherwise they take a path that it turns into a route for a 404.
//!
//! # 404 and 405
//!
//! A request that matches no route takes no lock by a path parameter, by a route or by another key
//! that it lacks. It does take a lock by a key that it has (`by_ip`, a header, a parameter of the
//! scope).
//!
//! A request with a wrong method takes a lock for a moment around a resource, because actix selects
//! the method further inside. While the resource is busy, or always with `background`, it gets the
//! busy response or is deferred: a 202, and later a stored 405. If that matters, wrap the route:
//!
//! ```no_run
//! use actix_web::{App, web};
//! use lockgate_actix_web::{DeferLayer, LockLayer};
//!
//! async fn refund() -> &'static str {
//!     ""
//! }
//!
//! let route = web::post()
//!     .to(refund)
//!     .wrap(LockLayer::by_path_param_as::<u64>("id"))
//!     .wrap(DeferLayer::new());
//! let app = App::new().route("/orders/{id}/refund", route);
//! ```
//!
//! # One layer for all threads
//!
//! `HttpServer::new` calls its closure once for each thread. State that a layer keeps itself, such
//! as the quotas of [`quota_by`](RateLimitLayer::quota_by), then exists once for each thread too:
//! create such a layer outside the closure and clone it inside. Counters are in the store,
//! independent of where the layer was created.
//!
//! # Path parameters
//!
//! A key is the decoded value, as `web::Path` passes it to the handler; a value that is not valid
//! UTF-8 gets 400. `%2F` is a slash in a value and never divides the path, as in axum.
//!
//! # Disconnects
//!
//! Set `HttpServer::h1_allow_half_closed(false)`, as [`serve()`] does. By default actix treats a
//! client that has closed its connection as one that still listens, and lets the handler end; the
//! lock is released only then. With the setting the request's future is dropped, and the lock is
//! released within milliseconds. A large upload that the handler does not read hides the disconnect
//! until the handler has ended.
//!
//! A direct run with an idempotency key continues in any case ([`DeferLayer::idempotent_direct`]).
//!
//! Over HTTP/2 actix spawns each call and does not cancel it, with any setting. A handler without
//! its client runs to its end or to `max_hold`, and a request in a wait queue runs when it gets the
//! lock.
//!
//! # Stopped requests
//!
//! A handler that loses its lock is dropped, unless [`OnLoss`] is set otherwise, and actix's
//! `HttpRequest` with it. The response is therefore an [`actix_web::Error`] until it reaches the
//! server: middlewares between server and layer see an `Err`, as from `error::ErrorConflict`.
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

mod actix_framework;
mod app_replayer;
#[cfg(feature = "console")]
mod console_routes;
mod defer_layer;
mod defer_worker;
mod detached_body;
mod detached_call;
mod early_response;
mod extractors;
mod gate_middleware;
mod local_gate_driver;
mod lock_layer;
mod loopback_only;
mod measured_payload;
mod missing_extractor_config;
mod missing_handler_value;
#[cfg(feature = "console")]
mod operators_only;
mod parked_payload;
mod rate_limit_layer;
mod reply_to_response;
mod request_view;
mod response_and_error_headers;
mod route_pattern_and_params;
mod serve;
mod status_routes;
mod ticketed_body;
mod unsent_body;

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
    actix_framework::{ActixFramework, KeyPart},
    defer_layer::DeferLayer,
    defer_worker::DeferWorker,
    extractors::{
        CurrentCancellation, CurrentJob, CurrentLock, CurrentLocks, CurrentRate, Fence,
        MissingLayerRejection,
    },
    gate_middleware::GateMiddleware,
    lock_layer::LockLayer,
    loopback_only::loopback_only,
    rate_limit_layer::RateLimitLayer,
    serve::{Serve, ServeFuture, serve},
    status_routes::{DeferredRoutes, deferred_routes},
};
#[cfg(feature = "console")]
pub use self::{
    console_routes::{ConsoleRoutes, console},
    operators_only::operators_only,
};
