//! The bodies of requests under a lock are what they were.

use axum::RequestExt as _;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Request},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::Response,
    routing::post,
};
use lockgate_axum::{LockLayer, Store};
use tower::ServiceExt as _;

async fn limited(request: Request, next: Next) -> Response {
    next.run(request.with_limited_body()).await
}

async fn status(app: &Router, body: &'static str) -> StatusCode {
    let request = Request::post("/orders/7").body(Body::from(body)).expect("valid");
    app.clone().oneshot(request).await.expect("a router has no errors").status()
}

/// axum looks for the reason inside the body's error, at a depth it knows.
#[tokio::test]
async fn a_body_over_its_limit_is_413_wherever_the_limit_is_set() {
    let store = Store::memory();
    let order = || Router::new().route("/orders/{id}", post(|body: Bytes| async { body }));
    let lock = || LockLayer::by_path_param("id").store(&store);
    let inside = order().layer(lock()).layer(DefaultBodyLimit::max(4));
    let outside = order().layer(lock()).layer(from_fn(limited)).layer(DefaultBodyLimit::max(4));
    for app in [inside, outside] {
        assert_eq!(status(&app, "four").await, StatusCode::OK);
        assert_eq!(status(&app, "longer").await, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
