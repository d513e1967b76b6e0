//! Errors of middlewares are answers to come: actix-web makes them at the server, with a status of their own.

use std::time::Duration;

use actix_web::{
    App, Error,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    error::{ErrorNotFound, ErrorUnauthorized},
    http::StatusCode,
    middleware::{Next, from_fn},
    test::{TestRequest, init_service, try_call_service},
    web::{self, Data},
};
use lockgate_actix_web::{LockLayer, OnLoss, Quota, RateLimitLayer, Store};

async fn deny(
    _: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    Err::<ServiceResponse, _>(ErrorUnauthorized("who are you?"))
}

/// How many of so many are let in to be denied.
async fn denied(limit: RateLimitLayer, times: usize) -> usize {
    let app = App::new()
        .route("/", web::get().to(async || "in"))
        .wrap(from_fn(deny))
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

/// Else failed log-ins would be free wherever failures of the server are.
#[actix_web::test]
async fn a_denied_request_is_no_failure_of_the_server() {
    let quota = Quota::requests(2).per(Duration::from_secs(3600));
    let limit = || RateLimitLayer::by_ip(quota);
    assert_eq!(denied(limit().refund_on(|status| status >= 500), 5).await, 2);
    assert_eq!(denied(limit().refund_on(|status| status == 401), 5).await, 5);
}

/// Ends at its first step, so that nobody can stop it, but after the lock is lost.
async fn too_late(
    _: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    std::thread::sleep(Duration::from_millis(300));
    Err::<ServiceResponse, _>(ErrorNotFound("no such order"))
}

/// It may say what is not so any more, as an answer may.
#[actix_web::test]
async fn an_error_under_a_lost_lock_is_replaced() {
    for (on_loss, status) in [
        (OnLoss::Cancel, StatusCode::SERVICE_UNAVAILABLE),
        (OnLoss::Replace, StatusCode::SERVICE_UNAVAILABLE),
        (OnLoss::Finish, StatusCode::NOT_FOUND),
    ] {
        let lock =
            LockLayer::by_path_param("id").max_hold(Duration::from_millis(100)).on_loss(on_loss);
        let order = web::resource("/orders/{id}").post(async || "").wrap(from_fn(too_late));
        let app = App::new().service(order.wrap(lock)).app_data(Data::new(Store::memory()));
        let post = TestRequest::post().uri("/orders/7").to_request();
        let ended = try_call_service(&init_service(app).await, post).await;
        let error = ended.expect_err("the request has gone with it");
        assert_eq!(error.as_response_error().status_code(), status, "{on_loss:?}");
    }
}
