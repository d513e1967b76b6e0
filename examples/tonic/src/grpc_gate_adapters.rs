//! Adapters between the HTTP gate and gRPC: the peer address, refusals and errors.

use std::error::Error;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use lockgate::{RateRefusal, Reply};
use tonic::{Status, body::Body, transport::server::TcpConnectInfo};

/// Tells clients with gRFC A6 retries how many milliseconds to wait before they retry.
const PUSHBACK_HEADER: &str = "grpc-retry-pushback-ms";

/// Reply to a refused call: HTTP 200 with a gRPC status.
///
/// A gRPC client treats an HTTP 429 as the response of a proxy and reports it as `UNAVAILABLE`.
pub(crate) fn grpc_refusal(refusal: &RateRefusal<'_>) -> Reply {
    let reply = refusal.grpc_reply();
    match refusal.retry_after() {
        Some(wait) => reply.header(PUSHBACK_HEADER, wait.as_millis().to_string()),
        None => reply,
    }
}

/// Maps the other HTTP responses of a gate to gRPC statuses, because a gRPC client cannot read a
/// problem document.
///
/// They are: a missing key, an unavailable store (`RateLimitOutage::Refuse`), and a misconfigured
/// layer.
pub(crate) fn grpc_response<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let status = match response.status() {
        StatusCode::OK => return response.map(Body::new),
        StatusCode::BAD_REQUEST => Status::invalid_argument("the request has no key"),
        StatusCode::SERVICE_UNAVAILABLE => Status::unavailable("the store is unavailable"),
        _ => Status::internal("the limiter is wired wrongly"),
    };
    status.into_http()
}

/// Copies the peer address from tonic's own extension to the one that the gate reads.
pub(crate) fn insert_peer_addr<B>(mut request: Request<B>) -> Request<B> {
    let info = request.extensions().get::<TcpConnectInfo>();
    if let Some(peer) = info.and_then(TcpConnectInfo::remote_addr) {
        request.extensions_mut().insert(peer);
    }
    request
}
