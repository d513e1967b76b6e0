//! Deferred requests, run later by a worker of the application's own routes.

use std::{sync::atomic::Ordering, time::Duration};

use actix_web::{
    App, Error, HttpMessage as _, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    error::ErrorUnauthorized,
    http::StatusCode,
    middleware::{Next, from_fn},
    rt::time::timeout,
    test::{TestRequest, call_service, init_service, read_body},
    web::{self, Data, ServiceConfig},
};
use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};

use crate::{Seen, all_to_error, field, key, orders, request, response};

#[actix_web::test]
async fn what_meets_a_busy_lock_runs_later_with_its_body() {
    let store = Store::memory();
    let seen = Data::new(Seen::default());
    let app = app!(store, seen);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = DeferWorker::new(&store, orders(seen.clone()));
    let worker = actix_web::rt::spawn(worker.run(async { drop(stopped.await) }));

    let held = store.lock(key()).acquire().await.expect("free");
    let accepted = call_service(&app, request("later")).await;
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    assert_eq!(seen.runs.load(Ordering::SeqCst), 0);
    held.release().await;
    assert_eq!(response(&app, &accepted).await, (StatusCode::OK, "1 Some(1) later".into()));

    drop(stop);
    worker.await.expect("it drains");
}

#[actix_web::test]
async fn a_panic_in_a_run_does_not_reach_the_next() {
    let store = Store::memory();
    let seen = Data::new(Seen::default());
    let app = app!(store, seen);
    actix_web::rt::spawn(
        DeferWorker::new(&store, orders(seen.clone())).run(std::future::pending()),
    );

    let held = store.lock(key()).acquire().await.expect("free");
    let (first, second) =
        (call_service(&app, request("panic")).await, call_service(&app, request("next")).await);
    held.release().await;
    assert_eq!(response(&app, &first).await.0, StatusCode::GONE);
    assert_eq!(response(&app, &second).await, (StatusCode::OK, "2 Some(1) next".into()));
}

/// A middleware that fails, as many do to refuse: the server makes an answer of its error, so a run has it
/// for its answer too.
#[actix_web::test]
async fn an_error_of_a_middleware_is_the_answer_of_a_run() {
    let store = Store::memory();
    let orders = |config: &mut ServiceConfig| {
        let refund = web::resource("/orders/{id}/refund")
            .post(|| async { HttpResponse::BadRequest().finish() })
            .wrap(from_fn(all_to_error))
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

    let held = store.lock(key()).acquire().await.expect("free");
    let refused = call_service(&app, request("")).await;
    let denied = TestRequest::post().uri("/denied/7").to_request();
    let denied = call_service(&app, denied).await;
    held.release().await;
    assert_eq!(response(&app, &refused).await, (StatusCode::IM_A_TEAPOT, "no".into()));
    let (status, problem) = response(&app, &denied).await;
    assert_eq!(status, StatusCode::GONE);
    let problem = String::from_utf8_lossy(&problem);
    assert!(problem.contains(r#""reason":"auth""#), "{problem}");
}

/// An authentication that knows no runs.
async fn deny_runs(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if request.extensions().get::<lockgate::Deferred>().is_some() {
        return Err(ErrorUnauthorized("who are you?"));
    }
    next.call(request).await
}

#[actix_web::test]
async fn a_run_that_nobody_waits_for_is_stopped() {
    let store = Store::memory();
    let seen = Data::new(Seen::default());
    let app = app!(store, seen);
    let worker = DeferWorker::new(&store, orders(seen.clone()));
    let worker = actix_web::rt::spawn(worker.run(std::future::pending()));

    let held = store.lock(key()).acquire().await.expect("free");
    let accepted = call_service(&app, request("stay")).await;
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    held.release().await;
    seen.started.notified().await;
    worker.abort();
    let gone = timeout(Duration::from_secs(5), seen.gone.notified()).await;
    assert!(gone.is_ok(), "the run goes on without its worker");
}

#[actix_web::test]
async fn routes_that_cannot_be_made_leave_the_job_in_line() {
    let store = Store::memory();
    let app = app!(store, Data::new(Seen::default()));
    let broken = |_: &mut ServiceConfig| panic!("no routes today");
    actix_web::rt::spawn(DeferWorker::new(&store, broken).run(std::future::pending()));

    let held = store.lock(key()).acquire().await.expect("free");
    let accepted = call_service(&app, request("later")).await;
    held.release().await;
    let location = field(&accepted, "location");
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
