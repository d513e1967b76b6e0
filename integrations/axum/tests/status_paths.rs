//! The `Location` of a 202 leads to the status routes, wherever they are mounted.

use axum::{Extension, Router, body::Body, extract::Request, response::Response, routing::post};
use lockgate_axum::{DeferLayer, DeferredRoutes, LockLayer, Store, deferred_routes};
use tower::ServiceExt as _;

async fn send_request(app: &Router, method: &str, target: &str) -> Response {
    let request = Request::builder().method(method).uri(target).body(Body::empty());
    app.clone().oneshot(request.expect("valid")).await.expect("it does not fail")
}

/// Follows the `Location` of a 202, which has to begin with this path.
async fn check_location(store: &Store, status_routes: DeferredRoutes, path: &str) {
    let app: Router = Router::new()
        .route("/orders/{id}/refund", post(async || "refunded"))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().background())
        .merge(status_routes)
        .layer(Extension(store.clone()));
    let accepted = send_request(&app, "POST", "/orders/7/refund").await;
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers()["location"].to_str().expect("a path");
    assert!(location.starts_with(&format!("{path}/")), "{location}");
    assert_eq!(send_request(&app, "GET", location).await.status(), 200, "{location}");
}

// One test: the mounts of a process are known to all its layers.
#[tokio::test]
async fn location_leads_to_the_mounted_status_routes() {
    let store = Store::memory();
    check_location(&store, deferred_routes("/jobs").store(&store), "/jobs").await;
    // The store is that of the request.
    check_location(&store, deferred_routes("/status/of/jobs/"), "/status/of/jobs").await;
    check_location(&store, deferred_routes("/deferred"), "/deferred").await;
}
