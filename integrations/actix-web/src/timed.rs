//! A payload whose client must not be too slow.

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
use futures_util::Stream;
use lockgate::gate::{Patience, Print, Reading};

/// Times the payload of a request, if it has one, and shows what is read of it.
pub(crate) fn time(
    request: &mut ServiceRequest,
    limit: Option<Duration>,
    print: Option<Print>,
) -> Option<Reading> {
    if limit.is_none() && print.is_none() {
        return None;
    }
    let payload = request.take_payload();
    if matches!(payload, Payload::None) {
        print.iter().for_each(Print::end);
        return None;
    }
    // Nothing is counted where the driver's end is dropped.
    let (reading, patience) = Reading::new(limit.unwrap_or_default());
    let reading = limit.map(|_| reading);
    request.set_payload(Payload::Stream {
        payload: Box::pin(TimedPayload { payload: Some(payload), patience, print }),
    });
    reading
}

struct TimedPayload {
    /// `None` once it has failed.
    payload: Option<Payload>,
    patience: Patience,
    print: Option<Print>,
}

impl Stream for TimedPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { payload: place, patience, print } = &mut *self;
        let Some(payload) = place else {
            return Poll::Ready(None);
        };
        match patience.poll(cx, |cx| Pin::new(payload).poll_next(cx)) {
            Ok(polled) => {
                match (print, &polled) {
                    (Some(print), Poll::Ready(Some(Ok(bytes)))) => print.read(bytes),
                    (Some(print), Poll::Ready(None)) => print.end(),
                    _ => {}
                }
                polled
            }
            Err(too_slow) => {
                *place = None;
                let error = io::Error::new(io::ErrorKind::TimedOut, too_slow);
                Poll::Ready(Some(Err(PayloadError::Io(error))))
            }
        }
    }
}
