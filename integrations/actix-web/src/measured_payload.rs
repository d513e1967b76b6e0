//! `MeasuredPayload`: request payload with a read timeout and a fingerprint.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::{
    HttpMessage as _,
    dev::{Payload, ServiceRequest},
    error::PayloadError,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use lockgate::driver::{BodyTimeoutWatch, RequestBodyWaitTimer, RequestFingerprint};

/// Times the payload of a request, if it has one, and adds the chunks that are read to the
/// fingerprint.
pub(crate) fn measure_payload(
    request: &mut ServiceRequest,
    read_timeout: Option<Duration>,
    fingerprint: Option<RequestFingerprint>,
) -> Option<BodyTimeoutWatch> {
    if read_timeout.is_none() && fingerprint.is_none() {
        return None;
    }
    let mut payload = request.take_payload();
    let first_poll = match (&fingerprint, &mut payload) {
        (_, Payload::None) => Some(None),
        // Over HTTP/2 every request has a payload, and handlers do not read an absent body to its
        // end.
        (Some(_), payload) => payload.next().now_or_never(),
        (None, _) => None,
    };
    if let Some(None) = first_poll {
        fingerprint.iter().for_each(RequestFingerprint::finish);
        return None;
    }
    // Without a timeout the handle is dropped, and no time is counted.
    let (timeout_watch, body_timer) = BodyTimeoutWatch::new(read_timeout.unwrap_or_default());
    let timeout_watch = read_timeout.map(|_| timeout_watch);
    request.set_payload(Payload::Stream {
        payload: Box::pin(MeasuredPayload {
            first_chunk: first_poll.flatten(),
            payload: Some(payload),
            body_timer,
            fingerprint,
        }),
    });
    timeout_watch
}

/// Payload that counts the time which its reader waits, and adds its chunks to the fingerprint.
struct MeasuredPayload {
    /// Chunk that was polled before.
    first_chunk: Option<Result<Bytes, PayloadError>>,
    /// `None` after a failure.
    payload: Option<Payload>,
    body_timer: RequestBodyWaitTimer,
    fingerprint: Option<RequestFingerprint>,
}

impl Stream for MeasuredPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { first_chunk, payload: open_payload, body_timer, fingerprint } = &mut *self;
        let Some(payload) = open_payload else {
            return Poll::Ready(None);
        };
        let poll_chunk = |cx: &mut Context<'_>| match first_chunk.take() {
            Some(chunk) => Poll::Ready(Some(chunk)),
            None => Pin::new(payload).poll_next(cx),
        };
        match body_timer.poll_body(cx, poll_chunk) {
            Ok(polled) => {
                match (fingerprint, &polled) {
                    (Some(fingerprint), Poll::Ready(Some(Ok(bytes)))) => fingerprint.update(bytes),
                    (Some(fingerprint), Poll::Ready(Some(Err(_)))) => fingerprint.mark_truncated(),
                    (Some(fingerprint), Poll::Ready(None)) => fingerprint.finish(),
                    _ => {}
                }
                polled
            }
            Err(timeout) => {
                fingerprint.iter().for_each(RequestFingerprint::mark_truncated);
                *open_payload = None;
                let error = io::Error::new(io::ErrorKind::TimedOut, timeout);
                Poll::Ready(Some(Err(PayloadError::Io(error))))
            }
        }
    }
}
