//! `GateBody`: the response body, either the inner service's own or that of a reply.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tokio::sync::mpsc;

use crate::gate::{BodyTicket, NextBodyItem};

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Response body of a gated service; see
/// [`Framework::response_body`](super::Framework::response_body).
#[pin_project]
#[derive(Debug)]
pub struct GateBody<B> {
    #[pin]
    kind: GateBodyKind<B>,
}

#[pin_project(project = GateBodyKindProjection)]
#[derive(Debug)]
enum GateBodyKind<B> {
    Inner(#[pin] B),
    /// With the gate's ticket, until its end.
    Ticketed(#[pin] B, Box<BodyTicket<FrameResult>>),
    Reply(Option<Bytes>),
    /// A body that was read already.
    Buffered {
        frames: VecDeque<FrameResult>,
        remaining_bytes: u64,
    },
    /// A body that a task reads; the task sends `None` at its end.
    Channel(mpsc::Receiver<Option<FrameResult>>),
}

pub(super) type FrameResult = Result<Frame<Bytes>, BodyError>;

impl<B> GateBody<B> {
    pub(super) fn from_inner(body: B) -> Self {
        Self { kind: GateBodyKind::Inner(body) }
    }

    /// Returns the inner service's body, if this body is nothing else.
    ///
    /// # Errors
    ///
    /// This body, if it is another one.
    pub fn into_inner(self) -> Result<B, Self> {
        match self.kind {
            GateBodyKind::Inner(body) => Ok(body),
            kind => Err(Self { kind }),
        }
    }

    /// Creates the body of a reply; `None` is the empty body.
    pub(super) fn from_reply(body: Option<Bytes>) -> Self {
        Self { kind: GateBodyKind::Reply(body) }
    }

    /// Creates a body of this length from items that were read.
    pub(super) fn buffered(frames: Vec<FrameResult>, length: u64) -> Self {
        Self { kind: GateBodyKind::Buffered { frames: frames.into(), remaining_bytes: length } }
    }

    pub(super) fn from_channel(frames: mpsc::Receiver<Option<FrameResult>>) -> Self {
        Self { kind: GateBodyKind::Channel(frames) }
    }

    pub(super) fn with_ticket(body: B, body_ticket: BodyTicket<FrameResult>) -> Self {
        Self { kind: GateBodyKind::Ticketed(body, Box::new(body_ticket)) }
    }
}

impl<B> Default for GateBody<B> {
    /// Returns the empty body.
    fn default() -> Self {
        Self { kind: GateBodyKind::Reply(None) }
    }
}

impl<B> Body for GateBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FrameResult>> {
        let next_frame = match self.as_mut().project().kind.project() {
            GateBodyKindProjection::Inner(body) => {
                return body.poll_frame(cx).map_err(BodyError::new);
            }
            GateBodyKindProjection::Reply(bytes) => {
                return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b))));
            }
            GateBodyKindProjection::Buffered { frames, remaining_bytes } => {
                let next_item = frames.pop_front();
                let data = next_item.as_ref().and_then(frame_data).map_or(0, <[u8]>::len);
                *remaining_bytes = remaining_bytes.saturating_sub(data as u64);
                return Poll::Ready(next_item);
            }
            GateBodyKindProjection::Channel(frames) => {
                let next_item = ready!(frames.poll_recv(cx));
                if !matches!(next_item, Some(Some(Ok(_)))) {
                    self.project().kind.set(GateBodyKind::Reply(None));
                }
                // The sender was dropped.
                let broken_off = || Some(Err(BodyError::new("the body ended early")));
                return Poll::Ready(next_item.unwrap_or_else(broken_off));
            }
            GateBodyKindProjection::Ticketed(body, body_ticket) => {
                ready!(body_ticket.poll_next(cx, |cx| poll_next_item(body, cx)))
            }
        };
        Poll::Ready(next_frame.unwrap_or_else(|ticket| {
            // Drops the body at once, and nothing follows the error. The ticket is dropped after
            // the body.
            self.project().kind.set(GateBodyKind::Reply(None));
            drop(ticket);
            Some(Err(BodyError::new("the body was stopped by its gate")))
        }))
    }

    // Both are forwarded: without a known size, hyper would send chunks instead of a
    // content-length.
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            GateBodyKind::Inner(body) => body.is_end_stream(),
            GateBodyKind::Ticketed(body, body_ticket) => {
                body_ticket.has_left_gate() && body.is_end_stream()
            }
            GateBodyKind::Reply(bytes) => bytes.is_none(),
            GateBodyKind::Buffered { frames, .. } => frames.is_empty(),
            GateBodyKind::Channel(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            GateBodyKind::Inner(body) | GateBodyKind::Ticketed(body, _) => body.size_hint(),
            GateBodyKind::Buffered { remaining_bytes, .. } => {
                SizeHint::with_exact(*remaining_bytes)
            }
            GateBodyKind::Channel(_) => SizeHint::default(),
            GateBodyKind::Reply(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// Returns the bytes of a data frame.
pub(super) fn frame_data(frame: &FrameResult) -> Option<&[u8]> {
    frame.as_ref().ok()?.data_ref().map(|data| &data[..])
}

pub(super) fn poll_next_item<B>(
    mut body: Pin<&mut B>,
    cx: &mut Context<'_>,
) -> Poll<NextBodyItem<FrameResult>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let next_frame =
        ready!(body.as_mut().poll_frame(cx)).map(|frame| frame.map_err(BodyError::new));
    Poll::Ready(match next_frame {
        // hyper polls no further after a frame that ends the body, so that frame is the last item.
        Some(Ok(frame)) if !body.is_end_stream() => NextBodyItem::Item(Ok(frame)),
        Some(Err(error)) => NextBodyItem::Failed(Err(error)),
        last => NextBodyItem::Last(last),
    })
}

/// Returns true if no byte of this body is sent: it is empty, or the status or method has none (RFC
/// 9110 sections 6.4.1 and 9.3.2). hyper drops such a body without polling it to its end.
pub(super) fn has_no_sent_body<B: Body>(head: bool, response: &Response<B>) -> bool {
    let status = response.status();
    head || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || response.body().is_end_stream()
}

/// Error of a response body: the inner service's own, or that of a body broken off by a gate.
#[derive(Debug)]
pub struct BodyError(BoxError);

impl BodyError {
    fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
