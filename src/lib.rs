//! Rate limits, per-resource locks and deferred requests over one shared, Redis-backed core.
//!
//! Applications use the crate of their framework, `lockgate-axum` or `lockgate-actix-web`, which
//! has this crate's layers for the requests of that framework. This crate is useful by itself for
//! locks and quotas outside of requests, for the [tower driver](middleware) under plain hyper or
//! tonic, and for drivers of other frameworks.
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
//! A [`Store`] is Redis or Valkey ([`Store::connect`]), or this process's memory
//! ([`Store::memory`]).
//!
//! # Features
//!
//! - `redis` (default): stores beyond one process.
//! - `tls`: TLS connections to them (`rediss://`), by rustls; the application installs the crypto
//!   provider.
//! - `bb8-redis`: `Store::from_pool`, connections from the application's pool.
//! - `http-replay`: `remote`, runs of deferred requests in another process; `http-replay-tls`: over
//!   https.
//! - `fsck`: `Store::check`, which finds jobs in no state or in two, stray keys, and wrong counts.
//!   The package `lockgate-cli` has it as the program `lockgate-fsck`.
//! - `quorum`: `Store::quorum`, locks over several independent stores.
//! - `seal`: deferred requests, their responses and tasks are encrypted at rest
//!   ([`Store::with_keyring`](Store)).
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

mod clock;
pub mod defer;
pub mod driver;
mod error;
mod gate;
mod key;
pub mod lock;
#[cfg(feature = "tower")]
pub mod middleware;
mod outage;
#[cfg(any(feature = "webhook", feature = "http-replay"))]
mod outbound;
pub mod queue;
#[cfg(feature = "quorum")]
pub mod quorum;
pub mod rate_limit;
#[cfg(feature = "http-replay")]
pub mod remote;
mod reply;
mod seal;
mod store;
#[cfg(any(test, feature = "test-kit"))]
pub mod testing;
mod throttle;

#[cfg(feature = "quorum")]
pub use self::quorum::{Quorum, QuorumGuard, QuorumRequest};
#[cfg(feature = "seal")]
pub use self::seal::Keyring;
#[cfg(feature = "redis")]
pub use self::store::StoreBuilder;
#[cfg(any(test, feature = "fsck"))]
pub use self::store::{CheckFinding, CheckReport, FindingKind, StoreCheck};
pub use self::{
    clock::Clock,
    defer::ExtensionSnapshot,
    error::{Error, ErrorKind},
    gate::{ClientAddress, HttpRequestHead, KeySource, MissingAddress, RunningJob},
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
    store::{JobId, JobState, LockLoss, OnFailure, Store},
};
