//! Extractors: what the layers know of a request, for its handler.
//!
//! Each is there in the request's extensions as the type inside it too, and each can be optional, for
//! handlers that stand behind the layer on one route and not on another.

use std::{
    fmt,
    future::{Ready, ready},
};

use actix_web::{
    FromRequest, HttpMessage as _, HttpRequest, HttpResponse, ResponseError, dev::Payload,
    http::StatusCode,
};
use lockgate::{Deferred, HeldLock, HeldLocks, RateStatus, Reply};

use crate::reply::response;

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

/// Rejection: the layer that makes this value known is not on the route. 500 as problem+json, and a log line.
#[derive(Debug, Clone, Copy)]
pub struct NotInstalled {
    extractor: &'static str,
    needs: &'static str,
}

impl fmt::Display for NotInstalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the route needs {}", self.extractor, self.needs)
    }
}

impl std::error::Error for NotInstalled {}

impl ResponseError for NotInstalled {
    fn status_code(&self) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    // Logged here and not where it arises: `Option<T>` comes this way too, and drops it.
    fn error_response(&self) -> HttpResponse {
        let Self { extractor, needs } = self;
        tracing::error!(extractor, "nothing to extract: the route needs {needs}");
        response(Reply::wiring_fault())
    }
}

macro_rules! extractor {
    ($name:ident, $needs:literal, |$request:ident| $find:expr) => {
        impl FromRequest for $name {
            type Error = NotInstalled;
            type Future = Ready<Result<Self, NotInstalled>>;

            fn from_request($request: &HttpRequest, _: &mut Payload) -> Self::Future {
                ready($find.ok_or(NotInstalled { extractor: stringify!($name), needs: $needs }))
            }
        }
    };
}

extractor!(CurrentLock, "a LockLayer", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentLock));
extractor!(CurrentLocks, "a LockLayer", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentLocks));
extractor!(Fence, "a LockLayer that refuses while the store is away", |request| request
    .extensions()
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
extractor!(CurrentRate, "a RateLimitLayer", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentRate));
extractor!(CurrentJob, "to run deferred", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentJob));
