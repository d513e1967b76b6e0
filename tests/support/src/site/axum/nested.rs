//! Routes inside prefixes that have parameters.

use axum::{Router, routing::any};
use lockgate_axum::{DeferLayer, LockLayer, RateLimitLayer};

use super::{Routes, minute, policies::locked};

pub(super) fn nested() -> Routes {
    let around = Router::new()
        .nest("/around-tenants/{id}", Router::new().route("/orders/{id}", any(locked)))
        .layer(LockLayer::by_path_param("id"));
    Router::new()
        .nest("/tenants/{id}", orders())
        .nest("/shops/{shop}", orders())
        .nest_service("/hosted/{id}", orders_as_service())
        .merge(around)
}

fn one(path: &str, layer: LockLayer) -> Routes {
    Router::new().route(path, any(locked)).layer(layer)
}

fn orders() -> Routes {
    let quota = RateLimitLayer::by_path_param("id", minute(2)).policy_name("nested");
    one("/orders/{id}/pay", LockLayer::by_path_param("id"))
        .merge(one("/orders/{id}/pay-number", LockLayer::by_path_param_as::<u64>("id")))
        .merge(one("/orders/{id}/later", LockLayer::by_path_param("id")).layer(DeferLayer::new()))
        .merge(one("/orders/{id}/to/{to}", LockLayer::by_path_params(["id", "to"])))
        .merge(one("/orders/{id}/of/{to}", LockLayer::by_path_param("to").and_path_param("id")))
        .merge(one("/orders/{id}/other/{to}", LockLayer::by_path_param("to").named("id")))
        .merge(Router::new().route("/orders/{id}/quota", any(locked)).layer(quota))
}

fn orders_as_service() -> Router {
    let lock = LockLayer::by_path_param("id");
    Router::new().route("/orders/{id}/pay", any(async || "paid")).layer(lock)
}
