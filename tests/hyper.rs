//! The tower driver without any framework: plain hyper over a real socket, with hyper's own body
//! types.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use lockgate::{
    HeldLock, Quota, Store, lock::LockLayer, middleware::PlainHttp, rate_limit::RateLimitLayer,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
};
use tower::ServiceBuilder;

/// Handler that reports its start and ends when the test permits it.
#[derive(Clone)]
struct BlockingHandler {
    started: Arc<Notify>,
    finish_permits: Arc<Semaphore>,
}

impl BlockingHandler {
    fn new() -> Self {
        Self { started: Arc::default(), finish_permits: Arc::new(Semaphore::new(0)) }
    }

    async fn handle_request(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let fence = request.extensions().get::<HeldLock>().and_then(HeldLock::fence);
        let body = request.into_body().collect().await.expect("a whole body").to_bytes();
        self.started.notify_one();
        self.finish_permits.acquire().await.expect("never closed").forget();
        let fence = fence.map(|fence| fence.to_string()).unwrap_or_default();
        Ok(Response::builder().header("fence", fence).body(Full::new(body)).expect("valid"))
    }
}

/// Serves each connection with the peer address in its requests, as an application's own server
/// would.
async fn start_server(handler: BlockingHandler) -> SocketAddr {
    let store = Store::memory();
    let quota = Quota::requests(4).per(Duration::from_secs(60));
    let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    let limit = RateLimitLayer::<PlainHttp>::by_ip(quota).store(&store);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let handler = handler.clone();
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(peer);
                    request
                })
                .layer(limit.clone())
                .layer(lock.clone())
                .service_fn(move |request| handler.clone().handle_request(request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(connection);
        }
    });
    address
}

async fn send_request(address: SocketAddr, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("http");
    tokio::spawn(connection);
    sender.send_request(request).await.expect("an answer")
}

fn order_request(order: Option<&str>) -> Request<Full<Bytes>> {
    let mut request = Request::post("/").header("host", "x");
    if let Some(order) = order {
        request = request.header("order", order);
    }
    request.body(Full::from("hello")).expect("valid")
}

#[tokio::test]
async fn lock_and_rate_gates_work_in_plain_hyper() {
    let handler = BlockingHandler::new();
    let address = start_server(handler.clone()).await;

    let first = tokio::spawn(send_request(address, order_request(Some("7"))));
    handler.started.notified().await;
    let busy = send_request(address, order_request(Some("7"))).await;
    assert_eq!(busy.status(), StatusCode::CONFLICT);
    assert_eq!(busy.headers()["content-type"], "application/problem+json");
    assert!(busy.headers().contains_key("retry-after"));
    // The length is known, so the body is not chunked.
    assert!(busy.headers().contains_key("content-length"));

    handler.finish_permits.add_permits(1);
    let first = first.await.expect("no panic");
    assert_eq!(first.status(), StatusCode::OK);
    assert!(!first.headers()["fence"].is_empty());
    assert_eq!(first.headers()["ratelimit"], "\"4-per-60s\";r=3;t=60");
    assert_eq!(first.into_body().collect().await.expect("whole").to_bytes(), "hello");

    let missing = send_request(address, order_request(None)).await;
    assert_eq!(missing.status(), StatusCode::BAD_REQUEST);

    handler.finish_permits.add_permits(1);
    assert_eq!(send_request(address, order_request(Some("7"))).await.status(), StatusCode::OK);
    let spent = send_request(address, order_request(Some("7"))).await;
    assert_eq!(spent.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn service_error_passes_through_gate_and_releases_lock() {
    let store = Store::memory();
    let gate = LockLayer::<PlainHttp>::by_header("order").store(&store);
    let mut service =
        ServiceBuilder::new().layer(gate).service_fn(|_: Request<Empty<Bytes>>| async {
            Err::<Response<Empty<Bytes>>, _>(std::io::Error::other("its own"))
        });
    for _ in 0..2 {
        let request = Request::post("/").header("order", "7").body(Empty::new()).expect("valid");
        let service = tower::ServiceExt::ready(&mut service).await.expect("ready");
        let error = tower::Service::call(service, request).await.expect_err("it always fails");
        assert_eq!(error.to_string(), "its own");
        // The lock was released: the second round is admitted.
    }
}
