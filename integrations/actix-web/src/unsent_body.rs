//! Response bodies that are not sent: which ones, and `UnsentBody` in place of them.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use actix_web::{
    body::{self, BodySize, BoxBody, EitherBody, MessageBody},
    dev::ServiceResponse,
    http::{Method, StatusCode},
};
use bytes::Bytes;

/// Returns true if no byte of this body is sent: it is empty, or the status or the method has no
/// body (RFC 9110 sections 6.4.1 and 9.3.2). The body of an [upgraded](is_upgraded) connection is
/// sent.
pub(crate) fn has_no_sent_body<B: MessageBody>(response: &ServiceResponse<B>) -> bool {
    let status = response.status();
    *response.request().method() == Method::HEAD
        || (status.is_informational() && !is_upgraded(response))
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || matches!(response.response().body().size(), BodySize::None | BodySize::Sized(0))
}

/// Drops a body that is not sent. actix would poll it to its end and discard the data, so the body
/// would continue after its gate was left, without the lock.
pub(crate) fn drop_unsent_body<B: MessageBody>(
    response: ServiceResponse<B>,
) -> ServiceResponse<EitherBody<B>> {
    if !has_no_sent_body(&response) {
        return response.map_into_left_body();
    }
    let is_head = *response.request().method() == Method::HEAD;
    response.map_body(|_, body| match body.size() {
        size if size.is_eof() => EitherBody::left(body),
        // Keeps the length that a GET would report. A complete body does no more work, and outer
        // layers may read it.
        size if is_head => EitherBody::right(match body.try_into_bytes() {
            Ok(bytes) => BoxBody::new(bytes),
            Err(_) => BoxBody::new(UnsentBody(size)),
        }),
        // For a status without a body actix would send a body of known length, or fail without it.
        _ => EitherBody::right(BoxBody::new(body::None::new())),
    })
}

/// Rest of a body of this size that is not sent.
struct UnsentBody(BodySize);

impl MessageBody for UnsentBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        self.0
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(None)
    }
}

/// Returns true if the body is one end of an upgraded connection, such as a WebSocket, which actix
/// sends after the 101.
pub(crate) fn is_upgraded<B: MessageBody>(response: &ServiceResponse<B>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
        && response.response().body().size() == BodySize::Stream
}
