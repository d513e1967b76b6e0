//! A gRPC service on tonic with a rate limit per client address. A call over the quota fails with
//! `RESOURCE_EXHAUSTED`, and its metadata has the time to wait before a retry.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis server. `PORT` is 3000 by default;
//! 0 picks a free port.

mod greeter;
mod grpc_gate_adapters;

use std::{env, error::Error, net::SocketAddr, time::Duration};

use lockgate::{Quota, Store, middleware::PlainHttp, rate_limit::RateLimitLayer};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tonic::transport::{Server, server::TcpIncoming};
use tower::ServiceBuilder;

use self::greeter::Greeter;

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
    let limit = RateLimitLayer::<PlainHttp>::by_ip(quota)
        .policy_name("limited")
        .store(&store)
        .refusal_response(grpc_gate_adapters::grpc_refusal);
    let layers = ServiceBuilder::new()
        .map_response(grpc_gate_adapters::grpc_response)
        .map_request(grpc_gate_adapters::insert_peer_addr)
        .layer(limit);
    let mut term = signal(SignalKind::terminate())?;
    Server::builder()
        .layer(layers.into_inner())
        .add_service(Greeter)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), async move {
            term.recv().await;
        })
        .await?;
    store.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    println!("  a call of {} with a text as its message", greeter::GREET_PATH);
}
