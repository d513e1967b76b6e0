//! Request payload with a read timeout and a fingerprint.

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
use lockgate::driver::{BodyTimer, BodyTimerHandle, RequestFingerprint};

/// Times the payload of a request, if it has one, and adds the chunks that are read to the
/// fingerprint.
pub(crate) fn time_payload(
    request: &mut ServiceRequest,
    limit: Option<Duration>,
    print: Option<RequestFingerprint>,
) -> Option<BodyTimerHandle> {
    if limit.is_none() && print.is_none() {
        return None;
    }
    let mut payload = request.take_payload();
    let first = match (&print, &mut payload) {
        (_, Payload::None) => Some(None),
        // Over HTTP/2 every request has a payload, and handlers do not read an absent body to its
        // end.
        (Some(_), payload) => payload.next().now_or_never(),
        (None, _) => None,
    };
    if let Some(None) = first {
        print.iter().for_each(RequestFingerprint::finish);
        return None;
    }
    // Without a limit the handle is dropped, and nothing is counted.
    let (reading, patience) = BodyTimerHandle::new(limit.unwrap_or_default());
    let reading = limit.map(|_| reading);
    request.set_payload(Payload::Stream {
        payload: Box::pin(MeasuredPayload {
            first_chunk: first.flatten(),
            payload: Some(payload),
            body_timer: patience,
            fingerprint: print,
        }),
    });
    reading
}

struct MeasuredPayload {
    /// Chunk that was polled before.
    first_chunk: Option<Result<Bytes, PayloadError>>,
    /// `None` after a failure.
    payload: Option<Payload>,
    body_timer: BodyTimer,
    fingerprint: Option<RequestFingerprint>,
}

impl Stream for MeasuredPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { first_chunk: first, payload: place, body_timer: patience, fingerprint: print } =
            &mut *self;
        let Some(payload) = place else {
            return Poll::Ready(None);
        };
        let next = |cx: &mut Context<'_>| match first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(payload).poll_next(cx),
        };
        match patience.poll_body(cx, next) {
            Ok(polled) => {
                match (print, &polled) {
                    (Some(print), Poll::Ready(Some(Ok(bytes)))) => print.update(bytes),
                    (Some(print), Poll::Ready(Some(Err(_)))) => print.mark_truncated(),
                    (Some(print), Poll::Ready(None)) => print.finish(),
                    _ => {}
                }
                polled
            }
            Err(too_slow) => {
                print.iter().for_each(RequestFingerprint::mark_truncated);
                *place = None;
                let error = io::Error::new(io::ErrorKind::TimedOut, too_slow);
                Poll::Ready(Some(Err(PayloadError::Io(error))))
            }
        }
    }
}
