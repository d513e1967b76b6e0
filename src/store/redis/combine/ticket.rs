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
pub(super) struct Ticket<T>(Mutex<State<T>>);

struct State<T> {
    phase: Phase<T>,
    /// It is on the wire, or was.
    sent: bool,
    /// Its caller has to look at the clock himself.
    rung: bool,
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
        Self(Mutex::new(State { phase: Phase::Waiting, sent: false, rung: false, waker: None }))
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

    /// The caller's time may be over.
    pub(super) fn ring(&self) {
        let mut state = self.0.lock();
        state.rung = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Nobody waits for anything.
    pub(super) fn is_over(&self) -> bool {
        !matches!(self.0.lock().phase, Phase::Waiting)
    }

    /// The caller waits no more.
    pub(super) fn leave(&self) -> Left<T> {
        let mut state = self.0.lock();
        // It may keep a whole task in memory, and is dropped outside of the lock.
        let _waker = state.waker.take();
        let left = match std::mem::replace(&mut state.phase, Phase::Gone) {
            Phase::Done(outcome) => Left::Done(outcome),
            _ if state.sent => Left::Sent,
            _ => Left::Unsent,
        };
        drop(state);
        left
    }

    #[cfg(test)]
    pub(super) fn is_sent(&self) -> bool {
        self.0.lock().sent
    }

    async fn outcome(&self) -> T {
        let outcome = |context: &mut Context<'_>| match self.poll(context.waker(), false) {
            Poll::Ready(Some(outcome)) => Poll::Ready(outcome),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        };
        poll_fn(outcome).await
    }

    fn poll(&self, waker: &Waker, heeds: bool) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Done(_))
            && let Phase::Done(outcome) = std::mem::replace(&mut state.phase, Phase::Gone)
        {
            return Poll::Ready(Some(outcome));
        }
        if heeds && state.rung {
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
pub(super) struct Waiting<T> {
    ticket: Arc<Ticket<T>>,
    /// Nothing is to be left when this is dropped: its step is sent whoever waits, or its outcome was fetched.
    kept: bool,
}

impl<T> Waiting<T> {
    pub(super) fn new(ticket: Arc<Ticket<T>>) -> Self {
        Self { ticket, kept: false }
    }

    pub(super) fn kept(ticket: Arc<Ticket<T>>) -> Self {
        Self { ticket, kept: true }
    }

    /// The outcome; `None` if it is [rung](Ticket::ring) before.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<Option<T>> {
        let polled = self.ticket.poll(context.waker(), true);
        self.kept |= matches!(polled, Poll::Ready(Some(_)));
        polled
    }
}

impl<R> Waiting<Result<R, Error>> {
    /// The outcome, if it comes before that moment.
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
            match self.by(until).await {
                Some(outcome) => outcome,
                None => self.over(name),
            }
        }
    }

    /// The outcome, if it comes by then. One that has not come may be waited for again.
    pub(super) async fn by(&self, moment: Instant) -> Option<Result<R, Error>> {
        timeout_at(moment, self.ticket.outcome()).await.ok()
    }

    /// It is not waited for any more.
    pub(super) fn over(&self, name: &'static str) -> Result<R, Error> {
        match self.ticket.leave() {
            Left::Unsent => Err(Error::new(ErrorKind::Unavailable, name)),
            Left::Sent => Err(Error::new(ErrorKind::Timeout, name)),
            Left::Done(outcome) => outcome,
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
