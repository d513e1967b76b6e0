//! The three layers around handlers, where actix-web differs from axum. Common behaviour is tested
//! in `tests/rows`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
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
    test::{TestRequest, call_and_read_body, call_service, init_service, read_body},
    web::{self, Bytes, Data},
};
use lockgate_actix_web::{
    CurrentLock, DeferLayer, Fence, Key, LockLayer, Quota, RateLimitLayer, Store,
};

fn order_key() -> Key {
    Key::path_param("id", "7")
}

fn refund_request(body: &'static str) -> actix_http::Request {
    let request = TestRequest::post().uri("/orders/7/refund");
    request.set_payload(body).to_request()
}

mod deferred_runs;
mod websocket_lock;

fn header_text<'a>(response: &'a ServiceResponse<impl MessageBody>, name: &str) -> &'a str {
    let value = response.headers().get(name).expect("the field is there");
    value.to_str().expect("it is text")
}

/// Polls for the stored response of a 202.
async fn stored_response<B: MessageBody>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = Error>,
    accepted: &ServiceResponse<impl MessageBody>,
) -> (StatusCode, Bytes) {
    let uri = format!("{}/response", header_text(accepted, "location"));
    loop {
        let get = TestRequest::get().uri(&uri).insert_header(("prefer", "wait=5"));
        let answer = call_service(app, get.to_request()).await;
        if answer.status() != StatusCode::ACCEPTED {
            return (answer.status(), read_body(answer).await);
        }
    }
}

async fn conflict_to_error(
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
async fn middleware_between_layers_keeps_or_disables_deferral() {
    let store = Store::memory();
    let lock = || {
        let handler = || async { HttpResponse::Ok().finish() };
        web::resource("/orders/{id}/refund").post(handler).wrap(LockLayer::by_path_param("id"))
    };
    let data = Data::new(store.clone());
    let _held = store.lock(order_key()).acquire().await.expect("free");

    // An error page instead of the busy response: same status, other body.
    let page = ErrorHandlers::new().handler(StatusCode::CONFLICT, |response| {
        let (request, _) = response.into_parts();
        let response = HttpResponse::Conflict().body("our own page").map_into_right_body();
        Ok(ErrorHandlerResponse::Response(ServiceResponse::new(request, response)))
    });
    let app = App::new().service(lock().wrap(page).wrap(DeferLayer::new()));
    let app = init_service(app.app_data(data.clone())).await;
    assert_eq!(call_service(&app, refund_request("x")).await.status(), StatusCode::ACCEPTED);

    // The outer layer is around the app.
    let app = App::new().service(lock()).wrap(DeferLayer::new()).app_data(data.clone());
    let app = init_service(app).await;
    assert_eq!(call_service(&app, refund_request("x")).await.status(), StatusCode::ACCEPTED);

    // An error instead of a response: it is passed on unchanged.
    let app = App::new().service(lock().wrap(from_fn(conflict_to_error)).wrap(DeferLayer::new()));
    let app = init_service(app.app_data(data)).await;
    let error = app.call(refund_request("x")).await.expect_err("the middleware's own error");
    assert_eq!(error.as_response_error().status_code(), StatusCode::IM_A_TEAPOT);
}

#[actix_web::test]
async fn client_without_an_address_is_500() {
    let quota = Quota::requests(1).per(Duration::from_secs(3600));
    let app = App::new()
        .route("/", web::get().to(async || ""))
        .wrap(RateLimitLayer::by_ip(quota))
        .app_data(Data::new(Store::memory()));
    let response = call_service(&init_service(app).await, TestRequest::get().to_request()).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[actix_web::test]
async fn fence_extractor_yields_growing_fences() {
    let order = web::resource("/orders/{id}")
        .post(async |Fence(fence): Fence| fence.to_string())
        .wrap(LockLayer::by_path_param("id"));
    let app = init_service(App::new().service(order).app_data(Data::new(Store::memory()))).await;
    let mut last = 0;
    for _ in 0..2 {
        let post = TestRequest::post().uri("/orders/7").to_request();
        let fence = call_and_read_body(&app, post).await;
        let fence: u64 = std::str::from_utf8(&fence).unwrap().parse().expect("a number");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[actix_web::test]
async fn extractor_without_its_layer_is_500() {
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
    assert!(!problem.contains("LockLayer"), "the client gets no internals: {problem}");
}

/// Payload of a client that sends no further data.
fn stalled_payload() -> actix_http::Payload {
    actix_http::Payload::Stream { payload: Box::pin(futures_util::stream::pending()) }
}

/// Also if a middleware inside the lock turns the response to a broken body into an error.
#[actix_web::test]
async fn slow_client_is_408() {
    let store = Store::memory();
    let order = web::resource("/orders/{id}/refund")
        .post(|_: Bytes| async { "" })
        .wrap(from_fn(client_error_to_error))
        .wrap(LockLayer::by_path_param("id").body_read_timeout(Duration::from_millis(10)));
    let app = init_service(App::new().service(order).app_data(Data::new(store.clone()))).await;
    let (request, _) = refund_request("").replace_payload(stalled_payload());
    let status = match app.call(request).await {
        Ok(response) => response.status(),
        Err(error) => error.as_response_error().status_code(),
    };
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert!(store.lock(order_key()).acquire().await.is_ok_and(|guard| guard.fence() > 0));
    assert!(store.shutdown(Duration::from_secs(5)).await);
}

async fn client_error_to_error(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let response = next.call(request).await?;
    if response.status().is_client_error() { Err(ErrorImATeapot("no")) } else { Ok(response) }
}
