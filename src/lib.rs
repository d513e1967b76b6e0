//! Rate limits, per-resource locks and deferred requests, shared by all processes of a service over
//! one Redis.
//!
//! Applications use the crate of their framework, `lockgate-axum` or `lockgate-actix-web`, which
//! has this crate's layers for the requests of that framework. This crate is useful by itself for
//! locks and quotas outside of requests, for the [tower driver](middleware) under plain hyper or
//! tonic, and for drivers of other frameworks.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use lockgate::{Policy, Quota, Store};
//!
//! let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
//! let quota = Quota::requests(100).per(Duration::from_secs(60));
//! let limit = store.rate_limiter(Policy::new(quota).with_name("refunds"));
//! if limit.check("customer:7", 1).await?.is_admitted() {
//!     let guard = store.lock("order:7").wait(Duration::from_secs(5)).acquire().await?;
//!     println!("refund order 7 with fence {}", guard.fence());
//!     guard.release().await;
//! }
//! # Ok(()) }
//! ```
//!
//! A [`Store`] is Redis or Valkey ([`Store::connect`]), or this process's memory
//! ([`Store::memory`]).
//!
//! # The three layers
//!
//! | layer | acts if | default response |
//! |---|---|---|
//! | [`RateLimitLayer`] | the client's quota is used up | 429 with `Retry-After` and `RateLimit` |
//! | [`LockLayer`] | another request holds the lock of the resource | 409 with `Retry-After` |
//! | [`DeferLayer`] | the lock inside it is busy | 202 with `Location`; the request runs later |
//!
//! The order from the outside in is authentication, rate limit, defer, lock, handler.
//!
//! [`RateLimitLayer`]: rate_limit::RateLimitLayer
//! [`LockLayer`]: lock::LockLayer
//! [`DeferLayer`]: defer::DeferLayer
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`rate_limit`] | quotas: a number of requests per window and client |
//! | [`lock`] | one holder per resource, and a wait queue across processes |
//! | [`defer`] | requests that meet a busy resource are stored, and run later |
//! | [`queue`] | queues of typed tasks, for now or later |
//! | `quorum` | a lock over several independent stores (feature `quorum`) |
//! | [`driver`] | building blocks for drivers of other frameworks |
//! | [`middleware`] | the tower driver |
//!
//! # Where to go next
//!
//! - The front pages of [lockgate-axum](https://docs.rs/lockgate-axum) and
//!   [lockgate-actix-web](https://docs.rs/lockgate-actix-web): a complete server each.
//! - [`lock`]: fences, several locks and shared locks. [`rate_limit`]: the kinds of quotas.
//!   [`defer`]: the meaning of a 202. [`queue`]: tasks and workers.
//! - [`middleware`]: a service without a framework.
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
//! # Features
//!
//! - `redis` (default): stores beyond one process.
//! - `tls`: TLS connections to them (`rediss://`), by rustls; the application installs the crypto
//!   provider.
//! - `bb8-redis`: `Store::from_pool`, connections from the application's pool.
//! - `http-replay`: `http_replay`, runs of deferred requests in another process;
//!   `http-replay-tls`: over https.
//! - `fsck`: `Store::check`, which finds jobs in no state or in two, stray keys, and wrong counts.
//!   The package `lockgate-cli` has it as `lockgate check`.
//! - `console`: `console`, the operators' console, which the integrations mount.
//! - `quorum`: `Store::quorum`, locks over several independent stores.
//! - `seal`: deferred requests, their responses and tasks are encrypted at rest
//!   ([`Store::with_keyring`](Store)).
//! - `serve`: `driver::ServerLifecycle`, on which `serve` of the integrations is based.
//! - `tower` (default): [`middleware`].
//! - `webhook`: `defer::Webhooks`, signed POST requests that report the end of deferred requests.
//! - `test-kit`: `lockgate::testing`, for tests of applications; not for production.

// docs.rs shows the feature that each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// A panic would be an undefined response to a request. Exceptions from these lints give their
// reason; tests may panic.
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
#![cfg_attr(not(feature = "redis"), allow(dead_code, reason = "used by Redis stores only"))]

pub mod admin;
mod clock;
#[cfg(feature = "console")]
pub mod console;
pub mod defer;
pub mod driver;
mod duration_text;
mod durations;
mod error;
mod gate;
#[cfg(feature = "http-replay")]
pub mod http_replay;
mod instruments;
mod json_time;
mod key;
pub mod lock;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "tower")]
pub mod middleware;
mod outage;
#[cfg(any(feature = "webhook", feature = "http-replay"))]
mod outbound;
pub mod queue;
#[cfg(feature = "quorum")]
pub mod quorum;
pub mod rate_limit;
mod reply;
mod seal;
#[cfg(feature = "serve")]
mod serving;
mod store;
#[cfg(any(test, feature = "test-kit"))]
pub mod testing;
mod throttle;
mod trace;

#[cfg(feature = "quorum")]
pub use self::quorum::{Quorum, QuorumGuard, QuorumRequest};
#[cfg(feature = "seal")]
pub use self::seal::Keyring;
#[cfg(feature = "redis")]
pub use self::store::StoreBuilder;
#[cfg(any(test, feature = "fsck"))]
pub use self::store::{CheckFinding, CheckProgress, CheckReport, FindingKind, StoreCheck};
pub use self::{
    clock::Clock,
    defer::{ExtensionSnapshot, RequestUser},
    error::{Error, ErrorKind, ParseIdError},
    gate::{ClientAddress, HttpRequestHead, MissingAddress, RunningJob},
    instruments::{DeployedPolicy, PolicyReport, RefusedSubject, StoreStats},
    key::Key,
    lock::{
        AcquireError, BusyStatus, HeldLock, HeldLocks, HoldUntil, LockBusy, LockGuard, LockRequest,
        LockSet, LockSetRequest, OnLoss, ReleaseStatus, SharedSecret,
    },
    outage::{LockOutage, RateLimitOutage},
    rate_limit::{
        AccessLists, ChargeCappedError, Decision, Policy, PolicyDecision, PolicyStatus, Quota,
        QuotaBuilder, RateHeaders, RateLimiter, RateRefusal, RateStatus, RefusalReason,
    },
    reply::{HeaderSet, Reply, SharedReply},
    store::{
        FleetReport, HoldReport, JobId, JobState, LockLoss, OnFailure, ProcessReport,
        RunCancellation, SilentNode, Store, WaitReport, WorkerReport,
    },
    trace::{TraceContext, TracePropagator, TraceRelation},
};
