//! Parked requests: a common type for all bodies, and reading them.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};

use crate::gate::BodyBudget;

/// Error of a request body. Its cause is irrelevant: the request is not stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestBodyError;

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request body ended early")
    }
}

impl std::error::Error for RequestBodyError {}

pub(super) type BoxedRequest = Request<UnsyncBoxBody<Bytes, RequestBodyError>>;

/// Boxes a request with any body, so that the outer layer knows its type.
pub(super) fn box_request<B>(request: Request<B>) -> BoxedRequest
where
    B: Body<Data = Bytes> + Send + 'static,
{
    request.map(|body| body.map_err(|_| RequestBodyError).boxed_unsync())
}

/// Reads a whole body; `None` if it exceeds its budget, breaks off, or takes too long.
pub(super) async fn read_within_budget<B>(body: B, room: &mut BodyBudget) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    // The declared length avoids reading a body that would be refused.
    let hint = body.size_hint();
    if !room.try_declare_length(hint.exact().or(Some(hint.lower()).filter(|least| *least > 0))) {
        return None;
    }
    tokio::time::timeout(room.read_timeout(), collect_body(body, room)).await.ok()?
}

async fn collect_body<B>(mut body: B, room: &mut BodyBudget) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are dropped: they can't be sent again after a body of known length.
        if let Ok(data) = frame.ok()?.into_data() {
            if !room.try_grow_to(whole.len() + data.len()) {
                return None;
            }
            whole.extend_from_slice(&data);
        }
    }
    Some(whole.freeze())
}
