//! All three layers on axum, with a worker and an orderly shutdown.
//!
//! `tests/minimal_examples.rs` runs this program; its build script replaces the store's URL, the
//! address and the body of `refund`.

use std::time::Duration;

use axum::{Extension, Router, routing::post};
use lockgate_axum::{
    DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init(); // lockgate logs wiring faults, with their fix
    let store = Store::connect("redis://127.0.0.1/").await?; // or Store::memory()

    let pay = Router::new()
        .route("/orders/{id}/pay", post(pay))
        .layer(LockLayer::by_path_param_as::<u64>("id")); // 409 while the order is locked
    let refund = Router::new()
        .route("/orders/{id}/refund", post(refund))
        .layer(LockLayer::by_path_param_as::<u64>("id"))
        .layer(DeferLayer::new()); // 202 instead of 409
    let app = pay
        .merge(refund)
        .merge(deferred_routes("/deferred").store(&store)) // status of deferred requests
        .layer(RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60))))
        .layer(Extension(store.clone())); // one store for all layers

    // Give the worker the routes inside your authentication layer: credentials are not stored.
    let worker = DeferWorker::new(&store, app.clone());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    // Until SIGTERM or ctrl-c. Then open requests and active runs have 10 s to end.
    lockgate_axum::serve(listener, app).worker(worker).await?;
    Ok(())
}

async fn pay() -> &'static str {
    "paid"
}

async fn refund() -> &'static str {
    "refunded"
}
