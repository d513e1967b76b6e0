//! What a caller and a flight know of each other.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind};

/// One caller's wait for the outcome of its step.
pub(super) struct Ticket<T>(Mutex<State<T>>);

struct State<T> {
    phase: Phase<T>,
    /// It is on the wire, or was.
    sent: bool,
    waker: Option<Waker>,
}

enum Phase<T> {
    Waiting,
    Done(T),
    /// Nobody waits any more, or the outcome was fetched.
    Gone,
}

/// What a caller leaves behind.
pub(super) enum Left<T> {
    /// A step that was not sent, and will not be.
    Unsent,
    /// A step that may have run.
    Sent,
    /// Nothing: its outcome had come.
    Done(T),
}

impl<T> Default for Ticket<T> {
    fn default() -> Self {
        Self(Mutex::new(State { phase: Phase::Waiting, sent: false, waker: None }))
    }
}

impl<T> Ticket<T> {
    /// Marks it as sent, for good; false if nobody waits, and it must not be.
    pub(super) fn send(&self) -> bool {
        let mut state = self.0.lock();
        let waits = matches!(state.phase, Phase::Waiting);
        state.sent |= waits;
        waits
    }

    /// The server says that it has not run.
    pub(super) fn not_run(&self) {
        self.0.lock().sent = false;
    }

    pub(super) fn deliver(&self, outcome: T) {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Waiting) {
            state.phase = Phase::Done(outcome);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// The caller waits no more.
    pub(super) fn leave(&self) -> Left<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut state.phase, Phase::Gone) {
            Phase::Done(outcome) => Left::Done(outcome),
            _ if state.sent => Left::Sent,
            _ => Left::Unsent,
        }
    }

    #[cfg(test)]
    pub(super) fn is_sent(&self) -> bool {
        self.0.lock().sent
    }

    async fn outcome(&self) -> T {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if matches!(state.phase, Phase::Done(_))
                && let Phase::Done(outcome) = std::mem::replace(&mut state.phase, Phase::Gone)
            {
                return Poll::Ready(outcome);
            }
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }
}

/// A caller in the queue. Dropped, it is gone, and its step is not sent if it has not been.
pub(super) struct Waiting<T> {
    ticket: Arc<Ticket<T>>,
    /// Its step is sent whether or not somebody waits.
    kept: bool,
}

impl<T> Waiting<T> {
    pub(super) fn new(ticket: Arc<Ticket<T>>) -> Self {
        Self { ticket, kept: false }
    }

    pub(super) fn kept(ticket: Arc<Ticket<T>>) -> Self {
        Self { ticket, kept: true }
    }
}

impl<R> Waiting<Result<R, Error>> {
    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice"
    )]
    pub(super) fn until(
        self,
        until: Instant,
        name: &'static str,
    ) -> impl Future<Output = Result<R, Error>> {
        async move {
            match timeout_at(until, self.ticket.outcome()).await {
                Ok(outcome) => outcome,
                Err(_) => match self.ticket.leave() {
                    Left::Unsent => Err(Error::new(ErrorKind::Unavailable, name)),
                    Left::Sent => Err(Error::new(ErrorKind::Timeout, name)),
                    Left::Done(outcome) => outcome,
                },
            }
        }
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.ticket.leave();
        }
    }
}
