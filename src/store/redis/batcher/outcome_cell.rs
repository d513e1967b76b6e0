//! What a caller and a flight know of each other.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind};

/// One caller's wait for the outcome of its step.
pub(super) struct OutcomeCell<T>(Mutex<CellState<T>>);

struct CellState<T> {
    phase: CellPhase<T>,
    /// It is on the wire, or was.
    sent: bool,
    /// Its caller has to look at the clock himself.
    deadline_signaled: bool,
    waker: Option<Waker>,
}

enum CellPhase<T> {
    Waiting,
    Done(T),
    /// Nobody waits any more, or the outcome was fetched.
    Closed,
}

/// What a caller leaves behind.
pub(super) enum AbandonedCall<T> {
    /// A step that was not sent, and will not be.
    Unsent,
    /// A step that may have run.
    Sent,
    /// Nothing: its outcome had come.
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
    /// Marks it as sent, for good; false if nobody waits, and it must not be.
    pub(super) fn mark_sent(&self) -> bool {
        let mut state = self.0.lock();
        let waits = matches!(state.phase, CellPhase::Waiting);
        state.sent |= waits;
        waits
    }

    /// The server says that it has not run.
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

    /// The caller's time may be over.
    pub(super) fn signal_deadline(&self) {
        let mut state = self.0.lock();
        state.deadline_signaled = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Nobody waits for anything.
    pub(super) fn is_finished(&self) -> bool {
        !matches!(self.0.lock().phase, CellPhase::Waiting)
    }

    /// The caller waits no more.
    pub(super) fn abandon(&self) -> AbandonedCall<T> {
        let mut state = self.0.lock();
        // It may keep a whole task in memory, and is dropped outside of the lock.
        let _waker = state.waker.take();
        let left = match std::mem::replace(&mut state.phase, CellPhase::Closed) {
            CellPhase::Done(outcome) => AbandonedCall::Done(outcome),
            _ if state.sent => AbandonedCall::Sent,
            _ => AbandonedCall::Unsent,
        };
        drop(state);
        left
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

    fn poll_outcome(&self, waker: &Waker, heeds: bool) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if matches!(state.phase, CellPhase::Done(_))
            && let CellPhase::Done(outcome) = std::mem::replace(&mut state.phase, CellPhase::Closed)
        {
            return Poll::Ready(Some(outcome));
        }
        if heeds && state.deadline_signaled {
            return Poll::Ready(None);
        }
        let known = state.waker.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if known { None } else { state.waker.replace(waker.clone()) };
        // It may be the last of a task, with whatever that has: not under the lock.
        drop(state);
        drop(old);
        Poll::Pending
    }
}

/// A caller in the queue. Dropped, it is gone, and its step is not sent if it has not been.
pub(super) struct OutcomeReceiver<T> {
    cell: Arc<OutcomeCell<T>>,
    /// Nothing is to be left when this is dropped: its step is sent whoever waits, or its outcome was fetched.
    detached: bool,
}

impl<T> OutcomeReceiver<T> {
    pub(super) fn new(ticket: Arc<OutcomeCell<T>>) -> Self {
        Self { cell: ticket, detached: false }
    }

    pub(super) fn detached(ticket: Arc<OutcomeCell<T>>) -> Self {
        Self { cell: ticket, detached: true }
    }

    /// The outcome; `None` if it is [rung](OutcomeCell::signal_deadline) before.
    pub(super) fn poll_outcome(&mut self, context: &Context<'_>) -> Poll<Option<T>> {
        let polled = self.cell.poll_outcome(context.waker(), true);
        self.detached |= matches!(polled, Poll::Ready(Some(_)));
        polled
    }
}

impl<R> OutcomeReceiver<Result<R, Error>> {
    /// The outcome, if it comes before that moment.
    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice"
    )]
    pub(super) fn outcome_by(
        self,
        until: Instant,
        name: &'static str,
    ) -> impl Future<Output = Result<R, Error>> {
        async move {
            match self.try_outcome_by(until).await {
                Some(outcome) => outcome,
                None => self.abandon(name),
            }
        }
    }

    /// The outcome, if it comes by then. One that has not come may be waited for again.
    pub(super) async fn try_outcome_by(&self, moment: Instant) -> Option<Result<R, Error>> {
        timeout_at(moment, self.cell.outcome()).await.ok()
    }

    /// It is not waited for any more.
    pub(super) fn abandon(&self, name: &'static str) -> Result<R, Error> {
        match self.cell.abandon() {
            AbandonedCall::Unsent => Err(Error::new(ErrorKind::Unavailable, name)),
            AbandonedCall::Sent => Err(Error::new(ErrorKind::Timeout, name)),
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
