//! A ticket that stays until the response's body has ended.

use std::{
    fmt,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;

use super::{Gate, Outcome, Parting, Reading, Scope};

/// What a driver puts beside a body whose gate has answered [`Parting::Keep`](super::Parting::Keep).
/// `I` is what the body yields, its error included.
///
/// Dropping it drops the ticket, which is the usual end: of a body whose length is known no server asks
/// for more than that length, and none reads on for a client that has gone.
pub struct Kept<I>(State<I>);

enum State<I> {
    Watching { watch: BoxFuture<'static, ()>, reading: Option<Reading>, scope: Scope, leave: Leave },
    Leaving { leaving: BoxFuture<'static, bool>, last: Option<I> },
    Left,
}

/// The gate and its ticket; whether it lets the body end.
type Leave = Box<dyn FnOnce(Outcome) -> BoxFuture<'static, bool> + Send>;

/// What comes next of a body.
#[derive(Debug)]
pub enum Next<I> {
    /// This, and more may follow.
    Item(I),
    /// Nothing follows: it is the last, or nothing.
    Last(Option<I>),
    /// An error, and nothing follows.
    Broken(I),
}

/// The gate has stopped the body, which must break off, visibly. This is the ticket: it is to be dropped after the body, since
/// what the handler streams may go on for as long as that lives. (It is gone already where the body had ended.)
#[must_use = "the ticket is to be dropped after the body"]
pub struct Stopped {
    _ticket: Option<Leave>,
}

impl<I> Kept<I> {
    /// Keeps the ticket, and goes on to count the time of reading.
    pub fn new<N: ?Sized, G: Gate<N>>(
        gate: G,
        ticket: G::Ticket,
        reading: Option<Reading>,
    ) -> Self {
        let (watch, scope) = (Box::pin(gate.watch(&ticket)), gate.within(&ticket));
        let leave = |outcome| -> BoxFuture<'static, bool> {
            Box::pin(async move {
                // The head is out: there is nothing to put fields into, and what can't be replaced is not to be taken for whole.
                // What breaks off by itself says so itself.
                let replaced = matches!(gate.leave(ticket, outcome).await, Parting::Replace(_));
                !replaced || outcome == Outcome::BrokeOff
            })
        };
        Self(State::Watching { watch, reading, scope, leave: Box::new(leave) })
    }

    /// True once the gate has been left: nothing is held any more.
    #[must_use]
    pub fn has_left(&self) -> bool {
        matches!(self.0, State::Left)
    }

    /// Polls the body under the ticket, and within its [`Scope`], as the call that made it. The gate is left before the end is shown, so that a client that
    /// has seen the end can act at once. If the gate [replaces](super::Parting::Replace) the answer even then, the end is not shown.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        next: impl FnOnce(&mut Context<'_>) -> Poll<Next<I>>,
    ) -> Poll<Result<Option<I>, Stopped>> {
        match &mut self.0 {
            State::Watching { watch, reading, scope, .. } => {
                // First of all: a body that always has something would hide the watch.
                let slow = |reading: &Reading| reading.poll_too_slow(cx).is_ready();
                if reading.as_ref().is_some_and(slow) || watch.as_mut().poll(cx).is_ready() {
                    return self.stop();
                }
                match ready!(scope.step(|| next(cx))) {
                    Next::Item(item) => return Poll::Ready(Ok(Some(item))),
                    Next::Last(last) => self.leave(last, Outcome::Ended),
                    Next::Broken(error) => self.leave(Some(error), Outcome::BrokeOff),
                }
            }
            State::Leaving { .. } => {}
            State::Left => return Poll::Ready(Ok(None)),
        }
        self.poll_left(cx)
    }

    fn stop(&mut self) -> Poll<Result<Option<I>, Stopped>> {
        Poll::Ready(match std::mem::replace(&mut self.0, State::Left) {
            State::Watching { leave, .. } => Err(Stopped { _ticket: Some(leave) }),
            State::Leaving { .. } | State::Left => Ok(None),
        })
    }

    fn leave(&mut self, last: Option<I>, outcome: Outcome) {
        if let State::Watching { leave, .. } = std::mem::replace(&mut self.0, State::Left) {
            self.0 = State::Leaving { leaving: leave(outcome), last };
        }
    }

    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<I>, Stopped>> {
        let State::Leaving { leaving, last } = &mut self.0 else {
            return Poll::Ready(Ok(None));
        };
        let may_end = ready!(leaving.as_mut().poll(cx));
        let last = last.take();
        self.0 = State::Left;
        Poll::Ready(if may_end { Ok(last) } else { Err(Stopped { _ticket: None }) })
    }
}

impl<I> fmt::Debug for Kept<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("has_left", &self.has_left()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopped")
    }
}
