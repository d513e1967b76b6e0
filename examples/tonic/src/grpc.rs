//! Between HTTP and gRPC: what a gate needs to know of a request, and how its answers are told.

use std::error::Error;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use tonic::{Code, Status, body::Body, transport::server::TcpConnectInfo};

/// Fields of a gate's answer that a client finds in the status' metadata.
const KEPT: [&str; 3] = ["retry-after", "ratelimit", "ratelimit-policy"];

/// Told to clients that retry by themselves (gRFC A6): not before so many milliseconds.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// An answer of the service as it is; one of a gate in the words of gRPC. There a call has failed with a
/// status of its own in the fields of a 200; any other HTTP status is a fault of a proxy on the way, and
/// 429 would reach the application as `UNAVAILABLE`.
pub(crate) fn told<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (code, message) = match response.status() {
        StatusCode::OK => return response.map(Body::new),
        StatusCode::TOO_MANY_REQUESTS => (Code::ResourceExhausted, "too many requests"),
        StatusCode::BAD_REQUEST => (Code::InvalidArgument, "the request has no key"),
        StatusCode::SERVICE_UNAVAILABLE => (Code::Unavailable, "the limiter is away"),
        _ => (Code::Internal, "the limiter is not wired"),
    };
    let mut answer = Status::new(code, message).into_http();
    let fields = answer.headers_mut();
    for name in KEPT {
        if let Some(value) = response.headers().get(name) {
            fields.insert(name, value.clone());
        }
    }
    if let Some(wait) = wait(&response).map(|wait| wait.saturating_mul(1000)) {
        fields.insert(PUSHBACK, wait.into());
    }
    answer
}

/// `Retry-After`, in seconds.
fn wait<B>(response: &Response<B>) -> Option<u64> {
    response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// Shows the gate the socket's other end, which tonic keeps in an extension of its own.
pub(crate) fn with_peer<B>(mut request: Request<B>) -> Request<B> {
    let info = request.extensions().get::<TcpConnectInfo>();
    if let Some(peer) = info.and_then(TcpConnectInfo::remote_addr) {
        request.extensions_mut().insert(peer);
    }
    request
}
