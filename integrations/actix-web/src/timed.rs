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
use lockgate::gate::{Patience, Reading};

/// Times the payload of a request, if it has one.
pub(crate) fn time(request: &mut ServiceRequest, limit: Option<Duration>) -> Option<Reading> {
    let limit = limit?;
    let payload = request.take_payload();
    if matches!(payload, Payload::None) {
        return None;
    }
    let (reading, patience) = Reading::new(limit);
    request.set_payload(Payload::Stream {
        payload: Box::pin(TimedPayload { payload: Some(payload), patience }),
    });
    Some(reading)
}

struct TimedPayload {
    /// `None` once it has failed.
    payload: Option<Payload>,
    patience: Patience,
}

impl Stream for TimedPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { payload: place, patience } = &mut *self;
        let Some(payload) = place else {
            return Poll::Ready(None);
        };
        match patience.poll(cx, |cx| Pin::new(payload).poll_next(cx)) {
            Ok(polled) => polled,
            Err(too_slow) => {
                *place = None;
                let error = io::Error::new(io::ErrorKind::TimedOut, too_slow);
                Poll::Ready(Some(Err(PayloadError::Io(error))))
            }
        }
    }
}
