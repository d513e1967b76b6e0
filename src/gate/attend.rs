//! The inner call, beside what may end it.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
};

use pin_project::pin_project;

use super::{Outcome, Reading};

/// How an inner call ended, or was ended.
#[derive(Debug)]
pub enum Attended<T> {
    /// By itself.
    Ended(T),
    /// [`Gate::watch`](super::Gate::watch) resolved, or its client was too slow.
    Stopped,
}

impl<T> Attended<T> {
    /// What to leave the gate with; the function tells of a call that has ended by itself.
    pub fn outcome(&self, reading: Option<&Reading>, ended: impl FnOnce(&T) -> Outcome) -> Outcome {
        match self {
            // Whatever the handler has made of a body that broke off.
            _ if reading.is_some_and(Reading::is_too_slow) => Outcome::TooSlow,
            Self::Ended(output) => ended(output),
            Self::Stopped => Outcome::Stopped,
        }
    }
}

/// The inner call, and what may end it, for a driver that polls them itself.
///
/// Both are dropped by the driver, before it leaves the gate: what the handler had begun must have ended when the lock
/// is given back.
#[pin_project]
pub struct Attending<C, W> {
    #[pin]
    call: C,
    #[pin]
    watch: W,
    /// The call has been polled.
    began: bool,
}

impl<C: Future, W: Future<Output = ()>> Attending<C, W> {
    /// This call, not polled yet, and this [watch](super::Gate::watch).
    pub fn new(call: C, watch: W) -> Self {
        Self { call, watch, began: false }
    }

    /// Polls the call for as long as the gate lets it go on.
    pub fn poll_ended(
        self: Pin<&mut Self>,
        reading: Option<&Reading>,
        cx: &mut Context<'_>,
    ) -> Poll<Attended<C::Output>> {
        let mut this = self.project();
        // A call that ends at once costs no watch. Later the watch comes first: of nested layers that stop
        // one call the outermost does, and knows that it was stopped.
        if *this.began && this.watch.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Attended::Stopped);
        }
        if let Poll::Ready(output) = this.call.poll(cx) {
            return Poll::Ready(Attended::Ended(output));
        }
        let too_slow = |reading: &Reading| reading.poll_too_slow(cx).is_ready();
        if reading.is_some_and(too_slow) {
            return Poll::Ready(Attended::Stopped);
        }
        if *this.began {
            return Poll::Pending;
        }
        *this.began = true;
        this.watch.poll(cx).map(|()| Attended::Stopped)
    }
}

impl<C, W> fmt::Debug for Attending<C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attending").field("began", &self.began).finish_non_exhaustive()
    }
}

/// Awaits the inner call for as long as the gate lets it go on: [`Attending`], for a driver that awaits.
pub async fn attend<C: Future, W: Future<Output = ()>>(
    call: Pin<&mut C>,
    watch: Pin<&mut W>,
    reading: Option<&Reading>,
) -> Attended<C::Output> {
    let mut attending = pin!(Attending::new(call, watch));
    poll_fn(|cx| attending.as_mut().poll_ended(reading, cx)).await
}
