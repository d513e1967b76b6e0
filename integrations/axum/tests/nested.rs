//! A layer around a nested service does not know its routes yet: the response is 500, and no
//! request passes unlocked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, http::StatusCode, routing::post};
use lockgate_axum::{CurrentLock, LockLayer, Quota, RateLimitLayer, Store};
use tower::ServiceExt as _;

/// Routes whose handler counts its calls and returns whether it runs under a lock.
fn order_routes(calls: &Arc<AtomicU32>) -> Router {
    let calls = Arc::clone(calls);
    let pay = async move |lock: Option<CurrentLock>| {
        calls.fetch_add(1, Ordering::Relaxed);
        if lock.is_some() { "locked" } else { "free" }
    };
    Router::new().route("/orders/{id}/pay", post(pay))
}

async fn post_response(app: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::post(path).body(Body::empty()).expect("valid");
    let answer = app.clone().oneshot(request).await.expect("a router has no errors");
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 4096).await.expect("it is whole");
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn lock_around_a_nested_service_is_500_not_404() {
    let (store, calls) = (Store::memory(), Arc::default());
    let lock = || LockLayer::by_path_param("id").store(&store);
    let once = Router::new().nest_service("/api", order_routes(&calls)).layer(lock());
    let twice =
        Router::new().nest_service("/v1", Router::new().nest_service("/api", order_routes(&calls)));
    let slash = Router::new().nest_service("/api/", order_routes(&calls)).layer(lock());
    let behind = Router::new().nest_service("/b", order_routes(&calls)).layer(lock());
    let behind = Router::new().nest("/api", Router::new().fallback_service(behind));
    let alike = Router::new().nest_service("/a", order_routes(&calls)).layer(lock());
    let alike = Router::new().nest("/api", Router::new().fallback_service(alike));
    let apps = [
        (alike, "/api/a/orders/7/pay"),
        (behind, "/api/b/orders/7/pay"),
        (once, "/api/orders/7/pay"),
        (twice.layer(lock()), "/v1/api/orders/7/pay"),
        (slash, "/api/orders/7/pay"),
    ];
    for (app, path) in apps {
        assert_eq!(post_response(&app, path).await.0, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0, "a handler ran without its lock");
}

/// Inside the nested service the routes are known, and so are paths without a route. The routes of
/// a nested router are always known.
#[tokio::test]
async fn lock_inside_a_nested_service_matches_its_routes() {
    let (store, calls) = (Store::memory(), Arc::default());
    let lock = || LockLayer::by_path_param("id").store(&store);
    let inside = Router::new().nest_service("/api", order_routes(&calls).layer(lock()));
    let deep = Router::new().nest_service("/v1", inside.clone());
    let router = Router::new().nest("/api", order_routes(&calls)).layer(lock());
    let apps = [(inside, ""), (deep, "/v1"), (router, "")];
    for (app, before) in apps {
        let paid = post_response(&app, &format!("{before}/api/orders/7/pay")).await;
        assert_eq!(paid, (StatusCode::OK, "locked".to_owned()), "{before}");
        for nothing in ["/api/nothing", "/api/orders/7/nothing", "/nothing"] {
            let path = format!("{before}{nothing}");
            assert_eq!(post_response(&app, &path).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }
}

/// axum matches the bare prefix as a route, and does not show whether an inner route matches. 500
/// is the safe response.
#[tokio::test]
async fn bare_prefix_of_a_nested_service_is_500() {
    let (store, calls) = (Store::memory(), Arc::default());
    let lock = LockLayer::by_path_param("id").store(&store);
    let app = Router::new().nest_service("/api", order_routes(&calls).layer(lock));
    for bare in ["/api", "/api/"] {
        assert_eq!(post_response(&app, bare).await.0, StatusCode::INTERNAL_SERVER_ERROR, "{bare}");
    }
}

/// A parameter of the prefix is known, whichever inner route matches.
#[tokio::test]
async fn lock_uses_a_parameter_of_the_nested_prefix() {
    let (store, calls) = (Store::memory(), Arc::default());
    let lock = LockLayer::by_path_param("shop").store(&store);
    let app = Router::new().nest_service("/shops/{shop}", order_routes(&calls)).layer(lock);
    let paid = post_response(&app, "/shops/3/orders/7/pay").await;
    assert_eq!(paid, (StatusCode::OK, "locked".to_owned()));
}

/// A request to a nested service is no 404, so the quota does not skip it.
#[tokio::test]
async fn quota_around_a_nested_service_requires_its_header() {
    let (store, calls) = (Store::memory(), Arc::default());
    let quota = Quota::requests(1).per(Duration::from_secs(60));
    let limit = RateLimitLayer::by_header("x-api-key", quota).store(&store);
    let app = Router::new().nest_service("/api", order_routes(&calls)).layer(limit);
    assert_eq!(post_response(&app, "/api/orders/7/pay").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(post_response(&app, "/nothing").await.0, StatusCode::NOT_FOUND);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}
