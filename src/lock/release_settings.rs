//! End of a request's lock: when it is released, and the response after a loss.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{
    held_lock::HeldLocks,
    lock_set::LockSet,
    lock_ticket::{LockTicket, LockTicketKind},
    pending_releases::PendingReleases,
};
use crate::{
    gate::{LeaveAction, ServiceOutcome},
    reply::{Reply, problem},
    store::LockLoss,
};

/// Reaction to the loss of a request's lock while its handler runs.
///
/// A lock is lost when the store has granted it to another holder or has lost it, when it could not
/// be renewed in time, and at the end of `max_hold`. From then on another request may change the
/// resource too. In each mode, the loss is logged, and the handler can observe it
/// ([`HeldLock::lost`](crate::HeldLock::lost)). Only the fence keeps a late write out.
///
/// The default is `Cancel`. The worst effect of a lost lock is that two handlers change the
/// resource at once, and only `Cancel` shortens that: to the time until the handler's next `await`.
/// A handler may be cut off between two of its steps, but that is nothing new: a client that
/// disconnects does the same, at every `await`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// Drops the handler, as if its client had disconnected, and responds with 503 and
    /// `Retry-After`.
    ///
    /// Tasks that the handler has spawned continue. If the handler ended before the loss was
    /// noticed, its response is replaced too. Therefore a response of the handler means that it
    /// held the lock from beginning to end.
    #[default]
    Cancel,
    /// The handler finishes, and its response has the header `Lock-Lost: taken`, `lapsed` or
    /// `too-long` (a token of RFC 9651). For handlers that must not stop half-way and check the
    /// fence where they write. Clients that do not know the header do not notice that two changes
    /// may have overlapped.
    Finish,
    /// The handler finishes, and its response is replaced by the 503 of `Cancel`. Clients do not
    /// mistake it for an exclusive change; but the change may have been made, and a client that
    /// repeats it makes it twice.
    Replace,
}

/// Duration for which a request keeps its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HoldUntil {
    /// Until the handler has responded. The change is made then, and a client that reads the
    /// response slowly does not delay other requests.
    #[default]
    Answered,
    /// Until the response body has ended or was dropped: for handlers that change or read the
    /// resource while they stream.
    ///
    /// A slow client holds the lock while it reads, for at most
    /// [`max_hold`](super::LockRequest::max_hold). The stream runs within the request, like the
    /// handler: acquiring the lock again is reentrant.
    ///
    /// The client gets the end of the body after the lock is released, if the server polls for the
    /// end: in chunked bodies, and in those that know which chunk is their last. A response without
    /// a body releases the lock before its head.
    ///
    /// Of nested layers, and of a guard that a middleware [scopes](crate::lock::LockGuard::scope),
    /// the one that acquired the lock keeps or releases it.
    ///
    /// If the lock is lost while the body streams, [`OnLoss::Cancel`] aborts the body, so that the
    /// client notices that it is incomplete. If only the release finds the loss, the end of the
    /// body is withheld. The other two modes let the body continue, because its head is already
    /// sent.
    ///
    /// After a 101, for example to a websocket, the upgraded connection is the response body in
    /// actix-web, and the lock is held until it ends. In axum (and hyper) it is not a body: the
    /// lock is released before the 101.
    BodyEnd,
}

/// Settings that apply from the start of the handler.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReleaseSettings {
    pub(super) on_loss: OnLoss,
    pub(super) hold_until: HoldUntil,
    pub(super) body_deadline: Duration,
    pub(super) release_in_background: bool,
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

/// Header of a response after a loss, with [`OnLoss::Finish`].
const LOCK_LOST_HEADER: &str = "lock-lost";

impl ReleaseSettings {
    /// Notes that the response of an inner layer reports a loss already.
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

    /// Resolves when the handler has to be stopped.
    pub(super) fn wait_for_loss(
        self,
        ticket: &LockTicket,
    ) -> impl Future<Output = ()> + Send + 'static {
        let held = match &ticket.kind {
            _ if self.on_loss != OnLoss::Cancel => None,
            LockTicketKind::Acquired { guards: guard, .. } => Some(guard.held_locks()),
            // The worker of a run drops the whole run, except a part that moved to a task of its
            // own. No response is needed.
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

    /// Returns the timeout of the request body. It applies to a lock that this layer acquired, and
    /// to one scoped by code that is not a layer. A run's body is complete, and for a lock of an
    /// outer layer that layer's timeout applies.
    pub(super) fn body_deadline_for(self, ticket: &LockTicket) -> Option<Duration> {
        let counts =
            matches!(ticket.kind, LockTicketKind::Acquired { .. } | LockTicketKind::Scoped { .. });
        (counts && self.body_deadline < Duration::MAX).then_some(self.body_deadline)
    }

    /// Ends the use of the lock after the handler has responded or was stopped.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice; a request's future must stay below 1 KiB"
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
            if let LockTicketKind::Unmatched(told) = &ticket.kind {
                log_if_served_unlocked(outcome, told);
            }
            let LockTicket { kind, is_loss_reported, .. } = ticket;
            let Some((held, tells, giving)) = self.begin_release(kind) else {
                return LeaveAction::AddHeaders(Vec::new());
            };
            let loss = giving.finish(&held).await;
            match loss {
                _ if outcome == ServiceOutcome::RequestBodyTimeout => {
                    tracing::info!(
                        lock = %held.display_hashed(),
                        "request stopped: its body arrived too slowly"
                    );
                    LeaveAction::Replace(body_timeout_reply())
                }
                Some(loss) => {
                    self.respond_to_loss(&held, loss, tells && !is_loss_reported, outcome)
                }
                None => LeaveAction::AddHeaders(Vec::new()),
            }
        }
    }

    /// Starts the release of a request's locks. Returns the locks, whether this layer reports their
    /// loss, and the releases to wait for. `None` for a run, because its worker releases the lock.
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
            // A guard is the last one only if the outer layer has ended.
            LockTicketKind::Reentrant { held_locks: held, guards: shares } => {
                (held, false, LockSet::from_guards(shares))
            }
            // No outer layer reports a loss.
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

    /// Returns true if the lock is kept until the response body ends. A lost lock is not kept, and
    /// its response can still be replaced.
    fn holds_through_body(self, ticket: &LockTicket, outcome: ServiceOutcome) -> bool {
        match &ticket.kind {
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
        tracing::warn!(
            lock = %held.display_hashed(), ?loss, ?policy, ?outcome,
            "lock lost while its request was running"
        );
        match self.on_loss {
            // The head is sent. A body under `Cancel` must not be taken for complete.
            OnLoss::Replace if outcome == ServiceOutcome::BodyEnded => {
                LeaveAction::AddHeaders(Vec::new())
            }
            OnLoss::Cancel | OnLoss::Replace => {
                LeaveAction::Replace(lock_lost_reply(loss, outcome == ServiceOutcome::Stopped))
            }
            // One of several nested layers adds the header: a header with one value (RFC 9651
            // section 4.2) must not be sent twice.
            OnLoss::Finish if tells => {
                LeaveAction::AddHeaders(vec![(LOCK_LOST_HEADER.into(), loss_token(loss).into())])
            }
            OnLoss::Finish => LeaveAction::AddHeaders(Vec::new()),
        }
    }
}

/// Logs an error if a request without a matching route was served.
///
/// Such a request is usually a 404, unless a fallback handles it, or a nested service with routes
/// that the layer does not know. Its work is done, so the response stays unchanged. Logged once for
/// each layer, because clients choose how often it happens.
fn log_if_served_unlocked(outcome: ServiceOutcome, told: &AtomicBool) {
    if let Some(status) = outcome.status().filter(|status| *status < 400)
        && !told.swap(true, Ordering::Relaxed)
    {
        tracing::error!(
            layer = "LockLayer",
            status,
            "a request passed without its lock: it matched no route, but a service answered it; \
             put the layer around the routes themselves"
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

/// Tells the client that the change may have been made, so that it can decide on a retry.
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
