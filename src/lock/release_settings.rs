//! How the lock of a request ends, and what its client is told of that.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{
    gate::LockGate,
    held_lock::HeldLocks,
    lock_set::LockSet,
    pending_releases::PendingReleases,
    ticket::{LockTicket, LockTicketKind},
};
use crate::{
    gate::{LeaveAction, ServiceOutcome},
    reply::{Reply, problem},
    store::LockLoss,
};

/// What becomes of a request that loses its lock while its handler runs.
///
/// A lock is lost when the store has given it to somebody else or forgotten it, when it could not be
/// renewed in time, and at the end of `max_hold`. From then on another request may change the resource
/// too. Whatever is chosen here, the loss is logged, and the handler can see it
/// ([`HeldLock::lost`](crate::HeldLock::lost)); nothing but the fence keeps a late write out.
///
/// The default is `Cancel`. What is worst about a lost lock is that two handlers change the resource at
/// once, and `Cancel` alone shortens that: to the time until the handler awaits next. What speaks against
/// it, that a handler may be cut off between two of its steps, is nothing new to it: a client that goes
/// away does the same, at every `await`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// The handler is dropped where it stands, as if its client had gone, and the answer is 503 with
    /// `Retry-After`. What it has spawned goes on. If it ended before it could be told, its answer is
    /// replaced too: so an answer of the handler says that it had the lock from beginning to end.
    #[default]
    Cancel,
    /// The handler finishes, and its answer goes out with the field `Lock-Lost: taken`, `lapsed` or
    /// `too-long` (a token of RFC 9651). For handlers that must not stop half-way, and check the fence
    /// where they write. Clients that don't know the field don't see that two changes may have met.
    Finish,
    /// The handler finishes, and its answer is replaced by the 503 of `Cancel`. Nobody takes it for a
    /// change made alone; but it may have been made, and a client that sends it again makes it twice.
    Replace,
}

/// How long a request keeps its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HoldUntil {
    /// Until the handler has answered: the change is made then, and how fast the client reads the
    /// answer is nobody else's delay.
    #[default]
    Answered,
    /// Until the body of the answer has ended, or was dropped: for handlers that go on changing or
    /// reading the resource while they stream. A slow client holds the lock for as long as it takes it to
    /// read, at most [`max_hold`](super::LockRequest::max_hold).
    /// What streams is within the request as the handler was: if it asks for the lock, it has it already.
    ///
    /// The end of a body is shown to the client when the lock is given back, where the server asks for
    /// the end: in chunked bodies, and in those that know which chunk is their last. An answer without
    /// a body gives it back before its head.
    ///
    /// Of nested layers, and of a guard that a middleware [scopes](crate::lock::LockGuard::scope), it is whoever took the
    /// lock that keeps it or gives it back.
    ///
    /// If the lock is lost meanwhile, [`OnLoss::Cancel`] breaks the body off, so that the client sees
    /// that it is not whole; also if that shows only when the lock is given back: its end is not shown then.
    /// The other two let it go on, since its head is out and can say nothing any more.
    ///
    /// What the connection becomes by a 101, a websocket say, is the body of that answer in actix-web, which keeps the
    /// lock until it has ended. In axum (and hyper) it is no body: the lock is given back before the 101.
    BodyEnd,
}

/// The part of a layer's policy that begins when the handler does.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReleaseSettings {
    on_loss: OnLoss,
    hold_until: HoldUntil,
    body_deadline: Duration,
    release_in_background: bool,
}

impl<N: ?Sized> LockGate<N> {
    /// See `LockLayer::on_loss`.
    #[must_use]
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.release_settings.on_loss = on_loss;
        self
    }

    /// See `LockLayer::hold_until`.
    #[must_use]
    pub fn hold_until(mut self, hold_until: HoldUntil) -> Self {
        self.release_settings.hold_until = hold_until;
        self
    }

    /// See `LockLayer::body_read_timeout`.
    #[must_use]
    pub fn body_read_timeout(mut self, deadline: Duration) -> Self {
        self.release_settings.body_deadline = deadline;
        self
    }

    /// See `LockLayer::release_in_background`.
    #[must_use]
    pub fn release_in_background(mut self) -> Self {
        self.release_settings.release_in_background = true;
        self
    }
}

impl Default for ReleaseSettings {
    fn default() -> Self {
        Self {
            on_loss: OnLoss::default(),
            hold_until: HoldUntil::default(),
            body_deadline: Duration::from_secs(5),
            release_in_background: false,
        }
    }
}

/// The field that says it, with [`OnLoss::Finish`].
const LOCK_LOST_HEADER: &str = "lock-lost";

impl ReleaseSettings {
    /// What a layer further in has told.
    pub(super) fn note_reported_loss(
        self,
        ticket: &mut LockTicket,
        fields: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        if self.on_loss == OnLoss::Finish
            && fields().iter().any(|(name, _)| name == LOCK_LOST_HEADER)
        {
            ticket.mark_loss_reported();
        }
    }

    /// Resolves when the handler has to stop.
    pub(super) fn wait_for_loss(
        self,
        ticket: &LockTicket,
    ) -> impl Future<Output = ()> + Send + 'static {
        let held = match &ticket.0 {
            _ if self.on_loss != OnLoss::Cancel => None,
            LockTicketKind::Acquired { guards: guard, .. } => Some(guard.held_locks()),
            // Of a run its worker drops all that it has; not what went to a task of its own. No answer of ours is wanted.
            LockTicketKind::Reentrant { held_locks: held, .. }
            | LockTicketKind::Scoped { held_locks: held, .. }
            | LockTicketKind::JobRun(held, _) => Some(held.clone()),
            LockTicketKind::Unmatched(_) => None,
        };
        async move {
            match held {
                Some(held) => {
                    held.lost().await;
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Only for the layer's own lock, and one that no layer has: of a run the body is there, and of a lock that a layer
    /// lends that layer counts.
    pub(super) fn body_deadline_for(self, ticket: &LockTicket) -> Option<Duration> {
        let counts =
            matches!(ticket.0, LockTicketKind::Acquired { .. } | LockTicketKind::Scoped { .. });
        (counts && self.body_deadline < Duration::MAX).then_some(self.body_deadline)
    }

    /// The handler has answered, or was stopped.
    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice, and that of a request must stay below 1 KiB"
    )]
    pub(super) fn settle<P>(
        self,
        ticket: LockTicket,
        outcome: ServiceOutcome,
    ) -> impl Future<Output = LeaveAction<LockTicket, P>> + Send + use<P> {
        async move {
            if self.holds_through_body(&ticket, outcome) {
                return LeaveAction::KeepTicket(ticket);
            }
            if let LockTicketKind::Unmatched(told) = &ticket.0 {
                log_if_served_unlocked(outcome, told);
            }
            let LockTicket(ticket, .., told) = ticket;
            let Some((held, tells, giving)) = self.begin_release(ticket) else {
                return LeaveAction::AddHeaders(Vec::new());
            };
            let loss = giving.finish(&held).await;
            match loss {
                _ if outcome == ServiceOutcome::RequestBodyTimeout => {
                    tracing::info!(lock = %held.display_hashed(), "request stopped: its body dribbles");
                    LeaveAction::Replace(body_timeout_reply())
                }
                Some(loss) => self.respond_to_loss(&held, loss, tells && !told, outcome),
                None => LeaveAction::AddHeaders(Vec::new()),
            }
        }
    }

    /// What the request had, whether this layer is the one to tell of its loss, and what is waited for when it is given
    /// back. Nothing of a run, which its worker gives back.
    fn begin_release(self, ticket: LockTicketKind) -> Option<(HeldLocks, bool, PendingReleases)> {
        let (held, tells, guards) = match ticket {
            LockTicketKind::Acquired {
                guards: guard,
                average_hold_time: times,
                acquired_at: since,
            } => {
                times.record(since.elapsed());
                (guard.held_locks(), true, guard)
            }
            // Each is the last one only if the layer further out has gone.
            LockTicketKind::Reentrant { held_locks: held, guards: shares } => {
                (held, false, LockSet::from_guards(shares))
            }
            // No layer further out tells of a loss.
            LockTicketKind::Scoped { held_locks: held, guards: shares } => {
                (held, true, LockSet::from_guards(shares))
            }
            LockTicketKind::JobRun(..) | LockTicketKind::Unmatched(_) => return None,
        };
        let loss = held.loss();
        let giving = if self.release_in_background {
            PendingReleases::Done(loss)
        } else {
            PendingReleases::start(guards, loss)
        };
        Some((held, tells, giving))
    }

    /// A lock that is lost needs no keeping, and its answer can still be given.
    fn holds_through_body(self, ticket: &LockTicket, outcome: ServiceOutcome) -> bool {
        match &ticket.0 {
            LockTicketKind::Acquired { guards: guard, .. } => {
                self.hold_until == HoldUntil::BodyEnd
                    && matches!(outcome, ServiceOutcome::Streaming(_))
                    && guard.loss().is_none()
            }
            LockTicketKind::Reentrant { .. }
            | LockTicketKind::Scoped { .. }
            | LockTicketKind::JobRun(..)
            | LockTicketKind::Unmatched(_) => false,
        }
    }

    fn respond_to_loss<T, P>(
        self,
        held: &HeldLocks,
        loss: LockLoss,
        tells: bool,
        outcome: ServiceOutcome,
    ) -> LeaveAction<T, P> {
        let policy = self.on_loss;
        tracing::warn!(lock = %held.display_hashed(), ?loss, ?policy, ?outcome, "lost under a request");
        match self.on_loss {
            // Its head is out. That of `Cancel` is not to be taken for whole.
            OnLoss::Replace if outcome == ServiceOutcome::BodyEnded => {
                LeaveAction::AddHeaders(Vec::new())
            }
            OnLoss::Cancel | OnLoss::Replace => {
                LeaveAction::Replace(lock_lost_reply(loss, outcome == ServiceOutcome::Stopped))
            }
            // Of nested layers one says so, once: a field of one value (RFC 9651 section 4.2) can't be sent twice.
            OnLoss::Finish if tells => {
                LeaveAction::AddHeaders(vec![(LOCK_LOST_HEADER.into(), loss_token(loss).into())])
            }
            OnLoss::Finish => LeaveAction::AddHeaders(Vec::new()),
        }
    }
}

/// What no route matched is a 404, unless a fallback or a service that is nested has it, of whose routes nothing is known
/// further out. What that has done is done: the answer stays what it is. Told once of a layer: clients choose how
/// often it happens.
fn log_if_served_unlocked(outcome: ServiceOutcome, told: &AtomicBool) {
    if let Some(status) = outcome.status().filter(|status| *status < 400)
        && !told.swap(true, Ordering::Relaxed)
    {
        tracing::error!(
            layer = "LockLayer",
            status,
            "a request passed without its lock: no route was seen that it matches, and yet something has served it; put \
             the layer around the routes themselves"
        );
    }
}

fn loss_token(loss: LockLoss) -> &'static str {
    match loss {
        LockLoss::Taken => "taken",
        LockLoss::Lapsed => "lapsed",
        LockLoss::HeldTooLong => "too-long",
    }
}

fn body_timeout_reply() -> Reply {
    let title = "The request's body did not arrive in time";
    Reply::problem(408, problem::BODY_TOO_SLOW, title)
}

/// Says what is known of the change: whoever sends it again has to know.
fn lock_lost_reply(loss: LockLoss, stopped: bool) -> Reply {
    let detail = if stopped {
        "It was stopped where it was; a part of it may have been done."
    } else {
        "It may have been carried out, and perhaps not alone."
    };
    Reply::problem(503, problem::LOCK_LOST, "The request lost its hold on the resource")
        .with_member("detail", detail)
        .with_member("loss", loss_token(loss))
        .retry_after(Duration::from_secs(1))
}
