//! Between HTTP and gRPC: what a gate needs to know of a request, and how its answers are told.

use std::error::Error;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use lockgate::{RateRefusal, Reply};
use tonic::{Status, body::Body, transport::server::TcpConnectInfo};

/// For clients that retry by themselves (gRFC A6): not before so many milliseconds.
const PUSHBACK_HEADER: &str = "grpc-retry-pushback-ms";

/// A refusal in the words of gRPC, where a call that failed has a status of its own beside the 200: a 429
/// would be taken for that of a proxy on the way, and reach the application as `UNAVAILABLE`.
pub(crate) fn grpc_refusal(refusal: &RateRefusal<'_>) -> Reply {
    let reply = refusal.grpc_reply();
    match refusal.retry_after() {
        Some(wait) => reply.header(PUSHBACK_HEADER, wait.as_millis().to_string()),
        None => reply,
    }
}

/// What else a gate answers is HTTP too, with a problem document that a gRPC client cannot read: a key that is
/// missing, a store that is away (`RateLimitOutage::Refuse`), a layer that is wired wrongly.
pub(crate) fn grpc_response<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let status = match response.status() {
        StatusCode::OK => return response.map(Body::new),
        StatusCode::BAD_REQUEST => Status::invalid_argument("the request has no key"),
        StatusCode::SERVICE_UNAVAILABLE => Status::unavailable("the limiter's store is away"),
        _ => Status::internal("the limiter is wired wrongly"),
    };
    status.into_http()
}

/// Shows the gate the socket's other end, which tonic keeps in an extension of its own.
pub(crate) fn insert_peer_addr<B>(mut request: Request<B>) -> Request<B> {
    let info = request.extensions().get::<TcpConnectInfo>();
    if let Some(peer) = info.and_then(TcpConnectInfo::remote_addr) {
        request.extensions_mut().insert(peer);
    }
    request
}
