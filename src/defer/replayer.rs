//! How a stored request gets back into the application.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::stored_headers::HeaderList;
use crate::gate::{HttpRequestHead, ReplayMarker};

/// The application's routes, for requests that run again. Each integration has one.
pub trait Replayer: Send + Sync + 'static {
    /// Sends the request through the routes with the marker in its extensions, inside
    /// [`ReplayMarker::scope`], and reads at most `limit` bytes of the response's body, none of a
    /// [stream](is_stream). A panic must not
    /// reach the caller. If the future is dropped, the run ends where it is; what is elsewhere by then, such as in
    /// another thread, is dropped there as soon as may be, and counts as under way until that scope is.
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome>;
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayOutcome {
    /// The routes answered.
    Answered(ReplayResponse),
    /// The handler panicked.
    Panicked,
    /// It could not be sent to where it runs: it has not run.
    Unreachable,
    /// The service returned its error, or the body of its answer broke off.
    Failed,
}

/// The answer of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplayResponse {
    /// The status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    pub headers: HeaderList,
    /// What there is of the body.
    pub body: ReplayBody,
}

/// What a replayer has read of a body.
#[derive(Clone, PartialEq, Eq)]
pub enum ReplayBody {
    /// All of it.
    Full(Bytes),
    /// It was longer than the limit, as it had said of itself.
    TooLong,
    /// It does not end by itself: `text/event-stream`, or of no known length and longer than the limit.
    Stream,
}

/// Whether a body of this `Content-Type` has no end worth waiting for: server-sent events.
#[must_use]
pub fn is_event_stream(content_type: &[u8]) -> bool {
    let kind = content_type.split(|&b| b == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

impl fmt::Debug for ReplayResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither fields nor body: they are the client's.
        f.debug_struct("ReplayResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReplayBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(body) => write!(f, "Body({} bytes)", body.len()),
            Self::TooLong => f.write_str("TooLong"),
            Self::Stream => f.write_str("Stream"),
        }
    }
}
