//! `ParkedRequest`: an unread request with any body, and the reading of its body within a budget.

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

/// Request that an inner layer leaves unread for an outer one.
pub(super) type ParkedRequest = Request<UnsyncBoxBody<Bytes, RequestBodyError>>;

/// Boxes a request with any body, so that the outer layer knows its type.
pub(super) fn box_request<B>(request: Request<B>) -> ParkedRequest
where
    B: Body<Data = Bytes> + Send + 'static,
{
    request.map(|body| body.map_err(|_| RequestBodyError).boxed_unsync())
}

/// Reads a whole body; `None` if it exceeds its budget, breaks off, or takes too long.
pub(super) async fn read_within_budget<B>(body: B, body_budget: &mut BodyBudget) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    // The declared length avoids reading a body that would be refused.
    let size_hint = body.size_hint();
    if !body_budget.try_declare_length(
        size_hint.exact().or(Some(size_hint.lower()).filter(|length| *length > 0)),
    ) {
        return None;
    }
    tokio::time::timeout(body_budget.read_timeout(), collect_body(body, body_budget)).await.ok()?
}

async fn collect_body<B>(mut body: B, body_budget: &mut BodyBudget) -> Option<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are dropped: they can't be sent again after a body of known length.
        if let Ok(data) = frame.ok()?.into_data() {
            if !body_budget.try_grow_to(whole.len() + data.len()) {
                return None;
            }
            whole.extend_from_slice(&data);
        }
    }
    Some(whole.freeze())
}
