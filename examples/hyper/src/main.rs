//! A service on plain hyper, without any framework: a limit for each client address, and a lock for each
//! value of the field `order`. What a framework's crate does elsewhere is done here by hand: the gates are
//! told where their keys come from, and the peer's address is put into each request.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis; `PORT` is 3000 by default, 0 for any.

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

/// How long requests may go on after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The two gates, made once: what they remember is shared by all connections.
#[derive(Clone)]
struct Gates {
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
    let (gates, open) = (Gates { limit, lock }, GracefulShutdown::new());
    let mut term = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => spawn_connection(stream, peer, gates.clone(), &open),
                Err(error) => tracing::warn!(%error, "not accepted"),
            },
            _ = term.recv() => break,
        }
    }
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, open.shutdown()).await;
    store.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// One connection. The limit stands outside the lock: who is refused takes none.
fn spawn_connection(stream: TcpStream, peer: SocketAddr, gates: Gates, open: &GracefulShutdown) {
    let service = ServiceBuilder::new()
        .map_request(move |mut request: Request<Incoming>| {
            // Where `PlainHttp` looks for the client's address.
            request.extensions_mut().insert(peer);
            request
        })
        .layer(gates.limit)
        .layer(gates.lock)
        .service_fn(handle_request);
    let connection = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let connection = open.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
    });
}

/// What the gates have found lies in the request's extensions.
async fn handle_request(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let extensions = request.extensions();
    let left = extensions.get::<RateStatus>().map(|status| status.decision().remaining());
    let fence = extensions.get::<HeldLock>().and_then(HeldLock::fence);
    let text = match (fence, left) {
        (Some(fence), _) => format!("done under the lock, fence {fence}\n"),
        (None, Some(left)) => format!("{left} requests left\n"),
        (None, None) => "ok\n".to_owned(),
    };
    Ok(Response::new(Full::from(text)))
}

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    println!("  curl -i http://{address}/");
    println!("  curl -i -X POST -H 'order: 7' http://{address}/");
}
