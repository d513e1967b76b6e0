//! Deferred requests that a worker runs through the application's own routes.

use actix_web::{
    App, Error, HttpMessage as _, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    error::ErrorUnauthorized,
    http::StatusCode,
    middleware::{Next, from_fn},
    test::{TestRequest, call_service, init_service, read_body},
    web::{self, Data, ServiceConfig},
};
use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};

use crate::{client_error_to_error, header_text, order_key, refund_request, stored_response};

/// A middleware that refuses by an error: the server converts the error to a response, so it is the
/// response of a run too.
#[actix_web::test]
async fn middleware_error_is_the_response_of_a_run() {
    let store = Store::memory();
    let orders = |config: &mut ServiceConfig| {
        let refund = web::resource("/orders/{id}/refund")
            .post(|| async { HttpResponse::BadRequest().finish() })
            .wrap(from_fn(client_error_to_error))
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new());
        let denied = web::resource("/denied/{id}")
            .post(|| async { "" })
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new())
            .wrap(from_fn(deny_runs));
        config.service(refund).service(denied);
    };
    let app = App::new().configure(orders).service(deferred_routes("/deferred"));
    let app = init_service(app.app_data(Data::new(store.clone()))).await;
    actix_web::rt::spawn(DeferWorker::new(&store, orders).run(std::future::pending()));

    let held = store.lock(order_key()).acquire().await.expect("free");
    let refused = call_service(&app, refund_request("")).await;
    let denied = TestRequest::post().uri("/denied/7").to_request();
    let denied = call_service(&app, denied).await;
    held.release().await;
    assert_eq!(stored_response(&app, &refused).await, (StatusCode::IM_A_TEAPOT, "no".into()));
    let (status, problem_document) = stored_response(&app, &denied).await;
    assert_eq!(status, StatusCode::GONE);
    let problem = String::from_utf8_lossy(&problem_document);
    assert!(problem.contains(r#""reason":"auth""#), "{problem}");
}

/// The handler takes data of the `App`, which a function for `App::configure` does not have.
#[actix_web::test]
async fn worker_has_the_data_of_the_app_that_it_is_given() {
    let store = Store::memory();
    let orders = |config: &mut ServiceConfig| {
        let refund = web::resource("/orders/{id}/refund")
            .post(async |text: Data<String>| text.to_string())
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().background());
        config.service(refund);
    };
    let (data, text) = (Data::new(store.clone()), Data::new("refunded".to_owned()));
    let app = move || App::new().app_data(data.clone()).app_data(text.clone()).configure(orders);
    let server = init_service(app().service(deferred_routes("/deferred"))).await;
    // With a layer, so that the body of the responses is of another type.
    let worker_app = move || app().wrap(from_fn(client_error_to_error));
    let worker = DeferWorker::from_app(&store, worker_app);
    actix_web::rt::spawn(worker.run(std::future::pending()));
    let accepted = call_service(&server, refund_request("")).await;
    assert_eq!(stored_response(&server, &accepted).await, (StatusCode::OK, "refunded".into()));
}

/// Authentication that denies runs.
async fn deny_runs(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if request.extensions().get::<lockgate::RunningJob>().is_some() {
        return Err(ErrorUnauthorized("who are you?"));
    }
    next.call(request).await
}

#[actix_web::test]
async fn panicking_route_factory_keeps_the_job_queued() {
    let store = Store::memory();
    let refund = web::resource("/orders/{id}/refund")
        .post(async || "")
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new());
    let app = App::new().service(refund).service(deferred_routes("/deferred"));
    let app = init_service(app.app_data(Data::new(store.clone()))).await;
    let broken = |_: &mut ServiceConfig| panic!("no routes today");
    actix_web::rt::spawn(DeferWorker::new(&store, broken).run(std::future::pending()));

    let held = store.lock(order_key()).acquire().await.expect("free");
    let accepted = call_service(&app, refund_request("later")).await;
    held.release().await;
    let location = header_text(&accepted, "location");
    loop {
        let get = TestRequest::get().uri(location);
        let get = get.insert_header(("prefer", "wait=5")).to_request();
        let document = read_body(call_service(&app, get).await).await;
        let document = String::from_utf8_lossy(&document).into_owned();
        if document.contains(r#""reason":"unroutable""#) {
            assert!(document.contains(r#""state":"queued""#), "{document}");
            return;
        }
    }
}
