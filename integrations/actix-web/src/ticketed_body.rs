//! `TicketedBody`: response body that keeps the ticket of its gate until its end.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;
use lockgate::driver::{BodyTicket, NextBodyItem};

/// Chunk of a response body.
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
    ticket: BodyTicket<ChunkResult>,
) -> BoxBody {
    let size = body.size();
    BoxBody::new(TicketedBody {
        body: Some(Box::pin(body)),
        size,
        remaining_bytes: known_length(size),
        ticket,
    })
}

impl<B: MessageBody> MessageBody for TicketedBody<B> {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        let Self { body: open_body, remaining_bytes, ticket: body_ticket, .. } = self.get_mut();
        let Some(body) = open_body else {
            return Poll::Ready(None);
        };
        let poll_item = |cx: &mut Context<'_>| poll_next_item(body.as_mut(), remaining_bytes, cx);
        let item = ready!(body_ticket.poll_next(cx, poll_item));
        Poll::Ready(item.unwrap_or_else(|ticket| {
            // The body is dropped at once, and nothing follows the error.
            *open_body = None;
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

/// Polls a body, and recognizes its last item by the number of bytes that are still to come.
pub(crate) fn poll_next_item<B: MessageBody>(
    body: Pin<&mut B>,
    remaining_bytes: &mut Option<u64>,
    cx: &mut Context<'_>,
) -> Poll<NextBodyItem<ChunkResult>> {
    Poll::Ready(match ready!(body.poll_next(cx)) {
        Some(Ok(chunk)) => {
            *remaining_bytes =
                remaining_bytes.map(|bytes| bytes.saturating_sub(chunk.len() as u64));
            // The response is complete then, and its end is not polled for.
            if *remaining_bytes == Some(0) {
                NextBodyItem::Last(Some(Ok(chunk)))
            } else {
                NextBodyItem::Item(Ok(chunk))
            }
        }
        Some(Err(error)) => NextBodyItem::Failed(Err(error.into())),
        None => NextBodyItem::Last(None),
    })
}

/// The gate broke the body off, or its handler panicked.
#[derive(Debug)]
pub(crate) struct BrokenBodyError;

impl fmt::Display for BrokenBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body ended early or was stopped by its gate")
    }
}

impl StdError for BrokenBodyError {}
