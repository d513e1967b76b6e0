//! The tower driver without an integration crate: tonic, as server and as client, and the examples
//! for plain hyper and tonic, as processes.

#[path = "../examples/tonic/src/greeter.rs"]
mod greeter;
#[path = "../examples/tonic/src/grpc_gate_adapters.rs"]
mod grpc;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, uri::PathAndQuery};
use lockgate::{
    Quota, Store, driver::KeySource, middleware::PlainHttp, rate_limit::RateLimitLayer,
};
use lockgate_tests::{DemoProcess, with_timeout};
use tokio::net::TcpListener;
use tonic::{
    Code, Status,
    body::Body,
    client::{Grpc, GrpcService},
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower::ServiceBuilder;

use self::greeter::{GREET_PATH, Greeter, TextCodec};

/// Returns a quota with a window of one hour, which no test outlasts.
fn quota_per_hour(requests: u64) -> Quota {
    Quota::requests(requests).per(Duration::from_secs(3600))
}

/// Creates a rate limit layer with gRPC refusals.
fn grpc_rate_limit(key: KeySource<PlainHttp>, quota: Quota) -> RateLimitLayer<PlainHttp> {
    let limit = RateLimitLayer::by(key, quota).store(&Store::memory());
    limit.refusal_response(grpc::grpc_refusal)
}

/// Serves the greeter behind a limit per client address, with a counter of its calls.
async fn serve_greeter(quota: Quota) -> (SocketAddr, Arc<AtomicUsize>) {
    let limit = grpc_rate_limit(KeySource::ip(), quota);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let layers = ServiceBuilder::new()
        .map_response(grpc::grpc_response)
        .map_request(grpc::insert_peer_addr)
        .layer(limit)
        .map_request(move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            request
        });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = Server::builder().layer(layers.into_inner()).add_service(Greeter);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    (address, calls)
}

async fn connect_channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    with_timeout("a connection", endpoint.connect()).await.expect("it listens")
}

/// Makes one call as a generated client does.
async fn greet<T>(service: &T, name: &str) -> Result<tonic::Response<String>, Status>
where
    T: GrpcService<Body> + Clone,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut client = Grpc::new(service.clone());
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let request = tonic::Request::new(name.to_owned());
    with_timeout(
        "an answer",
        client.unary(request, PathAndQuery::from_static(GREET_PATH), TextCodec),
    )
    .await
}

fn metadata_value<'a>(metadata: &'a tonic::metadata::MetadataMap, name: &str) -> &'a str {
    let value = metadata.get(name).unwrap_or_else(|| panic!("no {name} in {metadata:?}"));
    value.to_str().expect("text")
}

/// Expects a gRPC refusal with a retry delay.
fn assert_refused(answer: Result<tonic::Response<String>, Status>, quota: u64, window: u64) {
    let status = answer.expect_err("a refusal");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let metadata = status.metadata();
    let wait: u64 = metadata_value(metadata, "retry-after").parse().expect("seconds");
    assert!((1..=window).contains(&wait), "{wait}");
    assert_eq!(metadata_value(metadata, "grpc-retry-pushback-ms"), (wait * 1000).to_string());
    assert!(metadata_value(metadata, "ratelimit").contains(";r=0;"));
    assert!(
        metadata_value(metadata, "ratelimit-policy").contains(&format!(";q={quota};w={window}"))
    );
}

#[tokio::test]
async fn tonic_server_refuses_with_grpc_status() {
    let (address, calls) = serve_greeter(quota_per_hour(3)).await;
    let channel = connect_channel(address).await;

    let answer = greet(&channel, "ada").await.expect("within the quota");
    assert_eq!(answer.get_ref(), "hello ada");
    assert!(metadata_value(answer.metadata(), "ratelimit").contains(";r=2;"));
    // Errors of the service pass the gate unchanged.
    let error = greet(&channel, "").await.expect_err("the name is empty");
    assert_eq!((error.code(), error.message()), (Code::InvalidArgument, "the name is empty"));
    greet(&channel, "grace").await.expect("within the quota");

    assert_refused(greet(&channel, "ada").await, 3, 3600);
    // Another connection of the same client shares the quota.
    assert_refused(greet(&connect_channel(address).await, "ada").await, 3, 3600);
    assert_eq!(calls.load(Ordering::Relaxed), 3, "a refused call reaches no service");
}

#[tokio::test]
async fn tonic_client_limits_its_own_calls() {
    let (address, calls) = serve_greeter(quota_per_hour(100)).await;
    let channel = connect_channel(address).await;
    // One quota per method, independent of the server's limits.
    let method =
        KeySource::<PlainHttp>::from_fn("method", |parts| Some(parts.uri.path().to_owned()));
    let limit = grpc_rate_limit(method, quota_per_hour(2));
    let limited = ServiceBuilder::new()
        .map_response(grpc::grpc_response)
        .layer(limit)
        .service(channel.clone());

    for _ in 0..2 {
        assert_eq!(greet(&limited, "ada").await.expect("within").get_ref(), "hello ada");
    }
    assert_refused(greet(&limited, "ada").await, 2, 3600);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "a refused call is not sent");
    greet(&channel, "ada").await.expect("the server has no such limit");
}

#[tokio::test]
async fn request_without_peer_address_is_internal_error() {
    let limit = grpc_rate_limit(KeySource::ip(), quota_per_hour(1));
    // The requests carry no peer address, which is a misconfiguration, so none is admitted.
    let service =
        ServiceBuilder::new().map_response(grpc::grpc_response).layer(limit).service(Greeter);
    let status = greet(&service, "ada").await.expect_err("no address");
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(status.message(), "the limiter is wired wrongly");
}

#[tokio::test]
async fn tonic_example_limits_calls() {
    let mut demo = DemoProcess::start_example("example-tonic", "memory").await;
    let channel = connect_channel(demo.addr).await;
    for _ in 0..10 {
        assert_eq!(greet(&channel, "ada").await.expect("within").get_ref(), "hello ada");
    }
    assert_refused(greet(&channel, "ada").await, 10, 10);
    drop(channel);
    demo.terminate();
    assert!(with_timeout("the end", demo.wait_for_exit()).await.success());
}

#[tokio::test]
async fn hyper_example_locks_and_limits() {
    let mut demo = DemoProcess::start_example("example-hyper", "memory").await;
    let answer = demo.get("/").send().await.expect_status(200);
    assert_eq!(answer.text(), "9 requests left\n");
    assert_eq!(answer.header("ratelimit-policy"), "\"limited\";q=10;w=10");
    let done = demo.post("/").header("order", "7").send().await.expect_status(200);
    assert!(done.text().starts_with("done under the lock, fence "), "{}", done.text());
    let no_order = demo.post("/").send().await;
    assert_eq!(no_order.status, 400);
    for _ in 0..7 {
        assert_eq!(demo.get("/").send().await.status, 200);
    }
    let refused = demo.get("/").send().await.expect_status(429);
    assert!((1..=10).contains(&refused.retry_after_seconds()));
    demo.terminate();
    assert!(with_timeout("the end", demo.wait_for_exit()).await.success());
}
