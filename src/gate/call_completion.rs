//! Running the inner call until it completes or is cancelled.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use super::{BodyTimerHandle, ServiceOutcome};

/// End of an inner call.
#[derive(Debug)]
pub enum CallCompletion<T> {
    /// The call completed by itself.
    Completed(T),
    /// [`Gate::cancellation`](super::Gate::cancellation) resolved, or the client was too slow.
    Stopped,
}

impl<T> CallCompletion<T> {
    /// Returns the outcome to leave the gate with. `ended` classifies a call that completed by
    /// itself.
    pub fn outcome(
        &self,
        reading: Option<&BodyTimerHandle>,
        ended: impl FnOnce(&T) -> ServiceOutcome,
    ) -> ServiceOutcome {
        match self {
            // Independent of the handler's response to a body that broke off.
            _ if reading.is_some_and(BodyTimerHandle::is_timed_out) => {
                ServiceOutcome::RequestBodyTimeout
            }
            Self::Completed(output) => ended(output),
            Self::Stopped => ServiceOutcome::Stopped,
        }
    }
}

/// Polls the inner call until it completes or is cancelled: [`run_until_cancelled`] for a driver
/// with a future of its own. `began` is false before the first poll; the driver keeps it.
///
/// The driver drops both futures before it leaves the gate: the handler's work must have ended when
/// the lock is released.
pub fn poll_until_cancelled<C: Future, W: Future<Output = ()>>(
    call: Pin<&mut C>,
    mut watch: Pin<&mut W>,
    began: &mut bool,
    reading: Option<&BodyTimerHandle>,
    cx: &mut Context<'_>,
) -> Poll<CallCompletion<C::Output>> {
    // A call that completes in its first poll never polls the cancellation. Later the cancellation
    // comes first: of nested layers that stop one call, the outermost must stop it and report that.
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

/// Awaits the inner call until it completes or is cancelled. The driver pins both futures, and
/// drops them as described at [`poll_until_cancelled`].
pub async fn run_until_cancelled<C: Future, W: Future<Output = ()>>(
    mut call: Pin<&mut C>,
    mut watch: Pin<&mut W>,
    reading: Option<&BodyTimerHandle>,
) -> CallCompletion<C::Output> {
    let mut began = false;
    poll_fn(|cx| poll_until_cancelled(call.as_mut(), watch.as_mut(), &mut began, reading, cx)).await
}
