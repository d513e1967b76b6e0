//! A user through all three parts: stored by the layer, restored by the worker, and the only one
//! who sees the job.
//!
//! One test: a worker that lacks the user is noticed only while the process has a single store.

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
    routing::post,
};
use http::{StatusCode, header::AUTHORIZATION};
use lockgate_axum::{
    DeferLayer, DeferWorker, ErrorKind, ExtensionSnapshot, Key, LockLayer, RequestUser, Store,
    deferred_routes, testing::TestKit,
};
use serde::{Deserialize, Serialize};
use tower::ServiceExt as _;

#[derive(Clone, Serialize, Deserialize)]
struct User {
    id: u64,
}

impl ExtensionSnapshot for User {
    const NAME: &'static str = "user";
}

impl RequestUser for User {
    fn owner(&self) -> String {
        format!("user:{}", self.id)
    }
}

async fn refund(Extension(user): Extension<User>) -> String {
    format!("refunded for {}", user.id)
}

/// The number in `Authorization` is the user.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION).and_then(|token| token.to_str().ok());
    if let Some(id) = token.and_then(|token| token.parse().ok()) {
        request.extensions_mut().insert(User { id });
    }
    next.run(request).await
}

/// The routes inside the authentication, and the whole application.
fn order_app(store: &Store) -> (Router, Router) {
    let orders = Router::new()
        .route("/orders/{id}/refund", post(refund))
        .layer(LockLayer::by_path_param_as::<u64>("id"))
        .layer(DeferLayer::new().for_user::<User>())
        .layer(Extension(store.clone()));
    let status = deferred_routes("/deferred").store(store).for_user::<User>();
    (orders.clone(), orders.merge(status).layer(from_fn(authenticate)))
}

async fn send(app: &Router, method: &str, target: &str, user: Option<&str>) -> Response {
    let mut request = Request::builder().method(method).uri(target);
    if let Some(user) = user {
        request = request.header(AUTHORIZATION, user);
    }
    let request = request.body(Body::empty()).expect("valid");
    app.clone().oneshot(request).await.expect("a router has no errors")
}

#[tokio::test]
async fn user_is_stored_restored_and_the_only_one_who_sees_the_job() {
    let kit = TestKit::new();
    let (orders, app) = order_app(kit.store());
    let incomplete = DeferWorker::new(kit.store(), orders.clone());
    let refused = kit.defer_worker(incomplete).await.expect_err("it restores no user");
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("add .for_user::<U>() to the worker"), "{refused}");

    let worker = DeferWorker::new(kit.store(), orders).for_user::<User>();
    let mut worker = kit.defer_worker(worker).await.expect("it restores the user");
    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let accepted = send(&app, "POST", "/orders/7/refund", Some("1")).await;
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    let location = accepted.headers()["location"].to_str().expect("a path").to_owned();
    drop(guard);
    let runs = worker.run_due().await.expect("it is there");
    assert_eq!(runs.first().and_then(|run| run.status), Some(200));

    let response = format!("{location}/response");
    for user in [None, Some("2")] {
        for target in [&location, &response] {
            assert_eq!(send(&app, "GET", target, user).await.status(), StatusCode::NOT_FOUND);
        }
    }
    let own = send(&app, "GET", &response, Some("1")).await;
    assert_eq!(own.status(), StatusCode::OK);
    let body = to_bytes(own.into_body(), 100).await.expect("short");
    assert_eq!(&body[..], b"refunded for 1");
}
