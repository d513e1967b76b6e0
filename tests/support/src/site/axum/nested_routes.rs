//! Routes inside prefixes with parameters.

use axum::{Router, routing::any};
use lockgate_axum::{DeferLayer, LockLayer, RateLimitLayer};

use super::{AppRoutes, lock_option_routes::handle_with_locks, quota_per_minute};

pub(super) fn nested_routes() -> AppRoutes {
    let around = Router::new()
        .nest("/around-tenants/{id}", Router::new().route("/orders/{id}", any(handle_with_locks)))
        .layer(LockLayer::by_path_param("id"));
    Router::new()
        .nest("/tenants/{id}", order_routes())
        .nest("/shops/{shop}", order_routes())
        .nest_service("/hosted/{id}", order_service())
        .merge(around)
}

fn locked_route(path: &str, layer: LockLayer) -> AppRoutes {
    Router::new().route(path, any(handle_with_locks)).layer(layer)
}

fn order_routes() -> AppRoutes {
    let quota = RateLimitLayer::by_path_param("id", quota_per_minute(2)).policy_name("nested");
    locked_route("/orders/{id}/pay", LockLayer::by_path_param("id"))
        .merge(locked_route("/orders/{id}/pay-number", LockLayer::by_path_param_as::<u64>("id")))
        .merge(
            locked_route("/orders/{id}/later", LockLayer::by_path_param("id"))
                .layer(DeferLayer::new()),
        )
        .merge(locked_route("/orders/{id}/to/{to}", LockLayer::by_path_params(["id", "to"])))
        .merge(locked_route(
            "/orders/{id}/of/{to}",
            LockLayer::by_path_param("to").and_path_param("id"),
        ))
        .merge(locked_route("/orders/{id}/other/{to}", LockLayer::by_path_param("to").named("id")))
        .merge(Router::new().route("/orders/{id}/quota", any(handle_with_locks)).layer(quota))
}

fn order_service() -> Router {
    let lock = LockLayer::by_path_param("id");
    Router::new().route("/orders/{id}/pay", any(async || "paid")).layer(lock)
}
