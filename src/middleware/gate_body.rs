//! `GateBody`: the response body, either the inner service's own or that of a reply.

use std::{
    borrow::Cow,
    collections::VecDeque,
    convert::Infallible,
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{self, InvalidHeaderName},
};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tokio::sync::mpsc;

use crate::{
    gate::{BodyTicket, NextBodyItem},
    reply::{HeaderSet, Reply, SharedReply},
};

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
    /// A body that was read already, with its number of remaining bytes.
    Buffered(VecDeque<FrameResult>, u64),
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

    /// Creates a body of this length from items that were read.
    pub(super) fn buffered(items: Vec<FrameResult>, length: u64) -> Self {
        Self { kind: GateBodyKind::Buffered(items.into(), length) }
    }

    pub(super) fn from_channel(items: mpsc::Receiver<Option<FrameResult>>) -> Self {
        Self { kind: GateBodyKind::Channel(items) }
    }

    pub(super) fn with_ticket(body: B, kept: BodyTicket<FrameResult>) -> Self {
        Self { kind: GateBodyKind::Ticketed(body, Box::new(kept)) }
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
        let next = match self.as_mut().project().kind.project() {
            GateBodyKindProjection::Inner(body) => {
                return body.poll_frame(cx).map_err(BodyError::new);
            }
            GateBodyKindProjection::Reply(bytes) => {
                return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b))));
            }
            GateBodyKindProjection::Buffered(items, left) => {
                let item = items.pop_front();
                let data = item.as_ref().and_then(frame_data).map_or(0, <[u8]>::len);
                *left = left.saturating_sub(data as u64);
                return Poll::Ready(item);
            }
            GateBodyKindProjection::Channel(items) => {
                let item = ready!(items.poll_recv(cx));
                if !matches!(item, Some(Some(Ok(_)))) {
                    self.project().kind.set(GateBodyKind::Reply(None));
                }
                // The sender was dropped.
                let broke = || Some(Err(BodyError::new("the body ended early")));
                return Poll::Ready(item.unwrap_or_else(broke));
            }
            GateBodyKindProjection::Ticketed(body, kept) => {
                ready!(kept.poll_next(cx, |cx| poll_next_item(body, cx)))
            }
        };
        Poll::Ready(next.unwrap_or_else(|ticket| {
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
            GateBodyKind::Ticketed(body, kept) => kept.has_left_gate() && body.is_end_stream(),
            GateBodyKind::Reply(bytes) => bytes.is_none(),
            GateBodyKind::Buffered(items, _) => items.is_empty(),
            GateBodyKind::Channel(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            GateBodyKind::Inner(body) | GateBodyKind::Ticketed(body, _) => body.size_hint(),
            GateBodyKind::Buffered(_, left) => SizeHint::with_exact(*left),
            GateBodyKind::Channel(_) => SizeHint::default(),
            GateBodyKind::Reply(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// Returns the bytes of a data frame.
pub(super) fn frame_data(item: &FrameResult) -> Option<&[u8]> {
    item.as_ref().ok()?.data_ref().map(|data| &data[..])
}

pub(super) fn poll_next_item<B>(
    mut body: Pin<&mut B>,
    cx: &mut Context<'_>,
) -> Poll<NextBodyItem<FrameResult>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let next = ready!(body.as_mut().poll_frame(cx)).map(|frame| frame.map_err(BodyError::new));
    Poll::Ready(match next {
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

/// Converts a reply to a response.
#[must_use]
pub fn response_from_reply<B>(reply: Reply) -> Response<GateBody<B>> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = Some(reply.body).filter(|body| !body.is_empty() && !forbids_body(status));
    let mut response = Response::new(GateBody { kind: GateBodyKind::Reply(body) });
    *response.status_mut() = status;
    append_headers(&mut response, reply.headers);
    for (name, value) in reply.binary_headers {
        if let (Ok(name), Ok(value)) =
            (parse_header_name(&name), HeaderValue::from_maybe_shared(value))
        {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// Converts a reply that other requests share to a response.
pub(super) fn shared_response<B>(reply: &SharedReply) -> Response<GateBody<B>> {
    // All copies share the headers and the bytes of the body.
    let made = reply.get_or_convert(|reply| {
        let body = reply.body.clone();
        let response = response_from_reply::<Infallible>(reply);
        let is_sent = !body.is_empty() && !forbids_body(response.status());
        response.map(|_| is_sent.then_some(body))
    });
    match made {
        Some(made) => made.clone().map(|body| GateBody { kind: GateBodyKind::Reply(body) }),
        None => response_from_reply(reply.reply().clone()),
    }
}

/// Returns true if a response of this status must be built without a body. hyper would send the
/// body of a 205. It drops that of the others, but axum has set `content-length` by then, which a
/// 204 must not have (RFC 9110 section 8.6). A stored response may have any of these statuses.
fn forbids_body(status: StatusCode) -> bool {
    status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        )
}

/// Parses a header name. The names in quota replies are constants, which costs neither parsing nor
/// an allocation.
fn parse_header_name(name: &str) -> Result<HeaderName, InvalidHeaderName> {
    static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    static QUOTA: HeaderName = HeaderName::from_static("ratelimit");
    Ok(match name {
        "ratelimit-policy" => POLICY.clone(),
        "ratelimit" => QUOTA.clone(),
        "retry-after" => header::RETRY_AFTER,
        "content-type" => header::CONTENT_TYPE,
        "cache-control" => header::CACHE_CONTROL,
        name => return HeaderName::from_bytes(name.as_bytes()),
    })
}

/// Appends headers, so that two layers with a policy each form one list (RFC 9651 section 4.2).
pub(super) fn append_headers<B>(response: &mut Response<B>, fields: HeaderSet) {
    for (name, value) in fields.into_iter().filter(|(_, value)| value.is_ascii()) {
        // Reuses the text without a copy.
        let value = match value {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => text.into(),
        };
        append_header(response, &name, value);
    }
}

/// Appends one header with an ASCII value, like [`append_headers`].
pub(super) fn append_header<B>(response: &mut Response<B>, name: &str, value: Bytes) {
    let (name, value) = (parse_header_name(name), HeaderValue::from_maybe_shared(value));
    if let (Ok(name), Ok(value)) = (name, value) {
        response.headers_mut().append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    #[test]
    fn bodyless_status_has_an_empty_body() {
        for (status, bytes) in [(200, 4), (204, 0), (205, 0), (304, 0)] {
            let reply = Reply::new(status).body("body");
            let repeated = SharedReply::new(reply.clone());
            let all = [response_from_reply::<Empty<Bytes>>(reply), shared_response(&repeated)];
            for response in all {
                assert_eq!(response.body().size_hint().exact(), Some(bytes), "{status}");
            }
        }
    }
}
