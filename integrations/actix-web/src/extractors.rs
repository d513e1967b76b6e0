//! Extractors for handlers: locks, fence, quota and job of a request.
//!
//! The value inside each of them is also in the request's extensions, under its own type. Each
//! extractor can be optional, for a handler that is behind the layer on some routes only.

use std::{
    fmt,
    future::{Ready, ready},
};

use actix_web::{
    FromRequest, HttpMessage as _, HttpRequest, HttpResponse, ResponseError, dev::Payload,
    http::StatusCode,
};
use lockgate::{HeldLock, HeldLocks, RateStatus, Reply, RunningJob};

use crate::reply_response::response_from_reply;

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
pub struct MissingLayerRejection {
    extractor: &'static str,
    required_layer: &'static str,
}

impl fmt::Display for MissingLayerRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the route needs {}", self.extractor, self.required_layer)
    }
}

impl std::error::Error for MissingLayerRejection {}

impl ResponseError for MissingLayerRejection {
    fn status_code(&self) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    // Logs here and not where the rejection arises, since `Option<T>` creates and drops one too.
    fn error_response(&self) -> HttpResponse {
        let Self { extractor, required_layer: needs } = self;
        lockgate::driver::log_missing_layer(extractor, needs);
        response_from_reply(Reply::misconfigured())
    }
}

macro_rules! impl_extractor {
    ($name:ident, $needs:literal, |$request:ident| $find:expr) => {
        impl FromRequest for $name {
            type Error = MissingLayerRejection;
            type Future = Ready<Result<Self, MissingLayerRejection>>;

            fn from_request($request: &HttpRequest, _: &mut Payload) -> Self::Future {
                ready($find.ok_or(MissingLayerRejection {
                    extractor: stringify!($name),
                    required_layer: $needs,
                }))
            }
        }
    };
}

impl_extractor!(CurrentLock, "a LockLayer", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentLock));
impl_extractor!(CurrentLocks, "a LockLayer", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentLocks));
impl_extractor!(Fence, "a LockLayer that refuses requests during outages", |request| request
    .extensions()
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
impl_extractor!(
    CurrentRate,
    "a RateLimitLayer that charges the request; none does in a deferred run, for a client on the \
     allow list, or while the store is unavailable; take Option<CurrentRate> there",
    |request| request.extensions().get().cloned().map(CurrentRate)
);
impl_extractor!(CurrentJob, "to run as a deferred request", |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentJob));

#[cfg(test)]
mod tests {
    use actix_web::{
        App,
        test::{TestRequest, init_service, try_call_service},
        web,
    };
    use lockgate::{AccessLists, Quota, Store};

    use super::*;
    use crate::RateLimitLayer;

    /// The layer is on the route, so the message must not say that it is missing.
    #[actix_web::test]
    async fn allow_listed_request_has_no_current_rate() {
        let quota = Quota::requests(1).per(std::time::Duration::from_secs(3600));
        let lists = AccessLists::new().allow(["192.0.2.1"]);
        let perhaps = async |rate: Option<CurrentRate>| rate.is_none().to_string();
        let why =
            async |rate: Result<CurrentRate, MissingLayerRejection>| rate.unwrap_err().to_string();
        let app = App::new()
            .route("/never", web::get().to(async |_: CurrentRate| "charged"))
            .route("/perhaps", web::get().to(perhaps))
            .route("/why", web::get().to(why))
            .wrap(RateLimitLayer::by_ip(quota).access_lists(lists).store(&Store::memory()));
        let app = init_service(app).await;
        let ask = async |path| {
            let get = TestRequest::get().uri(path).peer_addr(([192, 0, 2, 1], 7).into());
            let answer = try_call_service(&app, get.to_request()).await.expect("an answer");
            let body = actix_web::test::read_body(answer).await;
            String::from_utf8_lossy(&body).into_owned()
        };
        assert!(ask("/never").await.contains("\"status\":500"));
        assert_eq!(ask("/perhaps").await, "true");
        let why = ask("/why").await;
        assert!(why.contains("allow list") && why.contains("Option<CurrentRate>"), "{why}");
    }
}
