//! A request that waits unread for the outer layer.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::Body;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};

use crate::gate::BodyBudget;

/// An error of the request's body. Only that there was one counts: nothing is stored then.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestBodyError;

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body broke off")
    }
}

impl std::error::Error for RequestBodyError {}

pub(super) type BoxedRequest = Request<UnsyncBoxBody<Bytes, RequestBodyError>>;

/// A request in a form that the outer layer knows, whatever its body is.
pub(super) fn box_request<B>(request: Request<B>) -> BoxedRequest
where
    B: Body<Data = Bytes> + Send + 'static,
{
    request.map(|body| body.map_err(|_| RequestBodyError).boxed_unsync())
}

/// Reads a body whole, or not at all: `None` if there is no room for it, it breaks off, or takes too long.
pub(super) async fn read_within_budget<B>(body: B, room: &mut BodyBudget) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    // What the client says of its length saves reading what will be refused.
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
        // Trailers are not kept: they can't be sent again before a body of known length.
        if let Ok(data) = frame.ok()?.into_data() {
            if !room.try_grow_to(whole.len() + data.len()) {
                return None;
            }
            whole.extend_from_slice(&data);
        }
    }
    Some(whole.freeze())
}
