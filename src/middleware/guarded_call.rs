//! A call under a gate's ticket.
//!
//! Written as a struct: an async block would have the call in it twice, where it was made and where it is awaited, and
//! what a request has on the heap is to stay below 1 KiB a block. Beyond it allocators have nothing at hand.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Response, request::Parts};
use http_body::Body;
use pin_project::pin_project;

use super::{
    framework::Framework,
    response_future::ResponseState,
    settle::{leave_gate, response_headers, service_outcome},
};
use crate::gate::{BodyTimerHandle, CallCompletion, Gate, poll_until_cancelled};

/// The inner call, until it has ended or was ended. What comes of it is the leaving of the gate, and by then both the
/// call and the watch have been dropped: whoever sets the one in place of the other drops this. If the handler panics, the
/// lock goes back when this is dropped, which is when whoever polls it lets go of what has panicked.
#[pin_project]
pub(super) struct GuardedCall<C, W, G: Gate<Parts>, K> {
    /// Before the ticket, which is dropped after it.
    #[pin]
    call: C,
    #[pin]
    cancellation: W,
    /// The call has been polled.
    was_polled: bool,
    /// `None` once it has ended.
    context: Option<CallContext<G>>,
    output: PhantomData<fn() -> K>,
}

/// What a call is under.
pub(super) struct CallContext<G: Gate<Parts>> {
    pub(super) gate: Arc<G>,
    pub(super) ticket: G::Ticket,
    /// The request's method is HEAD.
    pub(super) is_head: bool,
    pub(super) body_timer: Option<BodyTimerHandle>,
}

impl<C, W, G: Gate<Parts>, K> GuardedCall<C, W, G, K> {
    pub(super) fn new(call: C, watch: W, under: CallContext<G>) -> Self {
        Self {
            call,
            cancellation: watch,
            was_polled: false,
            context: Some(under),
            output: PhantomData,
        }
    }
}

impl<C, W, G, F, S, R, E> Future for GuardedCall<C, W, G, ResponseState<S, R, E, G, F>>
where
    C: Future<Output = Result<Response<R>, E>>,
    W: Future<Output = ()>,
    G: Gate<Parts>,
    F: Framework,
    R: Body + Send + 'static,
    E: Send + 'static,
{
    type Output = ResponseState<S, R, E, G, F>;

    #[expect(clippy::expect_used, reason = "a future that is polled after its end may panic")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let reading = this.context.as_ref().and_then(|under| under.body_timer.as_ref());
        let ended = ready!(poll_until_cancelled(
            this.call,
            this.cancellation,
            this.was_polled,
            reading,
            cx
        ));
        let CallContext { gate, mut ticket, is_head: head, body_timer: reading } =
            this.context.take().expect("polled after completion");
        let outcome = ended.outcome(reading.as_ref(), |ended| service_outcome(head, ended));
        if let CallCompletion::Completed(Ok(answer)) = &ended {
            gate.observe_headers(&mut ticket, || response_headers(answer));
        }
        Poll::Ready(ResponseState::Settling(Box::pin(leave_gate::<G, F, R, E>(
            gate, ticket, ended, outcome, reading,
        ))))
    }
}
