//! A small order service on axum with three routes: one that locks, one that waits for the lock,
//! and one that defers.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis server. `PORT` is 3000 by default;
//! 0 picks a free port.

mod dead_letters;
mod orders;
#[path = "../../assets/prometheus_exporter.rs"]
mod prometheus_exporter;

use std::{
    env, error::Error, future::IntoFuture as _, net::SocketAddr, panic::AssertUnwindSafe,
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, Request},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{Next, from_fn},
    response::{Html, IntoResponse as _, Response},
    routing::{get, post},
};
use futures_util::FutureExt as _;
use lockgate_axum::{
    DeferLayer, DeferWorker, LocalOperator, LockLayer, Quota, RateLimitLayer, Store,
    admin::Permission, console, deferred_routes, loopback_only, metrics,
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use self::orders::OrderLog;

/// Timeout of a call to Redis. It is above the default of 250 ms, so that a busy development
/// machine does not count as an outage.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Commands to try, for the default port. Each of them makes the lock busy that it needs.
const CURL_LINES: &str = include_str!("../../assets/curl-lines.txt");

const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
        .with_writer(std::io::stderr)
        .init();
    // For `rediss://`. The program chooses the crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Before the store: a counter counts from the installation of the recorder on.
    let exporter = prometheus_exporter::install()?;
    metrics::describe();
    let store = match env::var("LOCKGATE_STORE").as_deref() {
        Err(_) | Ok("memory") => Store::memory(),
        Ok(url) => Store::builder(url).call_timeout(STORE_CALL_TIMEOUT).connect().await?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let routes = routes(&store);
    let app = routes
        .clone()
        .merge(deferred_routes("/deferred").store(&store))
        .merge(console("/ops", LocalOperator::new(Permission::SeePayloads)).store(&store))
        .route("/", get(|| async { Html(include_str!("../../assets/index.html")) }))
        .route("/healthz", get(health))
        .route("/metrics", get(show_metrics).layer(from_fn(loopback_only)))
        .layer(Extension(exporter))
        .layer(Extension(store.clone()))
        .layer(from_fn(catch_panic));
    // Until SIGTERM or ctrl-c. They are caught before the address is printed, so that an early one
    // is not lost.
    let server =
        lockgate_axum::serve(listener, app).worker(DeferWorker::new(&store, routes)).into_future();
    print_usage(address);
    server.await?;
    Ok(())
}

fn routes(store: &Store) -> Router {
    let limited = Router::new().route("/limited", get(|| async { "ok" })).layer(
        RateLimitLayer::by_ip(Quota::requests(10).per(Duration::from_secs(10)))
            .policy_name("limited"),
    );
    // The handlers take ids as text. For `Path<u64>` use `by_path_param_as::<u64>("id")`.
    let pay = Router::new()
        .route("/orders/{id}/pay", post(orders::pay))
        .layer(LockLayer::by_path_param("id"));
    let ship = Router::new()
        .route("/orders/{id}/ship", post(orders::ship))
        .layer(LockLayer::by_path_param("id").wait(Duration::from_secs(5)));
    let refund = Router::new()
        .route("/orders/{id}/refund", post(orders::refund))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new());
    Router::new()
        .route("/orders/{id}", get(orders::list_events))
        .route("/live/{id}", get(orders::show_live))
        .route("/dead", get(dead_letters::list))
        .route("/dead/{id}/redrive", post(dead_letters::redrive))
        .merge(pay)
        .merge(ship)
        .merge(refund)
        .merge(limited)
        .layer(DefaultBodyLimit::max(64 * 1024))
        .layer(from_fn(reject_empty_id))
        .layer(Extension(store.clone()))
        .with_state(OrderLog::default())
}

/// Rejects an empty id: axum matches a path parameter with empty text too.
async fn reject_empty_id(request: Request, next: Next) -> Response {
    if request.uri().path().contains("//") {
        return StatusCode::NOT_FOUND.into_response();
    }
    next.run(request).await
}

async fn health(Extension(store): Extension<Store>) -> StatusCode {
    match store.ping().await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Metrics in the text format of Prometheus.
async fn show_metrics(
    Extension(store): Extension<Store>,
    Extension(exporter): Extension<PrometheusHandle>,
) -> Response {
    metrics::collect(&store).await;
    ([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], exporter.render()).into_response()
}

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    for line in CURL_LINES.lines() {
        println!("  {}", line.replace("127.0.0.1:3000", &address.to_string()));
    }
}

/// Answers a panic with 500. hyper would close the connection, and a browser would then send the
/// request again. Runs of the worker do not pass this layer.
async fn catch_panic(request: Request, next: Next) -> Response {
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    response.unwrap_or_else(|_| {
        (StatusCode::INTERNAL_SERVER_ERROR, "the handler panicked").into_response()
    })
}
