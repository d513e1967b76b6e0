//! Bodies of requests under a lock and of their responses: the layers preserve them and their
//! errors.

use std::{error::Error, io, iter::successors};

use axum::RequestExt as _;
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{DefaultBodyLimit, Request},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::Response,
    routing::post,
};
use futures_util::stream;
use lockgate::middleware::BodyError;
use lockgate_axum::{HoldUntil, LockLayer, Store};
use tower::ServiceExt as _;

async fn apply_body_limit(request: Request, next: Next) -> Response {
    next.run(request.with_limited_body()).await
}

async fn post_status(app: &Router, body: &'static str) -> StatusCode {
    let request = Request::post("/orders/7").body(Body::from(body)).expect("valid");
    app.clone().oneshot(request).await.expect("a router has no errors").status()
}

/// axum looks for the cause inside the error of the body, at a fixed depth.
#[tokio::test]
async fn body_over_inner_or_outer_limit_is_413() {
    let store = Store::memory();
    let order = || Router::new().route("/orders/{id}", post(|body: Bytes| async { body }));
    let lock = || LockLayer::by_path_param("id").store(&store);
    let inside = order().layer(lock()).layer(DefaultBodyLimit::max(4));
    let outside =
        order().layer(lock()).layer(from_fn(apply_body_limit)).layer(DefaultBodyLimit::max(4));
    for app in [inside, outside] {
        assert_eq!(post_status(&app, "four").await, StatusCode::OK);
        assert_eq!(post_status(&app, "longer").await, StatusCode::PAYLOAD_TOO_LARGE);
    }
}

/// A response body is passed on unwrapped unless it holds the lock. Its error shows the wrapper.
#[tokio::test]
async fn response_body_is_wrapped_only_while_it_holds_the_lock() {
    let store = Store::memory();
    for (until, own) in [(HoldUntil::Answered, true), (HoldUntil::BodyEnd, false)] {
        let cut = || async {
            Body::from_stream(stream::iter([Err::<Bytes, _>(io::Error::other("cut"))]))
        };
        let lock = LockLayer::by_path_param("id").store(&store).hold_until(until);
        let app = Router::new().route("/orders/{id}", post(cut)).layer(lock);
        let request = Request::post("/orders/7").body(Body::empty()).expect("valid");
        let answer = app.oneshot(request).await.expect("a router has no errors");
        let error = to_bytes(answer.into_body(), 9).await.expect_err("it is cut");
        let mut causes = successors(error.source(), |&cause| cause.source());
        assert_eq!(!causes.any(<dyn Error>::is::<BodyError>), own, "{until:?}: {error:?}");
    }
}
