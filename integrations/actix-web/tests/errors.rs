//! Errors of middlewares: actix-web turns them into responses at the server, with a status of their
//! own.

use std::time::Duration;

use actix_web::{
    App, Error, HttpResponse,
    body::{MessageBody, to_bytes},
    dev::{ServiceRequest, ServiceResponse},
    error::{ErrorNotFound, ErrorUnauthorized, InternalError},
    http::StatusCode,
    middleware::{Next, from_fn},
    test::{TestRequest, call_and_read_body, call_service, init_service, try_call_service},
    web::{self, Data},
};
use lockgate_actix_web::{
    DeferLayer, LockLayer, OnLoss, Quota, RateLimitLayer, Store, deferred_routes,
};

async fn deny_request(
    _: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    Err::<ServiceResponse, _>(ErrorUnauthorized("who are you?"))
}

/// Returns the number of requests that the limit admits and the middleware denies.
async fn count_denied(limit: RateLimitLayer, times: usize) -> usize {
    let app = App::new()
        .route("/", web::get().to(async || "in"))
        .wrap(from_fn(deny_request))
        .wrap(limit)
        .app_data(Data::new(Store::memory()));
    let app = init_service(app).await;
    let mut denied = 0;
    for _ in 0..times {
        let get = TestRequest::get().peer_addr(([192, 0, 2, 1], 7).into()).to_request();
        let status = match try_call_service(&app, get).await {
            Ok(response) => response.status(),
            Err(error) => error.as_response_error().status_code(),
        };
        denied += usize::from(status == StatusCode::UNAUTHORIZED);
    }
    denied
}

/// Otherwise failed log-ins would be free for a limit that refunds failures of the server.
#[actix_web::test]
async fn middleware_error_is_settled_with_its_own_status() {
    let quota = Quota::requests(2).per(Duration::from_secs(3600));
    let limit = || RateLimitLayer::by_ip(quota);
    assert_eq!(count_denied(limit().refund_on(|status| status >= 500), 5).await, 2);
    assert_eq!(count_denied(limit().refund_on(|status| status == 401), 5).await, 5);
}

/// An outer layer turns the error into a response, which has rate headers like every other one.
#[actix_web::test]
async fn middleware_error_response_has_rate_headers() {
    let quota = Quota::requests(2).per(Duration::from_secs(3600));
    for limit in [RateLimitLayer::by_ip(quota), RateLimitLayer::by_ip(quota).refund_on(|_| false)] {
        let app = App::new()
            .route("/", web::get().to(async || "in"))
            .wrap(from_fn(deny_request))
            .wrap(limit.policy_name("front"))
            .app_data(Data::new(Store::memory()));
        let get = TestRequest::get().peer_addr(([192, 0, 2, 1], 7).into()).to_request();
        let denied = try_call_service(&init_service(app).await, get).await;
        let answer = denied.expect_err("an error, until the server converts it").error_response();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        let quota = answer.headers().get("ratelimit").expect("a rate header");
        assert!(quota.to_str().expect("text").contains("r=1"), "{quota:?}");
    }
}

/// Error whose response can be produced only once, as of a middleware that has built it already.
async fn fail_with_response(
    _: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let answer = HttpResponse::NotFound().insert_header(("location", "/no-such-order")).body("why");
    Err::<ServiceResponse, _>(InternalError::from_response("no such order", answer).into())
}

/// The stored response is that which the client got, and the client gets all of it.
#[actix_web::test]
async fn middleware_error_is_stored_as_its_response() {
    let order = web::resource("/orders/{id}")
        .post(async || "")
        .wrap(from_fn(fail_with_response))
        .wrap(LockLayer::by_path_param("id").on_loss(OnLoss::Finish))
        .wrap(DeferLayer::new().idempotent_direct());
    let app = App::new()
        .service(order)
        .service(deferred_routes("/deferred"))
        .app_data(Data::new(Store::memory()));
    let app = init_service(app).await;
    let post =
        || TestRequest::post().uri("/orders/7").insert_header(("idempotency-key", "\"one\""));
    let error = try_call_service(&app, post().to_request()).await.expect_err("no such order");
    let answer = error.error_response();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(answer.headers().get("location").expect("its own"), "/no-such-order");
    assert_eq!(to_bytes(answer.into_body()).await.expect("short"), "why");
    let repeated = call_service(&app, post().to_request()).await;
    let location = repeated.headers().get("location").expect("a 202").to_str().expect("a path");
    let document = call_and_read_body(&app, TestRequest::get().uri(location).to_request()).await;
    let document = std::str::from_utf8(&document).expect("text");
    assert!(document.contains("/no-such-order"), "{document}");
}

/// Ends in its first poll, so that it cannot be stopped, but after the lock is lost.
async fn fail_after_lock_loss(
    _: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    std::thread::sleep(Duration::from_millis(300));
    Err::<ServiceResponse, _>(ErrorNotFound("no such order"))
}

/// Like a response, it may describe a state that no longer holds.
#[actix_web::test]
async fn middleware_error_after_lock_loss_is_replaced() {
    for (on_loss, status) in [
        (OnLoss::Cancel, StatusCode::SERVICE_UNAVAILABLE),
        (OnLoss::Replace, StatusCode::SERVICE_UNAVAILABLE),
        (OnLoss::Finish, StatusCode::NOT_FOUND),
    ] {
        let lock =
            LockLayer::by_path_param("id").max_hold(Duration::from_millis(100)).on_loss(on_loss);
        let order =
            web::resource("/orders/{id}").post(async || "").wrap(from_fn(fail_after_lock_loss));
        let app = App::new().service(order.wrap(lock)).app_data(Data::new(Store::memory()));
        let post = TestRequest::post().uri("/orders/7").to_request();
        let ended = try_call_service(&init_service(app).await, post).await;
        let error = ended.expect_err("the request was dropped with the call");
        let answer = error.error_response();
        assert_eq!(answer.status(), status, "{on_loss:?}");
        let has_loss_header = answer.headers().contains_key("lock-lost");
        assert_eq!(has_loss_header, on_loss == OnLoss::Finish, "{on_loss:?}");
    }
}
