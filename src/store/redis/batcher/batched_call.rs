//! `BatchedCall`: future of a call, as its caller awaits it.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{BatchTransport, CallOutcome, outcome_cell::OutcomeReceiver};

/// Outcome of a call. A call that waits in the queue, as nearly all do under load, allocates
/// nothing for it but its entry there.
pub(in super::super) struct BatchedCall<F: BatchTransport>(pub(super) BatchedCallState<F>);

pub(super) enum BatchedCallState<F: BatchTransport> {
    /// The caller sends it alone, leads the queue, or has a timer of its own.
    Boxed(BoxFuture<'static, CallOutcome<F>>),
    /// The shared timer signals the deadline.
    Queued {
        receiver: OutcomeReceiver<CallOutcome<F>>,
        deadline: Instant,
        script_name: &'static str,
    },
    /// Completed; not to be polled again.
    Finished,
}

impl<F: BatchTransport> Future for BatchedCall<F> {
    type Output = CallOutcome<F>;

    #[expect(clippy::panic, reason = "a future that is polled after its end may panic")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallOutcome<F>> {
        let state = &mut self.get_mut().0;
        if let BatchedCallState::Queued { receiver, .. } = state {
            if let Some(outcome) = ready!(receiver.poll_outcome(cx)) {
                *state = BatchedCallState::Finished;
                return Poll::Ready(outcome);
            }
            if let BatchedCallState::Queued { receiver, deadline, script_name } =
                mem::replace(state, BatchedCallState::Finished)
            {
                *state =
                    BatchedCallState::Boxed(Box::pin(receiver.outcome_by(deadline, script_name)));
            }
        }
        match state {
            BatchedCallState::Boxed(call) => call.as_mut().poll(cx),
            BatchedCallState::Queued { .. } | BatchedCallState::Finished => {
                panic!("polled after completion")
            }
        }
    }
}
