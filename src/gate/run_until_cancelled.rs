//! Runs the inner call until it completes, is cancelled by its gate, or its client is too slow.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use super::{BodyTimeoutWatch, ServiceOutcome};

/// End of an inner call.
#[derive(Debug)]
pub enum CallCompletion<T> {
    /// The call completed by itself.
    Completed(T),
    /// [`Gate::cancellation`](super::Gate::cancellation) resolved, or the client was too slow.
    Stopped,
}

impl<T> CallCompletion<T> {
    /// Returns the outcome to leave the gate with. `classify` classifies a call that completed by
    /// itself.
    pub fn outcome(
        &self,
        timeout_watch: Option<&BodyTimeoutWatch>,
        classify: impl FnOnce(&T) -> ServiceOutcome,
    ) -> ServiceOutcome {
        match self {
            // Independent of the handler's response to a body that broke off.
            _ if timeout_watch.is_some_and(BodyTimeoutWatch::is_timed_out) => {
                ServiceOutcome::RequestBodyTimeout
            }
            Self::Completed(output) => classify(output),
            Self::Stopped => ServiceOutcome::Stopped,
        }
    }
}

/// Polls the inner call until it completes or is cancelled: [`run_until_cancelled`] for a driver
/// with a future of its own. `was_polled` is false before the first poll; the driver keeps it.
///
/// The driver drops both futures before it leaves the gate: the handler's work must have ended when
/// the lock is released.
pub fn poll_until_cancelled<C: Future, W: Future<Output = ()>>(
    call: Pin<&mut C>,
    mut cancellation: Pin<&mut W>,
    was_polled: &mut bool,
    timeout_watch: Option<&BodyTimeoutWatch>,
    cx: &mut Context<'_>,
) -> Poll<CallCompletion<C::Output>> {
    // A call that completes in its first poll never polls the cancellation. Later the cancellation
    // comes first: of nested layers that stop one call, the outermost must stop it and report that.
    if *was_polled && cancellation.as_mut().poll(cx).is_ready() {
        return Poll::Ready(CallCompletion::Stopped);
    }
    if let Poll::Ready(output) = call.poll(cx) {
        return Poll::Ready(CallCompletion::Completed(output));
    }
    let is_timed_out =
        |timeout_watch: &BodyTimeoutWatch| timeout_watch.poll_timed_out(cx).is_ready();
    if timeout_watch.is_some_and(is_timed_out) {
        return Poll::Ready(CallCompletion::Stopped);
    }
    if *was_polled {
        return Poll::Pending;
    }
    *was_polled = true;
    cancellation.poll(cx).map(|()| CallCompletion::Stopped)
}

/// Awaits the inner call until it completes or is cancelled. The driver pins both futures, and
/// drops them as described at [`poll_until_cancelled`].
pub async fn run_until_cancelled<C: Future, W: Future<Output = ()>>(
    mut call: Pin<&mut C>,
    mut cancellation: Pin<&mut W>,
    timeout_watch: Option<&BodyTimeoutWatch>,
) -> CallCompletion<C::Output> {
    let mut was_polled = false;
    poll_fn(|cx| {
        poll_until_cancelled(
            call.as_mut(),
            cancellation.as_mut(),
            &mut was_polled,
            timeout_watch,
            cx,
        )
    })
    .await
}
