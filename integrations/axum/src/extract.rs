//! Extractors: what the layers know of a request, for its handler.
//!
//! Each is there as an `Extension` of the type inside it too, and each can be optional, for handlers
//! that stand behind the layer on one route and not on another.

use std::convert::Infallible;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http::request::Parts;
use lockgate::{Deferred, HeldLock, HeldLocks, RateStatus};

/// The lock this request runs under; the first that the innermost layer names, if there are several.
#[derive(Debug, Clone)]
pub struct CurrentLock(pub HeldLock);

/// All locks this request runs under.
#[derive(Debug, Clone)]
pub struct CurrentLocks(pub HeldLocks);

/// The fence of the lock this request runs under, the one of [`CurrentLock`]: larger than that of every earlier grant. Rejected if
/// the store was away and the request was let through without a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence(pub u64);

/// The quota this request was charged to.
#[derive(Debug, Clone)]
pub struct CurrentRate(pub RateStatus);

/// The deferred request that runs now. Usually optional: a request that met a free lock has none.
#[derive(Debug, Clone)]
pub struct CurrentJob(pub Deferred);

/// Rejection: the layer that makes this value known is not on the route. 500, and a log line.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct NotInstalled;

impl IntoResponse for NotInstalled {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

macro_rules! extractor {
    ($name:ident, $layer:literal, |$parts:ident| $find:expr) => {
        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = NotInstalled;

            async fn from_request_parts($parts: &mut Parts, _: &S) -> Result<Self, NotInstalled> {
                $find.ok_or_else(|| {
                    let extractor = stringify!($name);
                    tracing::error!(extractor, "nothing to extract: the route needs {}", $layer);
                    NotInstalled
                })
            }
        }

        impl<S: Send + Sync> OptionalFromRequestParts<S> for $name {
            type Rejection = Infallible;

            async fn from_request_parts(
                $parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok($find)
            }
        }
    };
}

extractor!(CurrentLock, "a LockLayer", |parts| parts.extensions.get().cloned().map(CurrentLock));
extractor!(CurrentLocks, "a LockLayer", |parts| parts.extensions.get().cloned().map(CurrentLocks));
extractor!(Fence, "a LockLayer that refuses while the store is away", |parts| parts
    .extensions
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
extractor!(CurrentRate, "a RateLimitLayer", |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentRate));
extractor!(CurrentJob, "to run deferred", |parts| parts.extensions.get().cloned().map(CurrentJob));
