//! Response bodies of the driver: with a ticket, buffered, from a channel, or not sent.

use std::{
    collections::VecDeque,
    convert::Infallible,
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_web::{
    body::{self, BodySize, BoxBody, EitherBody, MessageBody},
    dev::ServiceResponse,
    http::{Method, StatusCode},
};
use bytes::Bytes;
use lockgate::driver::{BodyTicket, NextBodyItem};
use tokio::sync::mpsc;

pub(crate) type ChunkResult = Result<Bytes, Box<dyn StdError>>;

/// Body that keeps a ticket until its end.
struct TicketedBody<B> {
    /// `None` after the body was broken off.
    body: Option<Pin<Box<B>>>,
    size: BodySize,
    /// Bytes still to come, if the length is known.
    remaining_bytes: Option<u64>,
    ticket: BodyTicket<ChunkResult>,
}

/// Attaches a ticket to a body.
pub(crate) fn ticketed_body<B: MessageBody + 'static>(
    body: B,
    kept: BodyTicket<ChunkResult>,
) -> BoxBody {
    let size = body.size();
    BoxBody::new(TicketedBody {
        body: Some(Box::pin(body)),
        size,
        remaining_bytes: known_length(size),
        ticket: kept,
    })
}

/// Creates a body from chunks that were read before, with the size of the original body.
pub(crate) fn buffered_body(items: Vec<ChunkResult>, size: BodySize) -> BoxBody {
    BoxBody::new(BufferedBody { items: items.into(), size })
}

struct BufferedBody {
    items: VecDeque<ChunkResult>,
    size: BodySize,
}

impl MessageBody for BufferedBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        Poll::Ready(self.items.pop_front())
    }
}

/// Creates a body from a channel, in which `None` marks the end.
pub(crate) fn channel_body(items: mpsc::Receiver<Option<ChunkResult>>) -> BoxBody {
    BoxBody::new(ChannelBody(Some(items)))
}

/// Body from a channel; `None` after its end.
struct ChannelBody(Option<mpsc::Receiver<Option<ChunkResult>>>);

impl MessageBody for ChannelBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        let Some(items) = &mut self.0 else { return Poll::Ready(None) };
        let item = ready!(items.poll_recv(cx));
        if !matches!(item, Some(Some(Ok(_)))) {
            self.0 = None;
        }
        // Without the mark the body broke off, since its task has ended.
        Poll::Ready(item.unwrap_or_else(|| Some(Err(BrokenBodyError.into()))))
    }
}

impl<B: MessageBody> MessageBody for TicketedBody<B> {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        let Self { body: place, remaining_bytes: left, ticket: kept, .. } = self.get_mut();
        let Some(body) = place else {
            return Poll::Ready(None);
        };
        let next = ready!(kept.poll_next(cx, |cx| poll_next_item(body.as_mut(), left, cx)));
        Poll::Ready(next.unwrap_or_else(|ticket| {
            // The body is dropped at once, and nothing follows the error.
            *place = None;
            drop(ticket);
            Some(Err(BrokenBodyError.into()))
        }))
    }
}

/// Returns the number of bytes of a body, if it is known.
pub(crate) fn known_length(size: BodySize) -> Option<u64> {
    match size {
        BodySize::Sized(bytes) => Some(bytes),
        BodySize::None | BodySize::Stream => None,
    }
}

pub(crate) fn poll_next_item<B: MessageBody>(
    body: Pin<&mut B>,
    left: &mut Option<u64>,
    cx: &mut Context<'_>,
) -> Poll<NextBodyItem<ChunkResult>> {
    Poll::Ready(match ready!(body.poll_next(cx)) {
        Some(Ok(chunk)) => {
            *left = left.map(|left| left.saturating_sub(chunk.len() as u64));
            // The response is complete then, and its end is not polled for.
            if *left == Some(0) {
                NextBodyItem::Last(Some(Ok(chunk)))
            } else {
                NextBodyItem::Item(Ok(chunk))
            }
        }
        Some(Err(error)) => NextBodyItem::Failed(Err(error.into())),
        None => NextBodyItem::Last(None),
    })
}

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

/// The gate broke the body off, or its handler panicked.
#[derive(Debug)]
struct BrokenBodyError;

impl fmt::Display for BrokenBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body ended early or was stopped by its gate")
    }
}

impl StdError for BrokenBodyError {}
