//! The inner call, beside what may end it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use super::{BodyTimerHandle, ServiceOutcome};

/// How an inner call ended, or was ended.
#[derive(Debug)]
pub enum CallCompletion<T> {
    /// By itself.
    Completed(T),
    /// [`Gate::cancellation`](super::Gate::cancellation) resolved, or its client was too slow.
    Stopped,
}

impl<T> CallCompletion<T> {
    /// What to leave the gate with; the function tells of a call that has ended by itself.
    pub fn outcome(
        &self,
        reading: Option<&BodyTimerHandle>,
        ended: impl FnOnce(&T) -> ServiceOutcome,
    ) -> ServiceOutcome {
        match self {
            // Whatever the handler has made of a body that broke off.
            _ if reading.is_some_and(BodyTimerHandle::is_timed_out) => {
                ServiceOutcome::RequestBodyTimeout
            }
            Self::Completed(output) => ended(output),
            Self::Stopped => ServiceOutcome::Stopped,
        }
    }
}

/// Polls the inner call for as long as the gate lets it go on: [`attend`], for a driver that has a future of its own.
/// `began` is false before the first poll, and kept by the driver.
///
/// Both are dropped by the driver, before it leaves the gate: what the handler had begun must have ended when the lock
/// is given back.
pub fn poll_until_cancelled<C: Future, W: Future<Output = ()>>(
    call: Pin<&mut C>,
    mut watch: Pin<&mut W>,
    began: &mut bool,
    reading: Option<&BodyTimerHandle>,
    cx: &mut Context<'_>,
) -> Poll<CallCompletion<C::Output>> {
    // A call that ends at once costs no watch. Later the watch comes first: of nested layers that stop
    // one call the outermost does, and knows that it was stopped.
    if *began && watch.as_mut().poll(cx).is_ready() {
        return Poll::Ready(CallCompletion::Stopped);
    }
    if let Poll::Ready(output) = call.poll(cx) {
        return Poll::Ready(CallCompletion::Completed(output));
    }
    let too_slow = |reading: &BodyTimerHandle| reading.poll_timed_out(cx).is_ready();
    if reading.is_some_and(too_slow) {
        return Poll::Ready(CallCompletion::Stopped);
    }
    if *began {
        return Poll::Pending;
    }
    *began = true;
    watch.poll(cx).map(|()| CallCompletion::Stopped)
}

/// Awaits the inner call for as long as the gate lets it go on. Both are pinned by the driver, and dropped as
/// [`poll_until_cancelled`] says.
pub async fn run_until_cancelled<C: Future, W: Future<Output = ()>>(
    mut call: Pin<&mut C>,
    mut watch: Pin<&mut W>,
    reading: Option<&BodyTimerHandle>,
) -> CallCompletion<C::Output> {
    let mut began = false;
    poll_fn(|cx| poll_until_cancelled(call.as_mut(), watch.as_mut(), &mut began, reading, cx)).await
}
