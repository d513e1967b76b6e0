//! The response body: the inner service's own, or a reply of ours.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::reply::{Fields, Reply};

/// Response body of a gated service.
#[pin_project]
#[derive(Debug)]
pub struct GateBody<B> {
    #[pin]
    kind: Kind<B>,
}

#[pin_project(project = KindProjection)]
#[derive(Debug)]
enum Kind<B> {
    Inner(#[pin] B),
    Reply(Option<Bytes>),
}

impl<B> GateBody<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner(body) }
    }
}

impl<B> Default for GateBody<B> {
    /// The empty body.
    fn default() -> Self {
        Self { kind: Kind::Reply(None) }
    }
}

impl<B: Body<Data = Bytes>> Body for GateBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner(body) => body.poll_frame(cx),
            KindProjection::Reply(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
        }
    }

    // Both are forwarded: without a known size hyper would send chunks instead of a content-length.
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner(body) => body.is_end_stream(),
            Kind::Reply(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner(body) => body.size_hint(),
            Kind::Reply(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// A reply as a response.
#[must_use]
pub fn response<B>(reply: Reply) -> Response<GateBody<B>> {
    let body = Some(reply.body).filter(|body| !body.is_empty());
    let mut response = Response::new(GateBody { kind: Kind::Reply(body) });
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    add_fields(&mut response, reply.fields);
    response
}

/// Appends, so that two layers with a policy each make one list (RFC 9651 section 4.2).
pub(super) fn add_fields<B>(response: &mut Response<B>, fields: Fields) {
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            response.headers_mut().append(name, value);
        }
    }
}
