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
    future::Kind,
    settle::{leave, outcome, told},
};
use crate::gate::{Attended, Gate, Reading, poll_attended};

/// The inner call, until it has ended or was ended. What comes of it is the leaving of the gate, and by then both the
/// call and the watch have been dropped: whoever sets the one in place of the other drops this. If the handler panics, the
/// lock goes back when this is dropped, which is when whoever polls it lets go of what has panicked.
#[pin_project]
pub(super) struct Called<C, W, G: Gate<Parts>, K> {
    /// Before the ticket, which is dropped after it.
    #[pin]
    call: C,
    #[pin]
    watch: W,
    /// The call has been polled.
    began: bool,
    /// `None` once it has ended.
    under: Option<Under<G>>,
    next: PhantomData<fn() -> K>,
}

/// What a call is under.
pub(super) struct Under<G: Gate<Parts>> {
    pub(super) gate: Arc<G>,
    pub(super) ticket: G::Ticket,
    /// The request's method is HEAD.
    pub(super) head: bool,
    pub(super) reading: Option<Reading>,
}

impl<C, W, G: Gate<Parts>, K> Called<C, W, G, K> {
    pub(super) fn new(call: C, watch: W, under: Under<G>) -> Self {
        Self { call, watch, began: false, under: Some(under), next: PhantomData }
    }
}

impl<C, W, G, F, S, R, E> Future for Called<C, W, G, Kind<S, R, E, G, F>>
where
    C: Future<Output = Result<Response<R>, E>>,
    W: Future<Output = ()>,
    G: Gate<Parts>,
    F: Framework,
    R: Body + Send + 'static,
    E: Send + 'static,
{
    type Output = Kind<S, R, E, G, F>;

    #[expect(clippy::expect_used, reason = "a future that is polled after its end may panic")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let reading = this.under.as_ref().and_then(|under| under.reading.as_ref());
        let ended = ready!(poll_attended(this.call, this.watch, this.began, reading, cx));
        let Under { gate, mut ticket, head, reading } =
            this.under.take().expect("polled after completion");
        let outcome = ended.outcome(reading.as_ref(), |ended| outcome(head, ended));
        if let Attended::Ended(Ok(answer)) = &ended {
            gate.hear(&mut ticket, || told(answer));
        }
        Poll::Ready(Kind::Gated(Box::pin(leave::<G, F, R, E>(
            gate, ticket, ended, outcome, reading,
        ))))
    }
}
