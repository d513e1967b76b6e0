//! The test kit, used as in an application.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{Path, Request},
    response::Response,
    routing::{post, put},
};
use http::StatusCode;
use lockgate_axum::{
    DeferLayer, DeferWorker, Fence, Key, LockLayer, deferred_routes,
    testing::{TestDeferWorker, TestKit},
};
use tower::ServiceExt as _;

/// Application with two routes; the `PUT` fails as often as `failures` says.
fn order_app(kit: &TestKit, failures: &Arc<AtomicU32>) -> Router {
    let failures = Arc::clone(failures);
    let set = move || async move {
        let remaining =
            failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        remaining.map_or(StatusCode::OK, |_| StatusCode::INTERNAL_SERVER_ERROR)
    };
    Router::new()
        .route("/orders/{id}/refund", post(|Path(id): Path<String>| async move { id }))
        .route("/orders/{id}", put(set))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new())
        .merge(deferred_routes("/deferred"))
        .layer(Extension(kit.store().clone()))
}

async fn start_app(kit: &TestKit, failures: u32) -> (Router, TestDeferWorker) {
    let app = order_app(kit, &Arc::new(AtomicU32::new(failures)));
    let worker = kit.defer_worker(DeferWorker::new(kit.store(), app.clone())).await;
    (app, worker.expect("an embedded store is always available"))
}

async fn send_request(app: &Router, method: &str, target: &str) -> Response {
    let request = Request::builder().method(method).uri(target).body(Body::empty());
    app.clone().oneshot(request.expect("valid")).await.expect("it does not fail")
}

async fn body_text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 10_000).await.expect("short");
    String::from_utf8(bytes.into()).expect("text")
}

#[tokio::test]
async fn status_routes_can_be_at_the_root() {
    for root in ["/", ""] {
        let kit = TestKit::new();
        let app: Router = Router::new()
            .route("/orders/{id}/refund", post(|| async {}))
            .layer(LockLayer::by_path_param("id"))
            .layer(DeferLayer::new().status_path(root))
            .merge(deferred_routes(root))
            .layer(Extension(kit.store().clone()));
        let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
        let accepted = send_request(&app, "POST", "/orders/7/refund").await;
        let location = accepted.headers()["location"].to_str().expect("a path").to_owned();
        // Two slashes would name another host.
        assert!(location.starts_with('/') && !location.starts_with("//"), "{location}");
        assert_eq!(send_request(&app, "GET", &location).await.status(), 200);
        drop(guard);
    }
}

/// Over HTTP/2 only the URI of a request has the host.
#[tokio::test]
async fn run_has_the_host_of_the_original_request() {
    let kit = TestKit::new();
    let host = |request: Request| async move {
        let host =
            request.headers().get("host").map(|host| host.to_str().expect("text").to_owned());
        host.unwrap_or_default()
    };
    let app = Router::new()
        .route("/orders/{id}/refund", post(host))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new())
        .merge(deferred_routes("/deferred"))
        .layer(Extension(kit.store().clone()));
    let worker = kit.defer_worker(DeferWorker::new(kit.store(), app.clone())).await;
    let mut worker = worker.expect("an embedded store is always available");
    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let target = "http://user:secret@tenant.example:8080/orders/7/refund";
    let accepted = send_request(&app, "POST", target).await;
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers()["location"].to_str().expect("a path").to_owned();
    drop(guard);
    assert_eq!(worker.run_due().await.expect("it is there").len(), 1);
    let answer = send_request(&app, "GET", &format!("{location}/response")).await;
    assert_eq!(body_text(answer).await, "tenant.example:8080");
}

#[tokio::test]
async fn fence_extractor_yields_growing_fences() {
    let kit = TestKit::new();
    let with = post(|Fence(fence): Fence| async move { fence.to_string() });
    let app: Router = Router::new()
        .route("/orders/{id}", with.clone().layer(LockLayer::by_path_param("id")))
        .route("/bare", with)
        .layer(Extension(kit.store().clone()));
    let mut fences = Vec::new();
    for _ in 0..2 {
        let answer = send_request(&app, "POST", "/orders/7").await;
        assert_eq!(answer.status(), 200);
        fences.push(body_text(answer).await.parse::<u64>().expect("a number"));
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    assert_eq!(send_request(&app, "POST", "/bare").await.status(), 500, "there is no lock");
}

/// `layer` answers a wrong method under its lock, since axum selects the method further inside;
/// `route_layer` does not.
#[tokio::test]
async fn wrong_method_under_route_layer_takes_no_lock() {
    let kit = TestKit::new();
    let (lock, defer) = (|| LockLayer::by_path_param("id"), DeferLayer::new);
    let later = post(|| async {}).route_layer(lock()).route_layer(defer());
    let outside_later = Router::new().route("/outside-later/{id}", post(|| async {}));
    let outside_later = outside_later.layer(lock()).layer(defer());
    let app: Router = Router::new()
        .route("/outside/{id}", post(|| async {}).layer(lock()))
        .route("/inside/{id}", post(|| async {}).route_layer(lock()))
        .merge(outside_later)
        .route("/inside-later/{id}", later)
        .layer(Extension(kit.store().clone()));
    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    assert_eq!(send_request(&app, "PUT", "/outside/7").await.status(), 409);
    assert_eq!(send_request(&app, "PUT", "/inside/7").await.status(), 405);
    assert_eq!(send_request(&app, "POST", "/inside/7").await.status(), 409);
    assert_eq!(send_request(&app, "PUT", "/outside-later/7").await.status(), 202);
    assert_eq!(send_request(&app, "PUT", "/inside-later/7").await.status(), 405);
    assert_eq!(send_request(&app, "POST", "/inside-later/7").await.status(), 202);
    drop(guard);
}

#[tokio::test]
async fn deferred_request_runs_after_the_lock_is_released() {
    let kit = TestKit::new();
    let (app, mut worker) = start_app(&kit, 0).await;
    assert_eq!(
        send_request(&app, "POST", "/orders/7/refund").await.status(),
        200,
        "the lock is free"
    );

    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let accepted = send_request(&app, "POST", "/orders/7/refund").await;
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers()["location"].to_str().expect("a path").to_owned();
    assert_eq!(worker.run_due().await.expect("it is there"), [], "the lock is held");
    drop(guard);
    let ran = worker.run_due().await.expect("it is there");
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert_eq!((&*ran[0].method, &*ran[0].target), ("POST", "/orders/7/refund"));
    assert_eq!((ran[0].status, ran[0].attempt), (Some(200), 1));
    let response = send_request(&app, "GET", &format!("{location}/response")).await;
    assert_eq!((response.status().as_u16(), &*body_text(response).await), (200, "7"));
    assert_eq!(worker.run_due().await.expect("it is there"), [], "once");
}

#[tokio::test]
async fn pretend_busy_defers_all_requests_in_order() {
    let kit = TestKit::new();
    let (app, mut worker) = start_app(&kit, 0).await;
    kit.pretend_busy(true);
    let mut ids = Vec::new();
    for order in ["7", "7", "8", "7"] {
        let accepted = send_request(&app, "POST", &format!("/orders/{order}/refund")).await;
        assert_eq!(accepted.status(), 202);
        ids.push(accepted.headers()["location"].to_str().expect("a path").to_owned());
    }
    let ran = worker.run_due().await.expect("it is there");
    let mut of_seven: Vec<_> = ran.iter().filter(|run| run.target.contains("/7/")).collect();
    assert_eq!((ran.len(), of_seven.len()), (4, 3));
    of_seven.retain(|run| !ids[3].ends_with(run.id.as_str()));
    assert!(ids[0].ends_with(of_seven[0].id.as_str()) && ids[1].ends_with(of_seven[1].id.as_str()));
    kit.pretend_busy(false);
    assert_eq!(send_request(&app, "POST", "/orders/7/refund").await.status(), 200);
}

#[tokio::test]
async fn failed_run_is_retried_after_its_backoff() {
    let kit = TestKit::new();
    let (app, mut worker) = start_app(&kit, 2).await;
    kit.pretend_busy(true);
    assert_eq!(send_request(&app, "PUT", "/orders/7").await.status(), 202);
    let mut runs = Vec::new();
    for _ in 0..4 {
        let ran = worker.run_due().await.expect("it is there");
        runs.extend(ran.into_iter().map(|run| (run.attempt, run.status)));
        // Longer than any backoff.
        kit.advance(Duration::from_secs(60 * 60));
    }
    assert_eq!(runs, [(1, Some(500)), (2, Some(500)), (3, Some(200))]);
}

#[tokio::test]
async fn queue_rate_and_pause_follow_the_test_clock() {
    let kit = TestKit::new();
    let app = order_app(&kit, &Arc::default());
    let worker = DeferWorker::new(kit.store(), app.clone()).queue_rate(10, Duration::from_secs(1));
    let mut worker = kit.defer_worker(worker).await.expect("an embedded store is always available");
    kit.pretend_busy(true);
    for order in 0..3 {
        assert_eq!(send_request(&app, "PUT", &format!("/orders/{order}")).await.status(), 202);
    }
    let jobs = kit.store().deferred_jobs();
    jobs.pause().await.expect("it is there");
    assert_eq!(worker.run_due().await.expect("it is there"), [], "the queue is paused");
    jobs.resume().await.expect("it is there");
    for _ in 0..3 {
        assert_eq!(worker.run_due().await.expect("it is there").len(), 1, "ten a second, evenly");
        kit.advance(Duration::from_millis(100));
    }
    assert_eq!(worker.run_due().await.expect("it is there"), []);
}
