//! A service on plain hyper: a rate limit per client address, and a lock per value of the header
//! `order`.
//!
//! It does by hand what the integration crates do for a framework: it configures the source of each
//! gate's key and inserts the peer address into each request.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis server. `PORT` is 3000 by default;
//! 0 picks a free port.

use std::{convert::Infallible, env, error::Error, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown, service::TowerToHyperService};
use lockgate::{
    HeldLock, Quota, RateStatus, Store, lock::LockLayer, middleware::PlainHttp,
    rate_limit::RateLimitLayer,
};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};
use tower::ServiceBuilder;

/// Time that active requests have to finish after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The layers of the two gates. They are created once, so that all connections share their state.
#[derive(Clone)]
struct GateLayers {
    limit: RateLimitLayer<PlainHttp>,
    lock: LockLayer<PlainHttp>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
        .with_writer(std::io::stderr)
        .init();
    let store = match env::var("LOCKGATE_STORE").as_deref() {
        Err(_) | Ok("memory") => Store::memory(),
        Ok(url) => Store::connect(url).await?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    print_usage(listener.local_addr()?);

    let quota = Quota::requests(10).per(Duration::from_secs(10));
    let limit = RateLimitLayer::by_ip(quota).policy_name("limited").store(&store);
    let lock = LockLayer::by_header("order").store(&store);
    let (layers, connections) = (GateLayers { limit, lock }, GracefulShutdown::new());
    let mut term = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => spawn_connection(stream, peer, layers.clone(), &connections),
                Err(error) => tracing::warn!(%error, "not accepted"),
            },
            _ = term.recv() => break,
        }
    }
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, connections.shutdown()).await;
    store.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// Serves one connection. The rate limit is outside the lock, so a refused request acquires no
/// lock.
fn spawn_connection(
    stream: TcpStream,
    peer: SocketAddr,
    layers: GateLayers,
    connections: &GracefulShutdown,
) {
    let service = ServiceBuilder::new()
        .map_request(move |mut request: Request<Incoming>| {
            // `PlainHttp` reads the client's address from this extension.
            request.extensions_mut().insert(peer);
            request
        })
        .layer(layers.limit)
        .layer(layers.lock)
        .service_fn(handle_request);
    let connection = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
    });
}

/// Reads the results of the gates from the request's extensions.
async fn handle_request(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let extensions = request.extensions();
    let remaining = extensions.get::<RateStatus>().map(|status| status.decision().remaining());
    let fence = extensions.get::<HeldLock>().and_then(HeldLock::fence);
    let text = match (fence, remaining) {
        (Some(fence), _) => format!("done under the lock, fence {fence}\n"),
        (None, Some(remaining)) => format!("{remaining} requests left\n"),
        (None, None) => "ok\n".to_owned(),
    };
    Ok(Response::new(Full::from(text)))
}

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    println!("  curl -i http://{address}/");
    println!("  curl -i -X POST -H 'order: 7' http://{address}/");
}
