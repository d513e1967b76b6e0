//! Extractors for handlers: locks, fence, quota and job of a request.
//!
//! The value inside each of them is also available as an `Extension` of its type. Each extractor
//! can be optional, for a handler that is behind the layer on some routes only.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;
use lockgate::{
    HeldLock, HeldLocks, RateStatus, Reply, RunningJob, middleware::response_from_reply,
};

/// The lock that this request runs under. If there are several, it is the first one of the
/// innermost layer.
#[derive(Debug, Clone)]
pub struct CurrentLock(pub HeldLock);

/// All locks that this request runs under.
#[derive(Debug, Clone)]
pub struct CurrentLocks(pub HeldLocks);

/// The fence of [`CurrentLock`], larger than the fence of every earlier grant.
///
/// Rejected if the request was admitted without a lock because the store was unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence(pub u64);

/// The quota that this request was charged to.
///
/// Rejected if the layer is on the route but did not charge the request:
///
/// - in a deferred run, which was charged when it was accepted
/// - for a client on the allow list
/// - for a CORS preflight
/// - while the store is unavailable and each process counts on its own
///
/// Extract an `Option<CurrentRate>` on a route that may be deferred, or that has to work during an
/// outage.
#[derive(Debug, Clone)]
pub struct CurrentRate(pub RateStatus);

/// The job of the deferred request that runs now. Usually optional, since a request that found its
/// lock free has none.
#[derive(Debug, Clone)]
pub struct CurrentJob(pub RunningJob);

/// Rejection of an extractor: its layer is not on the route, or has no value for this request. The
/// response is 500 with a problem document, and a message is logged.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct MissingLayerRejection;

impl IntoResponse for MissingLayerRejection {
    fn into_response(self) -> Response {
        response_from_reply::<Body>(Reply::misconfigured()).map(Body::new)
    }
}

macro_rules! impl_extractor {
    ($name:ident, $required_layer:literal, |$parts:ident| $find:expr) => {
        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = MissingLayerRejection;

            async fn from_request_parts(
                $parts: &mut Parts,
                _: &S,
            ) -> Result<Self, MissingLayerRejection> {
                $find.ok_or_else(|| {
                    lockgate::driver::log_missing_layer(stringify!($name), $required_layer);
                    MissingLayerRejection
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

impl_extractor!(CurrentLock, "a LockLayer", |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentLock));
impl_extractor!(CurrentLocks, "a LockLayer", |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentLocks));
impl_extractor!(Fence, "a LockLayer that refuses requests during outages", |parts| parts
    .extensions
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
impl_extractor!(
    CurrentRate,
    "a RateLimitLayer that charges the request; none does in a deferred run, for a client on the \
     allow list, or while the store is unavailable; take Option<CurrentRate> there",
    |parts| parts.extensions.get().cloned().map(CurrentRate)
);
impl_extractor!(CurrentJob, "to run as a deferred request", |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentJob));

#[cfg(test)]
mod tests {
    use axum::{Router, body::to_bytes, extract::Request, routing::get};
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn extractor_without_its_layer_is_500() {
        async fn require_lock(_: CurrentLock) -> &'static str {
            panic!("there is no lock")
        }
        async fn optional_lock(lock: Option<CurrentLock>) -> String {
            format!("{lock:?}")
        }
        let app = Router::new()
            .route("/required", get(require_lock))
            .route("/optional", get(optional_lock));
        let get_response = async |path| {
            let request = Request::get(path).body(Body::empty()).expect("valid");
            let (parts, body) =
                app.clone().oneshot(request).await.expect("it does not fail").into_parts();
            let body = to_bytes(body, 1000).await.expect("short");
            (parts, String::from_utf8(body.into()).expect("text"))
        };
        let (head, problem) = get_response("/required").await;
        assert_eq!(head.status, 500);
        assert_eq!(head.headers["content-type"], "application/problem+json");
        assert!(problem.contains("\"status\":500"), "{problem}");
        assert!(!problem.contains("LockLayer"), "the client learns nothing: {problem}");
        let (head, body) = get_response("/optional").await;
        assert_eq!((head.status.as_u16(), &*body), (200, "None"));
    }
}
