//! lockgate for [actix-web](https://docs.rs/actix-web): [`RateLimitLayer`], [`LockLayer`] and
//! [`DeferLayer`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use actix_web::{App, HttpServer, web};
//! use lockgate_actix_web::{
//!     DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
//! };
//!
//! # async fn pay() -> &'static str { "" }
//! # async fn refund() -> &'static str { "" }
//! fn orders(config: &mut web::ServiceConfig) {
//!     let pay = web::resource("/orders/{id}/pay")
//!         .post(pay)
//!         .wrap(LockLayer::by_path_param_as::<u64>("id")); // 409 while another change runs
//!     let refund = web::resource("/orders/{id}/refund")
//!         .post(refund)
//!         .wrap(LockLayer::by_path_param_as::<u64>("id"))
//!         .wrap(DeferLayer::new()); // 202 instead of 409
//!     config.service(pay).service(refund);
//! }
//!
//! # async fn shutdown() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
//! let worker = DeferWorker::new(&store, orders); // runs what was deferred
//! let worker = actix_web::rt::spawn(worker.run(shutdown()));
//!
//! let limit = RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60)));
//! let of_app = store.clone();
//! HttpServer::new(move || {
//!     App::new()
//!         .configure(orders)
//!         .service(deferred_routes("/deferred").store(&of_app))
//!         .wrap(limit.clone()) // one layer for all threads
//!         .app_data(web::Data::new(of_app.clone())) // one store for all three
//! })
//! .h1_allow_half_closed(false) // frees the locks of clients that leave
//! .shutdown_signal(shutdown())
//! .bind(("127.0.0.1", 8080))?
//! .run()
//! .await?;
//! worker.await?; // what runs may end
//! store.shutdown(Duration::from_secs(1)).await; // what was held last is given back
//! # Ok(()) }
//! ```
//!
//! # The end
//!
//! Here `shutdown` is a future that resolves on SIGTERM. Without it `HttpServer` hears signals by itself, and the worker is
//! told nothing. The server and the worker stop by it beside each other; `main` waits for both, and then for
//! [`Store::shutdown`]. A worker whose handle is thrown away ends with the runtime, as in a crash: a POST that it was running
//! becomes a dead letter.
//!
//! A request that is remembered ([`DeferLayer::idempotent_direct`]) and whose client has left runs on its thread of the server,
//! which does not wait for it: have `shutdown_signal` wait for [`Store::wait_for_direct_runs`] after the signal. Such requests need
//! a `LocalSet`, as `HttpServer` and `#[actix_web::test]` have one.
//!
//! # In the handler
//!
//! What the layers know of a request is an extractor: [`Fence`], [`CurrentLock`], [`CurrentLocks`], [`CurrentRate`], and
//! [`CurrentJob`] for a deferred request that runs now. The fence belongs beside the data: a process that was paused past its
//! lease goes on as if it still held the lock, and the database is where that can be seen.
//!
//! ```no_run
//! use actix_web::{HttpResponse, web};
//! use lockgate_actix_web::Fence;
//!
//! async fn pay(id: web::Path<u64>, Fence(fence): Fence) -> HttpResponse {
//!     // UPDATE orders SET state = 'paid', fence = $2 WHERE id = $1 AND fence <= $2
//!     match update(*id, fence).await {
//!         0 => HttpResponse::Conflict().finish(), // somebody has had the lock since
//!         _ => HttpResponse::NoContent().finish(),
//!     }
//! }
//! # async fn update(_: u64, _: u64) -> u64 { 1 }
//! ```
//!
//! # Order
//!
//! From the outside in: authentication, rate limit, defer, lock, handler. In actix-web the layer wrapped
//! last is the outermost. A `DeferLayer` inside a `LockLayer` is answered with 500 and a log line.
//!
//! # Where to wrap
//!
//! All layers go around a `RouteMatch`, a `Resource`, a `RequestScope` or an `App`, and make the same key in each
//! place. Around a route or a resource the layer knows what has matched. Around a scope or an app it
//! stands before the router, and takes the first pattern that fits the path: guards and the further
//! patterns of one resource are not looked at. So where scopes of one prefix are told apart by guards, wrap the resources: the
//! layer may take for a 404 what the second of them has. That passes without a lock, and the log says so if it was answered with less than 400. A middleware that changes the path, such as
//! `NormalizePath`, has to be outside the layers there, or they take for a 404 what it makes a route of.
//!
//! # 404 and 405
//!
//! A request that matches no route takes no lock by a path parameter, a route, or anything else that it lacks; by a key that it has
//! (`by_ip`, a header field, a parameter of the scope) it does. One with a wrong method takes one, for a moment, around a
//! resource, because actix decides about methods further in; and while the resource is busy it is told so, or deferred: a 202,
//! and later a stored 405. Where that matters, wrap the route:
//! `web::post().to(handler).wrap(LockLayer::by_path_param_as::<u64>("id")).wrap(DeferLayer::new())`.
//!
//! # One layer for all threads
//!
//! `HttpServer::new` calls its closure once for each thread. What a layer remembers by itself, such as the quotas of
//! [`quota_by`](RateLimitLayer::quota_by), is then there once for each too: make such a layer outside, and clone it in there.
//! What is counted is in the store, wherever the layer was made.
//!
//! # Path parameters
//!
//! Keys are of the decoded value, as `web::Path` hands it to the handler; bytes that are not UTF-8 are
//! answered with 400. `%2F` is a slash in a value and never divides the path, here as in axum.
//!
//! # Disconnects
//!
//! Set `HttpServer::h1_allow_half_closed(false)`. By default actix takes a client that has closed its
//! connection for one that still listens, and lets the handler end; the lock is given back only then.
//! With the setting the request's future is dropped, and the lock given back within milliseconds; a
//! large upload that nobody reads hides the disconnect until the handler has ended.
//!
//! A request that is remembered goes on in any case ([`DeferLayer::idempotent_direct`]).
//!
//! Over HTTP/2 actix spawns each call by itself and does not look after it, whatever is set: a handler whose client has gone
//! runs to its end or to `max_hold`, and one that waits in line runs when its turn comes.
//!
//! # Requests that are stopped
//!
//! A handler that loses its lock is dropped, unless [`OnLoss`] says otherwise, and actix's `HttpRequest`
//! with it. The answer is therefore an [`actix_web::Error`] until it reaches the server: middlewares of
//! your own between server and layer see an `Err` there, as from `error::ErrorConflict` and the like.
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

mod app_replayer;
mod detached_call;
mod early_response;
mod extractors;
mod gate_middleware;
mod layers;
mod path_param;
mod payload_slot;
mod reply_response;
mod request_view;
mod status_routes;
mod ticketed_body;
mod timed_payload;

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
    gate_middleware::GateMiddleware,
    layers::{
        DeferLayer, DeferWorker, DeferredRoutes, KeyPart, LockLayer, RateLimitLayer,
        deferred_routes,
    },
};
