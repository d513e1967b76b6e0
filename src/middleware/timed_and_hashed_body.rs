//! `TimedBody`: a request body that is read with a timeout, and hashed for its fingerprint.

use std::{
    any::{Any, TypeId, type_name},
    fmt,
    pin::Pin,
    sync::Once,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::gate_body::BoxError;
use crate::gate::{RequestBodyWaitTimer, RequestFingerprint};

/// Request body that is to be timed. The layers keep a request's body type, so a timed body must
/// fit into that type again; a [`Framework`](super::Framework) knows the types that can hold one.
pub struct UntimedBody<B> {
    body: B,
    body_timer: RequestBodyWaitTimer,
    fingerprint: Option<RequestFingerprint>,
    /// The body has a read timeout.
    has_timeout: bool,
}

impl<B: Body<Data = Bytes> + 'static> UntimedBody<B> {
    pub(super) fn new(
        body: B,
        body_timer: RequestBodyWaitTimer,
        has_timeout: bool,
        fingerprint: Option<RequestFingerprint>,
    ) -> Self {
        Self { body, body_timer, fingerprint, has_timeout }
    }

    /// Times the body if it is a `T`, by wrapping it in another `T`. `box_error` converts the
    /// errors of a `T`; `wrap` must be able to convert them back.
    ///
    /// # Errors
    ///
    /// The unchanged body, if it is not a `T`.
    #[expect(clippy::expect_used, reason = "the types were compared")]
    pub fn try_time_as<T: Body<Data = Bytes> + 'static>(
        self,
        box_error: fn(T::Error) -> BoxError,
        wrap: impl FnOnce(TimedBody<T>) -> T,
    ) -> Result<B, Self> {
        if TypeId::of::<B>() != TypeId::of::<T>() {
            return Err(self);
        }
        let Self { body, body_timer, fingerprint, .. } = self;
        let timed = |body| wrap(TimedBody { body: Some(body), box_error, body_timer, fingerprint });
        // `B` and `T` are the same type.
        let body = cast_same_type::<B, T>(body).map(timed).and_then(cast_same_type::<T, B>);
        Ok(body.expect("the body has this type"))
    }

    /// Leaves the body as it is, and logs once that its read timeout has no effect.
    pub fn leave_untimed(self) -> B {
        static WARNED: Once = Once::new();
        let log_warning = || {
            tracing::warn!(
                body = type_name::<B>(),
                "body_read_timeout is not enforced for this body type; box the body outside the \
                 layer, or give the layer a `Framework` of your own"
            );
        };
        if self.has_timeout {
            WARNED.call_once(log_warning);
        }
        self.body
    }
}

fn cast_same_type<A: 'static, B: 'static>(value: A) -> Option<B> {
    let mut slot = Some(value);
    (&mut slot as &mut dyn Any).downcast_mut::<Option<B>>()?.take()
}

/// Request body that fails when its client was too slow. It updates the request's fingerprint with
/// the data that is read.
#[pin_project]
pub struct TimedBody<B: Body> {
    /// `None` once it has failed.
    #[pin]
    body: Option<B>,
    box_error: fn(B::Error) -> BoxError,
    body_timer: RequestBodyWaitTimer,
    /// Updated with the data that is read.
    fingerprint: Option<RequestFingerprint>,
}

impl<B: Body<Data = Bytes>> Body for TimedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        match this.body_timer.poll_body(cx, |cx| body.poll_frame(cx)) {
            Ok(polled) => {
                let is_at_end =
                    || this.body.as_ref().as_pin_ref().is_none_or(|body| body.is_end_stream());
                if let Some(fingerprint) = this.fingerprint {
                    update_fingerprint(fingerprint, &polled, is_at_end);
                }
                polled.map_err(*this.box_error)
            }
            Err(timeout) => {
                this.fingerprint.iter().for_each(RequestFingerprint::mark_truncated);
                this.body.set(None);
                Poll::Ready(Some(Err(timeout.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

fn update_fingerprint<E>(
    fingerprint: &RequestFingerprint,
    polled: &Poll<Option<Result<Frame<Bytes>, E>>>,
    is_at_end: impl FnOnce() -> bool,
) {
    match polled {
        Poll::Ready(Some(Ok(frame))) => {
            if let Some(data) = frame.data_ref() {
                fingerprint.update(data);
            }
            // A reader does not poll a body that reports its end.
            if is_at_end() {
                fingerprint.finish();
            }
        }
        Poll::Ready(None) => fingerprint.finish(),
        Poll::Ready(Some(Err(_))) => fingerprint.mark_truncated(),
        Poll::Pending => {}
    }
}

impl<B> fmt::Debug for UntimedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UntimedBody").field("body_timer", &self.body_timer).finish_non_exhaustive()
    }
}

impl<B: Body> fmt::Debug for TimedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedBody").field("body_timer", &self.body_timer).finish_non_exhaustive()
    }
}
