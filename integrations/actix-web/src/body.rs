//! A body that the gate's ticket stays with.

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
use lockgate::gate::{Kept, Next};
use tokio::sync::mpsc;

pub(crate) type Item = Result<Bytes, Box<dyn StdError>>;

/// A body with a ticket, until its end.
struct KeptBody<B> {
    /// `None` once it was broken off.
    body: Option<Pin<Box<B>>>,
    size: BodySize,
    /// Bytes still to come, where their number is known.
    left: Option<u64>,
    kept: Kept<Item>,
}

/// Puts a ticket beside a body.
pub(crate) fn keep<B: MessageBody + 'static>(body: B, kept: Kept<Item>) -> BoxBody {
    let size = body.size();
    BoxBody::new(KeptBody { body: Some(Box::pin(body)), size, left: left(size), kept })
}

/// A body that was read, of this size.
pub(crate) fn read(items: Vec<Item>, size: BodySize) -> BoxBody {
    BoxBody::new(ReadBody { items: items.into(), size })
}

struct ReadBody {
    items: VecDeque<Item>,
    size: BodySize,
}

impl MessageBody for ReadBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
        Poll::Ready(self.items.pop_front())
    }
}

/// A body that a task reads, which sends `None` at its end.
pub(crate) fn piped(items: mpsc::Receiver<Option<Item>>) -> BoxBody {
    BoxBody::new(PipedBody(Some(items)))
}

/// `None` once it has ended.
struct PipedBody(Option<mpsc::Receiver<Option<Item>>>);

impl MessageBody for PipedBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let Some(items) = &mut self.0 else { return Poll::Ready(None) };
        let item = ready!(items.poll_recv(cx));
        if !matches!(item, Some(Some(Ok(_)))) {
            self.0 = None;
        }
        // Without its end it broke off: the task has gone.
        Poll::Ready(item.unwrap_or_else(|| Some(Err(Broken.into()))))
    }
}

impl<B: MessageBody> MessageBody for KeptBody<B> {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let Self { body: place, left, kept, .. } = self.get_mut();
        let Some(body) = place else {
            return Poll::Ready(None);
        };
        let next = ready!(kept.poll_next(cx, |cx| next(body.as_mut(), left, cx)));
        Poll::Ready(next.unwrap_or_else(|ticket| {
            // What it was made of goes at once, and nothing comes after the error.
            *place = None;
            drop(ticket);
            Some(Err(Broken.into()))
        }))
    }
}

/// Bytes that are still to come of a body of this size, where their number is known.
pub(crate) fn left(size: BodySize) -> Option<u64> {
    match size {
        BodySize::Sized(bytes) => Some(bytes),
        BodySize::None | BodySize::Stream => None,
    }
}

pub(crate) fn next<B: MessageBody>(
    body: Pin<&mut B>,
    left: &mut Option<u64>,
    cx: &mut Context<'_>,
) -> Poll<Next<Item>> {
    Poll::Ready(match ready!(body.poll_next(cx)) {
        Some(Ok(chunk)) => {
            *left = left.map(|left| left.saturating_sub(chunk.len() as u64));
            // The client has it all then, and asks for no end.
            if *left == Some(0) { Next::Last(Some(Ok(chunk))) } else { Next::Item(Ok(chunk)) }
        }
        Some(Err(error)) => Next::Broken(Err(error.into())),
        None => Next::Last(None),
    })
}

/// True if nothing of this body is sent: it is empty, or the status or method has none (RFC 9110
/// sections 6.4.1 and 9.3.2), and it is no [socket](is_socket).
pub(crate) fn is_sent_without_body<B: MessageBody>(response: &ServiceResponse<B>) -> bool {
    let status = response.status();
    *response.request().method() == Method::HEAD
        || (status.is_informational() && !is_socket(response))
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || matches!(response.response().body().size(), BodySize::None | BodySize::Sized(0))
}

/// Drops a body of which nothing is sent. actix polls it to its end and throws away what comes, so it would go on after its
/// gate was left: without the lock.
pub(crate) fn without_unsent<B: MessageBody>(
    response: ServiceResponse<B>,
) -> ServiceResponse<EitherBody<B>> {
    if !is_sent_without_body(&response) {
        return response.map_into_left_body();
    }
    let is_head = *response.request().method() == Method::HEAD;
    response.map_body(|_, body| match body.size() {
        size if size.is_eof() => EitherBody::left(body),
        // What a GET would be told of its length. One that is whole does nothing any more, and may be looked at further out.
        size if is_head => EitherBody::right(match body.try_into_bytes() {
            Ok(bytes) => BoxBody::new(bytes),
            Err(_) => BoxBody::new(Unsent(size)),
        }),
        // Where the status has no body actix would send one of a known length, or miss it.
        _ => EitherBody::right(BoxBody::new(body::None::new())),
    })
}

/// What is left of a body of this size that is not sent.
struct Unsent(BodySize);

impl MessageBody for Unsent {
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

/// True if the body is one end of what the connection has become, a websocket say: actix sends it behind the 101.
pub(crate) fn is_socket<B: MessageBody>(response: &ServiceResponse<B>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
        && response.response().body().size() == BodySize::Stream
}

/// The gate has broken the body off, or its handler has panicked.
#[derive(Debug)]
struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body broke off, or was broken off by its gate")
    }
}

impl StdError for Broken {}
