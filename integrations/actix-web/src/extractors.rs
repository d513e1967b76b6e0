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
use lockgate::{HeldLock, HeldLocks, RateStatus, Reply, RunningJob};

use crate::reply_response::response_from_reply;

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
///
/// Rejected where the layer is on the route but has none to tell of: in a deferred run, which was charged when it was
/// accepted; for a client on the allow list, and a preflight; and while the store is away, when each process counts by
/// itself. So take an `Option<CurrentRate>` on a route that may be deferred, or that is to work meanwhile.
#[derive(Debug, Clone)]
pub struct CurrentRate(pub RateStatus);

/// The deferred request that runs now. Usually optional: a request that met a free lock has none.
#[derive(Debug, Clone)]
pub struct CurrentJob(pub RunningJob);

/// Rejection: the layer that makes this value known is not on the route, or knows none of this request, as its extractor
/// says. 500 as problem+json, and a log line.
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

    // Logged here and not where it arises: `Option<T>` comes this way too, and drops it.
    fn error_response(&self) -> HttpResponse {
        let Self { extractor, required_layer: needs } = self;
        lockgate::gate::log_missing_layer(extractor, needs);
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
impl_extractor!(Fence, "a LockLayer that refuses while the store is away", |request| request
    .extensions()
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
impl_extractor!(
    CurrentRate,
    "a RateLimitLayer that charges the request; none does in a deferred run, for a client on the \
 allow list, or while the store is away: take Option<CurrentRate> there",
    |request| request.extensions().get().cloned().map(CurrentRate)
);
impl_extractor!(CurrentJob, "to run deferred", |request| request
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

    /// The layer is there, and the log must not say that it is not.
    #[actix_web::test]
    async fn who_is_charged_nothing_has_no_rate() {
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
