//! The bodies of requests under a lock, and of their answers, are what they were.

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

/// A body that nobody has to look after is the handler's own, and in none of ours, as its error shows.
#[tokio::test]
async fn an_answer_is_the_handlers_own_unless_the_lock_hangs_on_it() {
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
