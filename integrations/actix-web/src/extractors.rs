//! Extractors for handlers: locks, fence, quota, job and cancellation of a request.
//!
//! The value inside each of them is also in the request's extensions, under its own type. Each
//! extractor can be optional, for a handler that is behind the layer on some routes only.

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
};

use actix_web::{
    FromRequest, HttpMessage as _, HttpRequest, HttpResponse, ResponseError, dev::Payload,
    http::StatusCode,
};
use lockgate::{
    HeldLock, HeldLocks, RateStatus, Reply, RunCancellation, RunningJob,
    driver::{GateRequest, MissingValue},
};

use crate::{reply_to_response::response_from_reply, request_view::RequestView};

/// The lock that this request runs under. If there are several, it is the first one of the
/// innermost layer.
///
/// ```
/// # use actix_web::{App, test::{TestRequest, call_and_read_body, init_service}, web};
/// # use lockgate_actix_web::{CurrentLock, LockLayer, Store};
/// # #[actix_web::main]
/// # async fn main() {
/// let store = Store::memory();
/// let pay = web::resource("/orders/{id}/pay")
///     .post(async |CurrentLock(lock): CurrentLock| format!("fence: {}", lock.fence().is_some()))
///     .wrap(LockLayer::by_path_param("id").store(&store));
/// let app = App::new().service(pay);
/// let app = init_service(app).await;
///
/// let request = TestRequest::post().uri("/orders/7/pay").to_request();
/// assert_eq!(call_and_read_body(&app, request).await, "fence: true");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CurrentLock(pub HeldLock);

/// All locks that this request runs under.
///
/// ```
/// # use actix_web::{App, test::{TestRequest, call_and_read_body, init_service}, web};
/// # use lockgate_actix_web::{CurrentLocks, LockLayer, Store};
/// # #[actix_web::main]
/// # async fn main() {
/// let store = Store::memory();
/// let transfer = web::resource("/transfers/{from}/{to}")
///     .post(async |CurrentLocks(locks): CurrentLocks| format!("{} locks", locks.len()))
///     .wrap(LockLayer::by_path_params(["from", "to"]).store(&store));
/// let app = App::new().service(transfer);
/// let app = init_service(app).await;
///
/// let request = TestRequest::post().uri("/transfers/1/2").to_request();
/// assert_eq!(call_and_read_body(&app, request).await, "2 locks");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CurrentLocks(pub HeldLocks);

/// The fence of [`CurrentLock`], larger than the fence of every earlier grant.
///
/// Rejected if the request was admitted without a lock because the store was unavailable.
///
/// ```
/// # use actix_web::{App, test::{TestRequest, call_and_read_body, init_service}, web};
/// # use lockgate_actix_web::{Fence, LockLayer, Store};
/// # #[actix_web::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let pay = web::resource("/orders/{id}/pay")
///     .post(async |Fence(fence): Fence| fence.to_string())
///     .wrap(LockLayer::by_path_param("id").store(&store));
/// let app = App::new().service(pay);
/// let app = init_service(app).await;
///
/// let mut fences = Vec::new();
/// for _ in 0..2 {
///     let request = TestRequest::post().uri("/orders/7/pay").to_request();
///     let body = call_and_read_body(&app, request).await;
///     fences.push(std::str::from_utf8(&body)?.parse::<u64>()?);
/// }
/// assert!(fences[0] < fences[1]);
/// # Ok(()) }
/// ```
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
///
/// ```
/// # use std::time::Duration;
/// # use actix_web::{App, test::{TestRequest, call_and_read_body, init_service}, web};
/// # use lockgate_actix_web::{CurrentRate, Quota, RateLimitLayer, Store};
/// # #[actix_web::main]
/// # async fn main() {
/// let remaining = async |CurrentRate(rate): CurrentRate| rate.remaining().to_string();
/// let quota = Quota::requests(10).per(Duration::from_secs(60));
/// let limit = RateLimitLayer::by_header("x-api-key", quota).store(&Store::memory());
/// let app = App::new().route("/", web::get().to(remaining)).wrap(limit);
/// let app = init_service(app).await;
///
/// let request = TestRequest::get().insert_header(("x-api-key", "abc")).to_request();
/// assert_eq!(call_and_read_body(&app, request).await, "9");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CurrentRate(pub RateStatus);

/// The job of the deferred request that runs now. Usually optional, since a request that found its
/// lock free has none.
///
/// ```
/// # use actix_web::{App, test::{TestRequest, call_and_read_body, init_service}, web};
/// # use lockgate_actix_web::{CurrentJob, DeferLayer, LockLayer, Store};
/// async fn refund(job: Option<CurrentJob>) -> String {
///     match job {
///         Some(CurrentJob(job)) => format!("attempt {} of {}", job.attempt, job.id.as_str()),
///         None => "the lock was free".to_owned(),
///     }
/// }
///
/// # #[actix_web::main]
/// # async fn main() {
/// let store = Store::memory();
/// let refund = web::resource("/orders/{id}/refund")
///     .post(refund)
///     .wrap(LockLayer::by_path_param("id").store(&store))
///     .wrap(DeferLayer::new());
/// let app = App::new().service(refund);
/// let app = init_service(app).await;
///
/// let request = TestRequest::post().uri("/orders/7/refund").to_request();
/// assert_eq!(call_and_read_body(&app, request).await, "the lock was free");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CurrentJob(pub RunningJob);

/// Tells the handler that an operator cancels the run of its deferred request. Never rejected: in a
/// request that was not deferred, it never fires.
///
/// ```
/// use std::time::Duration;
///
/// use actix_web::{HttpResponse, web};
/// use lockgate_actix_web::CurrentCancellation;
///
/// async fn report(CurrentCancellation(cancellation): CurrentCancellation) -> HttpResponse {
///     tokio::select! {
///         () = tokio::time::sleep(Duration::from_secs(60)) => HttpResponse::Ok().finish(),
///         // An error: the run is cancelled. After a success it would be done.
///         () = cancellation.cancelled() => HttpResponse::ServiceUnavailable().finish(),
///     }
/// }
/// # let _ = actix_web::App::new().route("/", web::post().to(report));
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

impl ResponseError for MissingLayerRejection {
    fn status_code(&self) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    // Logs here and not where the rejection arises, since `Option<T>` creates and drops one too.
    fn error_response(&self) -> HttpResponse {
        self.missing.log(self.extractor);
        response_from_reply(Reply::misconfigured())
    }
}

macro_rules! impl_extractor {
    ($name:ident, $missing:expr, |$request:ident| $find:expr) => {
        impl FromRequest for $name {
            type Error = MissingLayerRejection;
            type Future = Ready<Result<Self, MissingLayerRejection>>;

            fn from_request($request: &HttpRequest, _: &mut Payload) -> Self::Future {
                ready($find.ok_or_else(|| {
                    let missing = $missing(&RequestView::new($request));
                    MissingLayerRejection { extractor: stringify!($name), missing }
                }))
            }
        }
    };
}

impl_extractor!(CurrentLock, MissingValue::of_lock, |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentLock));
impl_extractor!(CurrentLocks, MissingValue::of_lock, |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentLocks));
impl_extractor!(Fence, missing_fence, |request| request
    .extensions()
    .get::<HeldLock>()
    .and_then(HeldLock::fence)
    .map(Fence));
impl_extractor!(CurrentRate, MissingValue::of_charge, |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentRate));
impl_extractor!(CurrentJob, MissingValue::of_job, |request| request
    .extensions()
    .get()
    .cloned()
    .map(CurrentJob));

impl FromRequest for CurrentCancellation {
    type Error = Infallible;
    type Future = Ready<Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(request.extensions().get().cloned().map(Self).unwrap_or_default()))
    }
}

/// A lock without a fence was admitted without a grant.
fn missing_fence<V: GateRequest>(view: &V) -> MissingValue {
    MissingValue::of_fence(view, view.extension::<HeldLock>().is_some())
}

#[cfg(test)]
mod tests {
    use actix_web::{
        App,
        http::Method,
        test::{TestRequest, init_service, try_call_service},
        web,
    };
    use lockgate::{AccessLists, Quota, Store};

    use super::*;
    use crate::RateLimitLayer;

    /// The message for a request that passed no layer.
    async fn message_of<T: FromRequest<Error = MissingLayerRejection>>(method: Method) -> String {
        let request = TestRequest::default().method(method).to_http_request();
        let found = T::extract(&request).await;
        found.err().expect("there is nothing to find").to_string()
    }

    #[actix_web::test]
    async fn extractor_without_its_layer_names_what_is_missing() {
        let no_lock = "the request holds no lock; put a LockLayer around the route";
        let safe = "the request holds no lock, and a LockLayer locks no GET";
        for (message, extractor, expected) in [
            (message_of::<CurrentLock>(Method::POST).await, "CurrentLock", no_lock),
            (message_of::<CurrentLock>(Method::GET).await, "CurrentLock", safe),
            (message_of::<CurrentLocks>(Method::PUT).await, "CurrentLocks", no_lock),
            (message_of::<CurrentLocks>(Method::HEAD).await, "CurrentLocks", safe),
            (message_of::<Fence>(Method::DELETE).await, "Fence", no_lock),
            (message_of::<Fence>(Method::GET).await, "Fence", safe),
            (message_of::<CurrentRate>(Method::GET).await, "CurrentRate", "no RateLimitLayer"),
            (message_of::<CurrentJob>(Method::POST).await, "CurrentJob", "Option<CurrentJob>"),
        ] {
            assert!(message.starts_with(&format!("{extractor}: ")), "{message}");
            assert!(message.contains(expected), "{message}");
        }
    }

    /// The lock layer is there too, and has let the request pass.
    #[cfg(feature = "redis")]
    #[actix_web::test]
    async fn request_admitted_in_an_outage_has_no_fence() {
        let rejection =
            async |fence: Result<Fence, MissingLayerRejection>| fence.unwrap_err().to_string();
        // No server listens there.
        let store = Store::connect("redis://127.0.0.1:1/?ns=test").await.expect("the URL is right");
        let lock = crate::LockLayer::by_path_param("id");
        let lock = lock.on_outage(lockgate::LockOutage::Admit).store(&store);
        let order = web::resource("/{id}").post(rejection).wrap(lock);
        let app = init_service(App::new().service(order)).await;
        let post = TestRequest::post().uri("/7").to_request();
        let message = actix_web::test::call_and_read_body(&app, post).await;
        let message = String::from_utf8_lossy(&message);
        assert!(
            message.contains("LockOutage::Admit") && message.contains("take Option<Fence>"),
            "{message}"
        );
    }

    /// The layer is on the route, so the message must not say that it is missing.
    #[actix_web::test]
    async fn allow_listed_request_has_no_current_rate() {
        let quota = Quota::requests(1).per(std::time::Duration::from_secs(3600));
        let lists = AccessLists::new().allow(["192.0.2.1"]);
        let optional = async |rate: Option<CurrentRate>| rate.is_none().to_string();
        let rejection =
            async |rate: Result<CurrentRate, MissingLayerRejection>| rate.unwrap_err().to_string();
        let app = App::new()
            .route("/required", web::get().to(async |_: CurrentRate| "charged"))
            .route("/optional", web::get().to(optional))
            .route("/rejection", web::get().to(rejection))
            .wrap(RateLimitLayer::by_ip(quota).access_lists(lists).store(&Store::memory()));
        let app = init_service(app).await;
        let get_body = async |path| {
            let get = TestRequest::get().uri(path).peer_addr(([192, 0, 2, 1], 7).into());
            let response = try_call_service(&app, get.to_request()).await.expect("a response");
            let body = actix_web::test::read_body(response).await;
            String::from_utf8_lossy(&body).into_owned()
        };
        assert!(get_body("/required").await.contains("\"status\":500"));
        assert_eq!(get_body("/optional").await, "true");
        let message = get_body("/rejection").await;
        assert!(
            message.contains("allow list") && message.contains("Option<CurrentRate>"),
            "{message}"
        );
    }
}
