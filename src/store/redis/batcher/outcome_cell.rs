//! `OutcomeCell`: outcome of one call, shared by its caller and the batch that sends it.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind};

/// Outcome of one call, and the waker of its caller.
pub(super) struct OutcomeCell<T>(Mutex<CellState<T>>);

struct CellState<T> {
    phase: CellPhase<T>,
    /// It is or was on the wire.
    sent: bool,
    /// The caller has to use a timer of its own.
    deadline_signaled: bool,
    waker: Option<Waker>,
}

enum CellPhase<T> {
    Waiting,
    Done(T),
    /// The caller is gone, or has taken the outcome.
    Closed,
}

/// State of a call at the moment when its caller leaves.
pub(super) enum AbandonedCall<T> {
    /// It was not sent, and will not be.
    Unsent,
    /// It may have run.
    Sent,
    /// The outcome had arrived.
    Done(T),
}

impl<T> Default for OutcomeCell<T> {
    fn default() -> Self {
        Self(Mutex::new(CellState {
            phase: CellPhase::Waiting,
            sent: false,
            deadline_signaled: false,
            waker: None,
        }))
    }
}

impl<T> OutcomeCell<T> {
    /// Marks the call as sent. Returns false if its caller is gone, and it must not be sent.
    pub(super) fn mark_sent(&self) -> bool {
        let mut state = self.0.lock();
        let is_waiting = matches!(state.phase, CellPhase::Waiting);
        state.sent |= is_waiting;
        is_waiting
    }

    /// Called when the server has not run the call.
    pub(super) fn mark_unsent(&self) {
        self.0.lock().sent = false;
    }

    pub(super) fn complete(&self, outcome: T) {
        let mut state = self.0.lock();
        if matches!(state.phase, CellPhase::Waiting) {
            state.phase = CellPhase::Done(outcome);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Tells the caller that its deadline may have passed.
    pub(super) fn signal_deadline(&self) {
        let mut state = self.0.lock();
        state.deadline_signaled = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns true if no caller waits for an outcome.
    pub(super) fn is_finished(&self) -> bool {
        !matches!(self.0.lock().phase, CellPhase::Waiting)
    }

    /// Ends the wait of the caller.
    pub(super) fn abandon(&self) -> AbandonedCall<T> {
        let mut state = self.0.lock();
        // Dropped outside of the lock: a waker may be the last reference to a whole task.
        let _waker = state.waker.take();
        let abandoned = match std::mem::replace(&mut state.phase, CellPhase::Closed) {
            CellPhase::Done(outcome) => AbandonedCall::Done(outcome),
            _ if state.sent => AbandonedCall::Sent,
            _ => AbandonedCall::Unsent,
        };
        drop(state);
        abandoned
    }

    #[cfg(test)]
    pub(super) fn is_sent(&self) -> bool {
        self.0.lock().sent
    }

    async fn outcome(&self) -> T {
        let outcome = |context: &mut Context<'_>| match self.poll_outcome(context.waker(), false) {
            Poll::Ready(Some(outcome)) => Poll::Ready(outcome),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        };
        poll_fn(outcome).await
    }

    fn poll_outcome(&self, waker: &Waker, checks_deadline: bool) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if matches!(state.phase, CellPhase::Done(_))
            && let CellPhase::Done(outcome) = std::mem::replace(&mut state.phase, CellPhase::Closed)
        {
            return Poll::Ready(Some(outcome));
        }
        if checks_deadline && state.deadline_signaled {
            return Poll::Ready(None);
        }
        let is_current = state.waker.as_ref().is_some_and(|stored| stored.will_wake(waker));
        let old = if is_current { None } else { state.waker.replace(waker.clone()) };
        // Outside of the lock: the waker may be the last reference to a task.
        drop(state);
        drop(old);
        Poll::Pending
    }
}

/// Waiting caller of a queued call. Dropping it keeps the call from being sent, if it was not sent
/// yet.
pub(super) struct OutcomeReceiver<T> {
    cell: Arc<OutcomeCell<T>>,
    /// Dropping this changes nothing: the call is sent in any case, or the outcome was taken.
    detached: bool,
}

impl<T> OutcomeReceiver<T> {
    pub(super) fn new(cell: Arc<OutcomeCell<T>>) -> Self {
        Self { cell, detached: false }
    }

    pub(super) fn detached(cell: Arc<OutcomeCell<T>>) -> Self {
        Self { cell, detached: true }
    }

    /// Polls for the outcome; `None` if the [deadline was signaled](OutcomeCell::signal_deadline)
    /// first.
    pub(super) fn poll_outcome(&mut self, context: &Context<'_>) -> Poll<Option<T>> {
        let polled = self.cell.poll_outcome(context.waker(), true);
        self.detached |= matches!(polled, Poll::Ready(Some(_)));
        polled
    }
}

impl<R> OutcomeReceiver<Result<R, Error>> {
    /// Waits for the outcome until the deadline, then abandons the call.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice in its future"
    )]
    pub(super) fn outcome_by(
        self,
        deadline: Instant,
        script_name: &'static str,
    ) -> impl Future<Output = Result<R, Error>> {
        async move {
            match self.try_outcome_by(deadline).await {
                Some(outcome) => outcome,
                None => self.abandon(script_name),
            }
        }
    }

    /// Waits for the outcome until `deadline`. `None` leaves the call as it is, to be awaited
    /// again.
    pub(super) async fn try_outcome_by(&self, deadline: Instant) -> Option<Result<R, Error>> {
        timeout_at(deadline, self.cell.outcome()).await.ok()
    }

    /// Abandons the call. Returns its outcome if it has arrived, else an error that tells if it was
    /// sent.
    pub(super) fn abandon(&self, script_name: &'static str) -> Result<R, Error> {
        match self.cell.abandon() {
            AbandonedCall::Unsent => Err(Error::new(ErrorKind::Unavailable, script_name)),
            AbandonedCall::Sent => Err(Error::new(ErrorKind::Timeout, script_name)),
            AbandonedCall::Done(outcome) => outcome,
        }
    }
}

impl<T> Drop for OutcomeReceiver<T> {
    fn drop(&mut self) {
        if !self.detached {
            self.cell.abandon();
        }
    }
}
