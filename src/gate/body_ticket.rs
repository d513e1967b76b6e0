//! `BodyTicket`: a ticket that stays with a response body until its end.

use std::{
    fmt,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;

use super::{BodyTimeoutWatch, Gate, LeaveAction, RequestScope, ServiceOutcome};

/// Ticket that a driver keeps with a body after
/// [`LeaveAction::KeepTicket`](super::LeaveAction::KeepTicket). `I` is the type of the body's
/// items, its error included.
///
/// Dropping it drops the ticket, which is the usual end: a server reads no more of a body of known
/// length than that length, and stops reading when the client has disconnected.
pub struct BodyTicket<I>(BodyTicketState<I>);

enum BodyTicketState<I> {
    Streaming {
        cancellation: BoxFuture<'static, ()>,
        timeout_watch: Option<BodyTimeoutWatch>,
        request_scope: RequestScope,
        leave_gate: LeaveGateFn,
    },
    Leaving {
        leaving: BoxFuture<'static, bool>,
        last_item: Option<I>,
    },
    Left,
}

/// Leaves the gate with the ticket; resolves to true if the body may end.
type LeaveGateFn = Box<dyn FnOnce(ServiceOutcome) -> BoxFuture<'static, bool> + Send>;

/// Next item of a body.
#[derive(Debug)]
pub enum NextBodyItem<I> {
    /// An item that more may follow.
    Item(I),
    /// The end of the body, with its last item if there is one.
    Last(Option<I>),
    /// An error, which ends the body.
    Failed(I),
}

/// The gate has stopped the body, which must break off visibly. Holds the ticket, unless the body
/// had ended already. Drop it after the body: the handler's stream may continue as long as the body
/// lives.
#[must_use = "the ticket must be dropped after the body"]
pub struct StoppedBody {
    _ticket: Option<LeaveGateFn>,
}

impl<I> BodyTicket<I> {
    /// Creates the body ticket; it continues to count the time of reading the request body.
    pub fn new<N: ?Sized, G: Gate<N>>(
        gate: G,
        ticket: G::Ticket,
        timeout_watch: Option<BodyTimeoutWatch>,
    ) -> Self {
        let (cancellation, request_scope) =
            (Box::pin(gate.cancellation(&ticket)), gate.request_scope(&ticket));
        let leave_gate = |outcome| -> BoxFuture<'static, bool> {
            Box::pin(async move {
                // The head has been sent, so headers can't be added. A body must not look complete
                // if its response would be replaced. A failed body breaks off by itself.
                let is_replaced =
                    matches!(gate.leave(ticket, outcome).await, LeaveAction::Replace(_));
                !is_replaced || outcome == ServiceOutcome::BodyFailed
            })
        };
        Self(BodyTicketState::Streaming {
            cancellation,
            timeout_watch,
            request_scope,
            leave_gate: Box::new(leave_gate),
        })
    }

    /// Returns true once the gate has been left and nothing is held.
    #[must_use]
    pub fn has_left_gate(&self) -> bool {
        matches!(self.0, BodyTicketState::Left)
    }

    /// Polls the body under the ticket, within its [`RequestScope`], as the call that made it.
    ///
    /// The gate is left before the end of the body is returned, so that a client that has seen the
    /// end can act at once. If the gate [replaces](super::LeaveAction::Replace) the response even
    /// then, the end is withheld.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        next: impl FnOnce(&mut Context<'_>) -> Poll<NextBodyItem<I>>,
    ) -> Poll<Result<Option<I>, StoppedBody>> {
        match &mut self.0 {
            BodyTicketState::Streaming { cancellation, timeout_watch, request_scope, .. } => {
                // Before the body: a body that is always ready would starve the cancellation.
                let is_timed_out =
                    |timeout_watch: &BodyTimeoutWatch| timeout_watch.poll_timed_out(cx).is_ready();
                if timeout_watch.as_ref().is_some_and(is_timed_out)
                    || cancellation.as_mut().poll(cx).is_ready()
                {
                    return self.abort();
                }
                match ready!(request_scope.run_sync(|| next(cx))) {
                    NextBodyItem::Item(item) => return Poll::Ready(Ok(Some(item))),
                    NextBodyItem::Last(last_item) => {
                        self.start_leaving(last_item, ServiceOutcome::BodyEnded);
                    }
                    NextBodyItem::Failed(error) => {
                        self.start_leaving(Some(error), ServiceOutcome::BodyFailed);
                    }
                }
            }
            BodyTicketState::Leaving { .. } => {}
            BodyTicketState::Left => return Poll::Ready(Ok(None)),
        }
        self.poll_leaving(cx)
    }

    fn abort(&mut self) -> Poll<Result<Option<I>, StoppedBody>> {
        Poll::Ready(match std::mem::replace(&mut self.0, BodyTicketState::Left) {
            BodyTicketState::Streaming { leave_gate, .. } => {
                Err(StoppedBody { _ticket: Some(leave_gate) })
            }
            BodyTicketState::Leaving { .. } | BodyTicketState::Left => Ok(None),
        })
    }

    fn start_leaving(&mut self, last_item: Option<I>, outcome: ServiceOutcome) {
        if let BodyTicketState::Streaming { leave_gate, .. } =
            std::mem::replace(&mut self.0, BodyTicketState::Left)
        {
            self.0 = BodyTicketState::Leaving { leaving: leave_gate(outcome), last_item };
        }
    }

    fn poll_leaving(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<I>, StoppedBody>> {
        let BodyTicketState::Leaving { leaving, last_item } = &mut self.0 else {
            return Poll::Ready(Ok(None));
        };
        let may_end = ready!(leaving.as_mut().poll(cx));
        let last_item = last_item.take();
        self.0 = BodyTicketState::Left;
        Poll::Ready(if may_end { Ok(last_item) } else { Err(StoppedBody { _ticket: None }) })
    }
}

impl<I> fmt::Debug for BodyTicket<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyTicket")
            .field("has_left", &self.has_left_gate())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StoppedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopped")
    }
}
