//! The three layers around handlers, on the embedded store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use actix_web::{
    App, Error, HttpResponse,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
    error::ErrorImATeapot,
    http::StatusCode,
    middleware::{ErrorHandlerResponse, ErrorHandlers, Next, from_fn},
    test::{TestRequest, call_service, init_service, read_body},
    web::{self, Bytes, Data, ServiceConfig},
};
use lockgate_actix_web::{
    CurrentJob, CurrentLock, CurrentRate, DeferLayer, Fence, Key, LockLayer, Quota, RateLimitLayer,
    Store, deferred_routes,
};
use tokio::sync::Notify;

/// What a handler did, as seen from outside.
#[derive(Debug, Default)]
struct Seen {
    runs: AtomicU32,
    started: Notify,
    dropped: AtomicBool,
    gone: Notify,
}

struct Watch(Data<Seen>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::SeqCst);
        self.0.gone.notify_one();
    }
}

async fn refund(seen: Data<Seen>, job: Option<CurrentJob>, body: Bytes) -> String {
    let run = seen.runs.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(body != "panic", "asked to panic");
    if body == "stay" {
        let _watch = Watch(seen.clone());
        seen.started.notify_one();
        return std::future::pending().await;
    }
    let attempt = job.map(|CurrentJob(job)| job.attempt);
    format!("{run} {attempt:?} {}", String::from_utf8_lossy(&body))
}

fn orders(seen: Data<Seen>) -> impl Fn(&mut ServiceConfig) + Send + Clone + 'static {
    move |config| {
        let refund = web::resource("/orders/{id}/refund")
            .post(refund)
            .put(refund)
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().body_limit(16));
        config.service(refund).app_data(seen.clone());
    }
}

fn key() -> Key {
    Key::path_param("id", "7")
}

fn request(body: &'static str) -> actix_http::Request {
    let request = TestRequest::post().uri("/orders/7/refund");
    request.set_payload(body).to_request()
}

macro_rules! app {
    ($store:expr, $seen:expr) => {
        init_service(
            App::new()
                .configure(orders($seen.clone()))
                .service(deferred_routes("/deferred"))
                .app_data(Data::new($store.clone())),
        )
        .await
    };
}

mod runs;
mod sockets;

fn field<'a>(response: &'a ServiceResponse<impl MessageBody>, name: &str) -> &'a str {
    let value = response.headers().get(name).expect("the field is there");
    value.to_str().expect("it is text")
}

/// The stored response of a 202, once there is one.
async fn response<B: MessageBody>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = Error>,
    accepted: &ServiceResponse<impl MessageBody>,
) -> (StatusCode, Bytes) {
    let uri = format!("{}/response", field(accepted, "location"));
    loop {
        let get = TestRequest::get().uri(&uri).insert_header(("prefer", "wait=5"));
        let answer = call_service(app, get.to_request()).await;
        if answer.status() != StatusCode::ACCEPTED {
            return (answer.status(), read_body(answer).await);
        }
    }
}

#[actix_web::test]
async fn a_busy_lock_is_409_and_ends_with_its_request() {
    let store = Store::memory();
    let resource = web::resource("/orders/{id}")
        .post(|Fence(fence): Fence| async move { fence.to_string() })
        .wrap(LockLayer::by_path_param("id"));
    let app = init_service(App::new().service(resource).app_data(Data::new(store.clone()))).await;
    let post = || TestRequest::post().uri("/orders/7").to_request();
    let held = store.lock(key()).acquire().await.expect("free");
    let busy = call_service(&app, post()).await;
    assert_eq!(busy.status(), StatusCode::CONFLICT);
    assert!(busy.headers().contains_key("retry-after"));
    assert_eq!(field(&busy, "content-type"), "application/problem+json");
    held.release().await;
    for _ in 0..2 {
        assert_eq!(call_service(&app, post()).await.status(), StatusCode::OK);
    }
    // A method that changes nothing takes no lock; this one is not allowed besides.
    let get = TestRequest::get().uri("/orders/7").to_request();
    assert_eq!(call_service(&app, get).await.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[actix_web::test]
async fn a_dropped_request_gives_its_lock_back() {
    let store = Store::memory();
    let seen = Data::new(Seen::default());
    let app = app!(store, seen);
    tokio::select! {
        _ = call_service(&app, request("stay")) => panic!("it stays"),
        () = seen.started.notified() => {}
    }
    assert!(seen.dropped.load(Ordering::SeqCst));
    let lock = store.lock(key()).wait(Duration::from_secs(5)).acquire().await;
    assert!(lock.is_ok(), "{lock:?}");
}

#[actix_web::test]
async fn what_cannot_be_deferred_gets_the_busy_answer() {
    let store = Store::memory();
    let app = app!(store, Data::new(Seen::default()));
    let _held = store.lock(key()).acquire().await.expect("free");
    let exact = call_service(&app, request("0123456789abcdef")).await;
    assert_eq!(exact.status(), StatusCode::ACCEPTED);
    let long = call_service(&app, request("0123456789abcdef+")).await;
    assert_eq!(long.status(), StatusCode::CONFLICT);
    let login =
        TestRequest::post().uri("/orders/7/refund").insert_header(("authorization", "Bearer x"));
    assert_eq!(call_service(&app, login.to_request()).await.status(), StatusCode::CONFLICT);
}

async fn to_error(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let response = next.call(request).await?;
    if response.status() == StatusCode::CONFLICT {
        return Err(ErrorImATeapot("busy"));
    }
    Ok(response)
}

#[actix_web::test]
async fn layers_in_between_keep_the_hand_over_or_fall_back() {
    let store = Store::memory();
    let lock = || {
        let handler = || async { HttpResponse::Ok().finish() };
        web::resource("/orders/{id}/refund").post(handler).wrap(LockLayer::by_path_param("id"))
    };
    let data = Data::new(store.clone());
    let _held = store.lock(key()).acquire().await.expect("free");

    // An error page instead of the busy answer: same status, other body.
    let page = ErrorHandlers::new().handler(StatusCode::CONFLICT, |response| {
        let (request, _) = response.into_parts();
        let response = HttpResponse::Conflict().body("our own page").map_into_right_body();
        Ok(ErrorHandlerResponse::Response(ServiceResponse::new(request, response)))
    });
    let app = App::new().service(lock().wrap(page).wrap(DeferLayer::new()));
    let app = init_service(app.app_data(data.clone())).await;
    assert_eq!(call_service(&app, request("x")).await.status(), StatusCode::ACCEPTED);

    // The layer outside stands around the app.
    let app = App::new().service(lock()).wrap(DeferLayer::new()).app_data(data.clone());
    let app = init_service(app).await;
    assert_eq!(call_service(&app, request("x")).await.status(), StatusCode::ACCEPTED);

    // An error instead of a response: it goes out as it is.
    let app = App::new().service(lock().wrap(from_fn(to_error)).wrap(DeferLayer::new()));
    let app = init_service(app.app_data(data)).await;
    let error = app.call(request("x")).await.expect_err("the middleware's own error");
    assert_eq!(error.as_response_error().status_code(), StatusCode::IM_A_TEAPOT);
}

#[actix_web::test]
async fn layers_in_the_wrong_order_are_a_wiring_fault() {
    let resource = web::resource("/orders/{id}/refund")
        .post(|| async { "" })
        .wrap(DeferLayer::new())
        .wrap(LockLayer::by_path_param("id"));
    let app = App::new().service(resource).app_data(Data::new(Store::memory()));
    let answer = call_service(&init_service(app).await, request("x")).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[actix_web::test]
async fn a_quota_is_shown_and_kept() {
    let quota = Quota::requests(1).per(Duration::from_secs(3600));
    let handler = |rate: CurrentRate| async move { format!("{:?}", rate.0).len().to_string() };
    let app = App::new()
        .route("/", web::get().to(handler))
        .wrap(RateLimitLayer::by_ip(quota).name("front"))
        .app_data(Data::new(Store::memory()));
    let app = init_service(app).await;
    let get = || TestRequest::get().peer_addr(([192, 0, 2, 1], 7).into()).to_request();
    let first = call_service(&app, get()).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(field(&first, "ratelimit-policy"), r#""front";q=1;w=3600"#);
    let second = call_service(&app, get()).await;
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    // Without an address there is no key: refused, not let through.
    let nobody = call_service(&app, TestRequest::get().to_request()).await;
    assert_eq!(nobody.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[actix_web::test]
async fn an_extractor_without_its_layer_is_500() {
    let ran = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ran);
    let handler = move |_: CurrentLock| {
        flag.store(true, Ordering::SeqCst);
        async { "" }
    };
    let app = init_service(App::new().route("/", web::get().to(handler))).await;
    let answer = call_service(&app, TestRequest::get().to_request()).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(answer.headers().get("content-type").unwrap(), "application/problem+json");
    let problem = read_body(answer).await;
    let problem = std::str::from_utf8(&problem).unwrap();
    assert!(problem.contains("\"status\":500"), "{problem}");
    assert!(!problem.contains("LockLayer"), "the client learns nothing: {problem}");
}

/// A client that sends nothing more.
fn stalled() -> actix_http::Payload {
    actix_http::Payload::Stream { payload: Box::pin(futures_util::stream::pending()) }
}

/// Whatever a handler, or a layer inside the lock, makes of a body that broke off.
#[actix_web::test]
async fn a_slow_client_is_told_408() {
    let store = Store::memory();
    let lock = || LockLayer::by_path_param("id").body_deadline(Duration::from_millis(10));
    let order = || web::resource("/orders/{id}/refund");
    let app = App::new()
        .service(order().post(|_: Bytes| async { "" }).wrap(lock()))
        .service(web::scope("/errors").service(
            order().post(|_: Bytes| async { "" }).wrap(from_fn(all_to_error)).wrap(lock()),
        ))
        .app_data(Data::new(store.clone()));
    let app = init_service(app).await;
    for uri in ["/orders/7/refund", "/errors/orders/7/refund"] {
        let request = TestRequest::post().uri(uri).to_request();
        let (request, _) = request.replace_payload(stalled());
        let status = match app.call(request).await {
            Ok(response) => response.status(),
            Err(error) => error.as_response_error().status_code(),
        };
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{uri}");
        assert!(store.lock(key()).acquire().await.is_ok_and(|guard| guard.fence() > 0));
        assert!(store.shutdown(Duration::from_secs(5)).await);
    }
}

async fn all_to_error(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let response = next.call(request).await?;
    if response.status().is_client_error() { Err(ErrorImATeapot("no")) } else { Ok(response) }
}
