//! A small order service on axum with three routes: one that locks, one that waits for the lock,
//! and one that defers.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis server. `PORT` is 3000 by default;
//! 0 picks a free port.

mod orders;

use std::{env, error::Error, future::IntoFuture as _, net::SocketAddr, pin::pin, time::Duration};

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn, from_fn_with_state},
    response::{Html, IntoResponse as _, Response},
    routing::{get, post},
};
use lockgate_axum::{
    DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use self::orders::OrderLog;

/// Time that active requests and jobs have to finish after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a call to Redis. It is above the default of 250 ms, so that a busy development
/// machine does not count as an outage.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
        .with_writer(std::io::stderr)
        .init();
    // For `rediss://`. The program chooses the crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = match env::var("LOCKGATE_STORE").as_deref() {
        Err(_) | Ok("memory") => Store::memory(),
        Ok(url) => Store::builder(url).call_timeout(STORE_CALL_TIMEOUT).connect().await?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    // Installs the signal handlers before the address is printed, so that an early signal is not
    // lost.
    let termination = listen_for_termination()?;
    print_usage(listener.local_addr()?);

    let ((stop, stop_signal), (cut, cut_signal)) = (watch::channel(false), watch::channel(false));
    let app = routes(&store);
    let worker = tokio::spawn(
        DeferWorker::new(&store, app.clone())
            .drain_timeout(DRAIN_TIMEOUT)
            .run(wait_for_stop(stop_signal.clone())),
    );
    let app = app
        .merge(deferred_routes("/deferred").store(&store))
        .route("/", get(|| async { Html(include_str!("../../assets/index.html")) }))
        .route("/healthz", get(health))
        .layer(Extension(store.clone()))
        .layer(from_fn_with_state(cut_signal, run_until_cut))
        .into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(
        axum::serve(listener, app).with_graceful_shutdown(wait_for_stop(stop_signal)).into_future(),
    );

    termination.await;
    // The worker stops claiming and the server stops accepting. Active requests may finish.
    stop.send_replace(true);
    let mut drained = pin!(async {
        let results = (worker.await, server.await);
        // Remembered requests of disconnected clients continue without a connection.
        store.wait_for_direct_runs(DRAIN_TIMEOUT).await;
        results
    });
    if tokio::time::timeout(DRAIN_TIMEOUT + Duration::from_secs(3), &mut drained).await.is_err() {
        // Drops active requests, so that their locks are released. Otherwise the locks stay held
        // until their leases expire.
        cut.send_replace(true);
        let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
    }
    store.shutdown(Duration::from_secs(1)).await;
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

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    println!("  curl -i http://{address}/limited");
    println!("  curl -i -X POST 'http://{address}/orders/7/pay?ms=2000'");
    println!("  curl -i -X POST 'http://{address}/orders/7/ship?ms=100'");
    println!("  curl -i -X POST 'http://{address}/orders/7/refund' -d 'too late'");
    println!("  curl -s http://{address}/orders/7");
}

/// Ends the request when the drain timeout is over. axum runs each connection in a task of its own,
/// which continues even if the server future is dropped.
async fn run_until_cut(
    State(cut_signal): State<watch::Receiver<bool>>,
    request: Request,
    next: Next,
) -> Response {
    tokio::select! {
        response = next.run(request) => response,
        () = wait_for_stop(cut_signal) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn wait_for_stop(mut stop_signal: watch::Receiver<bool>) {
    // The channel fails only if `main` has ended, which also means stop.
    let _ = stop_signal.wait_for(|stop| *stop).await;
}

/// Starts to listen for signals at once. The returned future resolves at the first one.
fn listen_for_termination() -> std::io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
