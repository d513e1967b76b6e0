//! `GuardedCall`: the inner call under a gate's ticket.
//!
//! It is a struct because an async block would contain the call twice, where it is created and
//! where it is awaited. A request's heap blocks must stay below 1 KiB: allocators have no larger
//! blocks at hand.

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
use crate::gate::{BodyTimeoutWatch, CallCompletion, Gate, poll_until_cancelled};

/// The inner call, until it completes or is cancelled. Its output is the state that leaves the
/// gate. The poller replaces this future with that state, which drops both the call and the
/// cancellation before the gate is left. If the handler panics, the lock is released when the
/// poller drops this future.
#[pin_project]
pub(super) struct GuardedCall<C, W, G: Gate<Parts>, K> {
    /// Declared before the ticket, so that it is dropped first.
    #[pin]
    call: C,
    #[pin]
    cancellation: W,
    /// The call has been polled.
    was_polled: bool,
    /// `None` once the call has ended.
    context: Option<CallContext<G>>,
    output: PhantomData<fn() -> K>,
}

/// The gate and ticket of a call.
pub(super) struct CallContext<G: Gate<Parts>> {
    pub(super) gate: Arc<G>,
    pub(super) ticket: G::Ticket,
    /// The request's method is HEAD.
    pub(super) is_head: bool,
    pub(super) timeout_watch: Option<BodyTimeoutWatch>,
}

impl<C, W, G: Gate<Parts>, K> GuardedCall<C, W, G, K> {
    pub(super) fn new(call: C, cancellation: W, context: CallContext<G>) -> Self {
        Self { call, cancellation, was_polled: false, context: Some(context), output: PhantomData }
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
        let timeout_watch =
            this.context.as_ref().and_then(|context| context.timeout_watch.as_ref());
        let completion = ready!(poll_until_cancelled(
            this.call,
            this.cancellation,
            this.was_polled,
            timeout_watch,
            cx
        ));
        let CallContext { gate, mut ticket, is_head, timeout_watch } =
            this.context.take().expect("polled after completion");
        let outcome =
            completion.outcome(timeout_watch.as_ref(), |result| service_outcome(is_head, result));
        if let CallCompletion::Completed(Ok(response)) = &completion {
            gate.observe_headers(&mut ticket, || response_headers(response));
        }
        Poll::Ready(ResponseState::Settling(Box::pin(leave_gate::<G, F, R, E>(
            gate,
            ticket,
            completion,
            outcome,
            timeout_watch,
        ))))
    }
}
