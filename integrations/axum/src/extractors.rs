//! Extractors for handlers: locks, fence, quota, job and cancellation of a request.
//!
//! The value inside each of them is also available as an `Extension` of its type. Each extractor
//! can be optional, for a handler that is behind the layer on some routes only.

use std::{convert::Infallible, fmt};

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;
use lockgate::{
    HeldLock, HeldLocks, RateStatus, Reply, RunCancellation, RunningJob,
    driver::{GateRequest, MissingValue},
    middleware::{PartsView, response_from_reply},
};

use crate::axum_framework::AxumFramework;

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

/// Tells the handler that an operator cancels the run of its deferred request. Never rejected: in a
/// request that was not deferred, it never fires.
///
/// ```
/// use std::time::Duration;
///
/// use axum::http::StatusCode;
/// use lockgate_axum::CurrentCancellation;
///
/// async fn report(CurrentCancellation(cancellation): CurrentCancellation) -> StatusCode {
///     tokio::select! {
///         () = tokio::time::sleep(Duration::from_secs(60)) => StatusCode::OK,
///         // An error: the run is cancelled. After a success it would be done.
///         () = cancellation.cancelled() => StatusCode::SERVICE_UNAVAILABLE,
///     }
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(report));
/// ```
#[derive(Debug, Clone, Default)]
pub struct CurrentCancellation(pub RunCancellation);

/// Rejection of an extractor: its layer is not on the route, or has no value for this request. The
/// response is 500 with a problem document, and a message is logged that names the fix.
#[derive(Debug, Clone, Copy)]
pub struct MissingLayerRejection {
    extractor: &'static str,
    missing: MissingValue,
}

impl fmt::Display for MissingLayerRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.extractor, self.missing)
    }
}

impl std::error::Error for MissingLayerRejection {}

impl IntoResponse for MissingLayerRejection {
    // Logs here and not where the rejection arises, since a handler may take a `Result`.
    fn into_response(self) -> Response {
        self.missing.log(self.extractor);
        response_from_reply::<Body>(Reply::misconfigured()).map(Body::new)
    }
}

macro_rules! impl_extractor {
    ($name:ident, $missing:expr, |$parts:ident| $find:expr) => {
        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = MissingLayerRejection;

            async fn from_request_parts(
                $parts: &mut Parts,
                _: &S,
            ) -> Result<Self, MissingLayerRejection> {
                if let Some(found) = $find {
                    return Ok(found);
                }
                let missing = $missing(&PartsView::<AxumFramework>::new($parts));
                Err(MissingLayerRejection { extractor: stringify!($name), missing })
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

impl_extractor!(CurrentLock, MissingValue::of_lock, |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentLock));
impl_extractor!(CurrentLocks, MissingValue::of_lock, |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentLocks));
impl_extractor!(Fence, missing_fence, |parts| parts
    .extensions
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
impl_extractor!(CurrentRate, MissingValue::of_charge, |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentRate));
impl_extractor!(CurrentJob, MissingValue::of_job, |parts| parts
    .extensions
    .get()
    .cloned()
    .map(CurrentJob));

impl<S: Send + Sync> FromRequestParts<S> for CurrentCancellation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().map(Self).unwrap_or_default())
    }
}

/// A lock without a fence was admitted without a grant.
fn missing_fence<V: GateRequest>(view: &V) -> MissingValue {
    MissingValue::of_fence(view, view.extension::<HeldLock>().is_some())
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Duration};

    use axum::{
        Router,
        body::to_bytes,
        extract::{Request, connect_info::MockConnectInfo},
        routing::get,
    };
    use lockgate::{AccessLists, Quota, Store};
    use tower::ServiceExt as _;

    use super::*;
    use crate::RateLimitLayer;

    /// The message for a request that passed no layer.
    async fn message_of<T>(method: &str) -> String
    where
        T: FromRequestParts<(), Rejection = MissingLayerRejection>,
    {
        let request = Request::builder().method(method).body(()).expect("valid");
        let (mut parts, ()) = request.into_parts();
        let found = <T as FromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
        found.err().expect("there is nothing to find").to_string()
    }

    #[tokio::test]
    async fn extractor_without_its_layer_names_what_is_missing() {
        let no_lock = "the request holds no lock; put a LockLayer around the route";
        let safe = "the request holds no lock, and a LockLayer locks no GET";
        for (message, extractor, expected) in [
            (message_of::<CurrentLock>("POST").await, "CurrentLock", no_lock),
            (message_of::<CurrentLock>("GET").await, "CurrentLock", safe),
            (message_of::<CurrentLocks>("PUT").await, "CurrentLocks", no_lock),
            (message_of::<CurrentLocks>("HEAD").await, "CurrentLocks", safe),
            (message_of::<Fence>("DELETE").await, "Fence", no_lock),
            (message_of::<Fence>("GET").await, "Fence", safe),
            (message_of::<CurrentRate>("GET").await, "CurrentRate", "passed no RateLimitLayer"),
            (message_of::<CurrentJob>("POST").await, "CurrentJob", "take Option<CurrentJob>"),
        ] {
            assert!(message.starts_with(&format!("{extractor}: ")), "{message}");
            assert!(message.contains(expected), "{message}");
        }
    }

    async fn get_body(app: Router, path: &str) -> String {
        let request = Request::get(path).body(Body::empty()).expect("valid");
        let response = app.oneshot(request).await.expect("it does not fail");
        let body = to_bytes(response.into_body(), 1000).await.expect("short");
        String::from_utf8(body.into()).expect("text")
    }

    /// The layer is on the route, so the message must not say that it is missing.
    #[tokio::test]
    async fn allow_listed_request_has_no_current_rate() {
        async fn rejection(rate: Result<CurrentRate, MissingLayerRejection>) -> String {
            rate.unwrap_err().to_string()
        }
        let quota = Quota::requests(1).per(Duration::from_secs(3600));
        let lists = AccessLists::new().allow(["192.0.2.1"]);
        let limit = RateLimitLayer::by_ip(quota).access_lists(lists).store(&Store::memory());
        let app = Router::new()
            .route("/", get(rejection))
            .layer(limit)
            .layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 7))));
        let message = get_body(app, "/").await;
        assert!(
            message.contains("allow list") && message.contains("Option<CurrentRate>"),
            "{message}"
        );
    }

    /// The lock layer is there too, and has let the request pass.
    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn request_admitted_in_an_outage_has_no_fence() {
        async fn rejection(fence: Result<Fence, MissingLayerRejection>) -> String {
            fence.unwrap_err().to_string()
        }
        // No server listens there.
        let store = Store::connect("redis://127.0.0.1:1/?ns=test").await.expect("the URL is right");
        let lock = crate::LockLayer::by_path_param("id").all_methods();
        let lock = lock.on_outage(lockgate::LockOutage::Admit).store(&store);
        let app = Router::new().route("/{id}", get(rejection)).layer(lock);
        let message = get_body(app, "/7").await;
        assert!(
            message.contains("LockOutage::Admit") && message.contains("take Option<Fence>"),
            "{message}"
        );
    }

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
