//! Interface through which a stored request is run by the application's routes.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::envelope::HeaderPairs;
use crate::gate::{HttpRequestHead, ReplayMarker};

/// The application's routes, for the replay of stored requests. Each integration implements it.
pub trait Replayer: Send + Sync + 'static {
    /// Sends the request through the routes, with the marker in its extensions and inside
    /// [`ReplayMarker::scope`].
    ///
    /// - Reads at most `limit` bytes of the response's body, and none of a
    ///   [stream](is_event_stream).
    /// - A panic must not reach the caller.
    /// - If the future is dropped, the run ends where it is. Parts that are elsewhere by then, such
    ///   as in another thread, are dropped there as soon as possible. The run counts as in flight
    ///   until that scope is dropped.
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome>;

    /// Resolves when the routes are built, so that their layers are known; a worker starts then.
    /// Default: at once.
    fn wait_until_built(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns cause and fix if this response is an error of the framework about a value that the
    /// routes lack, for the log. Default: none is recognized.
    fn missing_value(&self, _: &ReplayResponse) -> Option<&'static str> {
        None
    }

    /// Returns true if runs have the [restored snapshots](ReplayMarker::restored_snapshots) of
    /// their worker. Default true. A replayer that returns false sends runs to routes that read no
    /// snapshots; its worker needs no restorers.
    fn restores_snapshots(&self) -> bool {
        true
    }
}

/// Outcome of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayOutcome {
    /// The routes responded.
    Answered(ReplayResponse),
    /// The handler panicked.
    Panicked,
    /// The request could not be sent to the process that runs it; it has not run.
    Unreachable,
    /// The service returned an error, or the response body failed.
    Failed,
}

/// Response of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplayResponse {
    /// Status code.
    pub status: u16,
    /// Headers in order, names in lower case.
    pub headers: HeaderPairs,
    /// Body, as far as it was read.
    pub body: ReplayBody,
}

/// Body of a response as a replayer has read it.
#[derive(Clone, PartialEq, Eq)]
pub enum ReplayBody {
    /// The complete body.
    Full(Bytes),
    /// The body's declared length exceeds the limit.
    TooLong,
    /// The body has no known end: `text/event-stream`, or no declared length and longer than the
    /// limit.
    Stream,
}

/// Returns true if this `Content-Type` is `text/event-stream`, a body without an end worth waiting
/// for.
#[must_use]
pub fn is_event_stream(content_type: &[u8]) -> bool {
    let kind = content_type.split(|&b| b == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

impl fmt::Debug for ReplayResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and body belong to the client and are not logged.
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
