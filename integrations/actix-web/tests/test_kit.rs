//! The test kit, used as in an application.

use std::time::Duration;

use actix_web::{
    App, HttpRequest,
    body::{BoxBody, to_bytes},
    dev::{Service, ServiceResponse},
    test,
    web::{self, ServiceConfig},
};
use lockgate_actix_web::{
    DeferLayer, DeferWorker, Key, LockLayer, deferred_routes, testing::TestKit,
};

fn order_routes(config: &mut ServiceConfig) {
    let refund = web::resource("/orders/{id}/refund")
        .post(async |id: web::Path<String>| id.into_inner())
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new());
    config.service(refund);
}

async fn body_text(response: ServiceResponse<BoxBody>) -> String {
    let bytes = to_bytes(response.into_body()).await.expect("short");
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// They are mounted after the other routes, since the first route that matches is used.
#[actix_web::test]
async fn status_routes_can_be_at_the_root() {
    for root in ["/", ""] {
        let kit = TestKit::new();
        let refund = web::resource("/orders/{id}/refund")
            .post(async || "")
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().status_path(root));
        let app = App::new()
            .service(refund)
            .route("/healthz", web::get().to(async || "well"))
            .service(deferred_routes(root))
            .app_data(web::Data::new(kit.store().clone()));
        let app = test::init_service(app).await;
        let send = async |request: test::TestRequest| {
            app.call(request.to_request()).await.expect("an answer").map_into_boxed_body()
        };
        let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
        let accepted = send(test::TestRequest::post().uri("/orders/7/refund")).await;
        let location = accepted.headers().get("location").expect("one").to_str().expect("a path");
        assert!(location.starts_with('/') && !location.starts_with("//"), "{location}");
        assert_eq!(send(test::TestRequest::get().uri(location)).await.status(), 200);
        assert_eq!(body_text(send(test::TestRequest::get().uri("/healthz")).await).await, "well");
        drop(guard);
    }
}

fn host_echo_routes(config: &mut ServiceConfig) {
    let host = async |request: HttpRequest| {
        let host =
            request.headers().get("host").map(|host| host.to_str().expect("text").to_owned());
        host.unwrap_or_default()
    };
    let refund = web::resource("/orders/{id}/refund")
        .post(host)
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new());
    config.service(refund);
}

/// Over HTTP/2 only the URI of a request has the host.
#[actix_web::test]
async fn run_has_the_host_of_the_original_request() {
    let kit = TestKit::new();
    let app = App::new()
        .configure(host_echo_routes)
        .service(deferred_routes("/deferred"))
        .app_data(web::Data::new(kit.store().clone()));
    let app = test::init_service(app).await;
    let worker = kit.defer_worker(DeferWorker::new(kit.store(), host_echo_routes)).await;
    let mut worker = worker.expect("an embedded store is always available");
    let send = async |request: test::TestRequest| {
        app.call(request.to_request()).await.expect("an answer").map_into_boxed_body()
    };
    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let target = "http://user:secret@tenant.example:8080/orders/7/refund";
    let accepted = send(test::TestRequest::post().uri(target)).await;
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers().get("location").expect("one").to_str().expect("a path");
    let location = format!("{location}/response");
    drop(guard);
    assert_eq!(worker.run_due().await.expect("it is there").len(), 1);
    let answer = send(test::TestRequest::get().uri(&location)).await;
    assert_eq!(body_text(answer).await, "tenant.example:8080");
}

/// A layer around a resource answers a wrong method under its lock, since actix selects the method
/// further inside. A layer around a route does not.
#[actix_web::test]
async fn wrong_method_around_a_route_takes_no_lock() {
    let kit = TestKit::new();
    let (lock, defer) = (|| LockLayer::by_path_param("id"), DeferLayer::new);
    let outside = web::resource("/outside/{id}").post(async || "").wrap(lock()).wrap(defer());
    let inside = web::post().to(async || "").wrap(lock()).wrap(defer());
    let app = App::new()
        .service(outside)
        .service(web::resource("/inside/{id}").route(inside))
        .app_data(web::Data::new(kit.store().clone()));
    let app = test::init_service(app).await;
    let _guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    for (request, path, status) in [
        (test::TestRequest::put(), "/outside/7", 202),
        (test::TestRequest::put(), "/inside/7", 405),
        (test::TestRequest::post(), "/inside/7", 202),
    ] {
        let answer = app.call(request.uri(path).to_request()).await.expect("an answer");
        assert_eq!(answer.status(), status, "{path}");
    }
}

#[actix_web::test]
async fn deferred_request_runs_after_the_lock_is_released() {
    let kit = TestKit::new();
    let app = App::new()
        .configure(order_routes)
        .service(deferred_routes("/deferred"))
        .app_data(web::Data::new(kit.store().clone()));
    let app = test::init_service(app).await;
    let worker = DeferWorker::new(kit.store(), order_routes);
    let mut worker = kit.defer_worker(worker).await.expect("an embedded store is always available");
    let send = async |request: test::TestRequest| {
        let response = app.call(request.to_request()).await.expect("an answer");
        response.map_into_boxed_body()
    };

    let refund = || test::TestRequest::post().uri("/orders/7/refund");
    assert_eq!(send(refund()).await.status(), 200, "the lock is free");
    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let accepted = send(refund()).await;
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers().get("location").expect("one").to_str().expect("a path");
    assert_eq!(worker.run_due().await.expect("it is there"), [], "the lock is held");
    drop(guard);
    let ran = worker.run_due().await.expect("it is there");
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert_eq!((&*ran[0].target, ran[0].status), ("/orders/7/refund", Some(200)));
    let response = test::TestRequest::get().uri(&format!("{location}/response"));
    assert_eq!(body_text(send(response).await).await, "7");

    kit.pretend_busy(true);
    assert_eq!(send(refund()).await.status(), 202);
    assert_eq!(worker.run_due().await.expect("it is there").len(), 1);
}

/// Runs are in another thread, and a paused clock advances when all tasks of its own thread wait.
#[actix_web::test]
async fn run_is_not_ended_by_a_paused_clock() {
    fn slow_routes(config: &mut ServiceConfig) {
        let refund = web::resource("/orders/{id}/refund")
            .post(async || {
                // By the clock of the other thread, which is not paused.
                actix_web::rt::time::sleep(Duration::from_millis(50)).await;
                "refunded"
            })
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().background());
        config.service(refund);
    }
    tokio::time::pause();
    let kit = TestKit::new();
    let app = App::new().configure(slow_routes).app_data(web::Data::new(kit.store().clone()));
    let app = test::init_service(app).await;
    let worker = kit.defer_worker(DeferWorker::new(kit.store(), slow_routes)).await;
    let mut worker = worker.expect("an embedded store is always available");
    let refund = test::TestRequest::post().uri("/orders/7/refund").to_request();
    assert_eq!(app.call(refund).await.expect("an answer").status(), 202);
    let start = tokio::time::Instant::now();
    let runs = worker.run_due().await.expect("it is there");
    assert_eq!(runs.iter().map(|run| run.status).collect::<Vec<_>>(), [Some(200)]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
