//! Release of a request's locks after its handler, and the response to a loss of them: cancellation
//! of the handler, replaced responses, and the header `Lock-Lost`.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::lock_ticket::{AdmittedRequestLocks, LockTicket};
use crate::{
    gate::{LeaveAction, ServiceOutcome},
    lock::{
        held_lock_view::HeldLocks,
        lock_set::LockSet,
        pending_releases::PendingReleases,
        release_settings::{HoldUntil, OnLoss, ReleaseSettings},
    },
    reply::{Reply, problem},
    store::LockLoss,
};

/// Header of a response after a loss, with [`OnLoss::Finish`].
const LOCK_LOST_HEADER: &str = "lock-lost";

/// Release of a request's locks that was started.
struct RequestRelease {
    held_locks: HeldLocks,
    /// True if this layer reports a loss of the locks to the client.
    reports_loss: bool,
    releases: PendingReleases,
}

impl ReleaseSettings {
    /// Notes that the response of an inner layer reports a loss already.
    pub(super) fn note_reported_loss(
        self,
        ticket: &mut LockTicket,
        response_headers: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        if self.on_loss == OnLoss::Finish
            && response_headers().iter().any(|(name, _)| name == LOCK_LOST_HEADER)
        {
            ticket.mark_loss_reported();
        }
    }

    /// Resolves when the handler has to be stopped.
    pub(super) fn wait_for_loss(
        self,
        ticket: &LockTicket,
    ) -> impl Future<Output = ()> + Send + 'static {
        let held_locks = match &ticket.locks {
            _ if self.on_loss != OnLoss::Cancel => None,
            AdmittedRequestLocks::Acquired { guards, .. } => Some(guards.held_locks()),
            // The worker of a run drops the whole run, except a part that moved to a task of its
            // own. No response is needed.
            AdmittedRequestLocks::Reentrant { held_locks, .. }
            | AdmittedRequestLocks::Scoped { held_locks, .. }
            | AdmittedRequestLocks::JobRun { held_locks, .. } => Some(held_locks.clone()),
            AdmittedRequestLocks::Unmatched(_) => None,
        };
        async move {
            match held_locks {
                Some(held_locks) => {
                    held_locks.lost().await;
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the timeout of the request body. It applies to a lock that this layer acquired, and
    /// to one scoped by code that is not a layer. A run's body is complete, and for a lock of an
    /// outer layer that layer's timeout applies.
    pub(super) fn body_read_timeout_for(self, ticket: &LockTicket) -> Option<Duration> {
        let applies = matches!(
            ticket.locks,
            AdmittedRequestLocks::Acquired { .. } | AdmittedRequestLocks::Scoped { .. }
        );
        (applies && self.body_read_timeout < Duration::MAX).then_some(self.body_read_timeout)
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
            if let AdmittedRequestLocks::Unmatched(is_logged) = &ticket.locks {
                log_if_served_unlocked(outcome, is_logged);
            }
            let LockTicket { locks, is_loss_reported, .. } = ticket;
            let Some(RequestRelease { held_locks, reports_loss, releases }) =
                self.begin_release(locks)
            else {
                return LeaveAction::AddHeaders(Vec::new());
            };
            let loss = releases.finish(&held_locks).await;
            match loss {
                _ if outcome == ServiceOutcome::RequestBodyTimeout => {
                    tracing::info!(
                        lock = %held_locks.display_names(),
                        "request stopped: its body arrived too slowly"
                    );
                    LeaveAction::Replace(body_timeout_reply())
                }
                Some(loss) => self.respond_to_loss(
                    &held_locks,
                    loss,
                    reports_loss && !is_loss_reported,
                    outcome,
                ),
                None => LeaveAction::AddHeaders(Vec::new()),
            }
        }
    }

    /// Starts the release of a request's locks. `None` for a run, because its worker releases the
    /// lock.
    fn begin_release(self, locks: AdmittedRequestLocks) -> Option<RequestRelease> {
        let (held_locks, reports_loss, guards) = match locks {
            AdmittedRequestLocks::Acquired { guards, average_hold_time, acquired_at } => {
                average_hold_time.record(acquired_at.elapsed());
                (guards.held_locks(), true, guards)
            }
            // A guard is the last one only if the outer layer has ended.
            AdmittedRequestLocks::Reentrant { held_locks, guards } => {
                (held_locks, false, LockSet::from_guards(guards))
            }
            // No outer layer reports a loss.
            AdmittedRequestLocks::Scoped { held_locks, guards } => {
                (held_locks, true, LockSet::from_guards(guards))
            }
            AdmittedRequestLocks::JobRun { .. } | AdmittedRequestLocks::Unmatched(_) => {
                return None;
            }
        };
        let loss = held_locks.loss();
        let releases = if self.release_in_background {
            PendingReleases::Done(loss)
        } else {
            PendingReleases::start(guards, loss)
        };
        Some(RequestRelease { held_locks, reports_loss, releases })
    }

    /// Returns true if the lock is kept until the response body ends. A lost lock is not kept, and
    /// its response can still be replaced.
    fn holds_through_body(self, ticket: &LockTicket, outcome: ServiceOutcome) -> bool {
        match &ticket.locks {
            AdmittedRequestLocks::Acquired { guards, .. } => {
                self.hold_until == HoldUntil::BodyEnd
                    && matches!(outcome, ServiceOutcome::Streaming(_))
                    && guards.loss().is_none()
            }
            AdmittedRequestLocks::Reentrant { .. }
            | AdmittedRequestLocks::Scoped { .. }
            | AdmittedRequestLocks::JobRun { .. }
            | AdmittedRequestLocks::Unmatched(_) => false,
        }
    }

    fn respond_to_loss<T, P>(
        self,
        held_locks: &HeldLocks,
        loss: LockLoss,
        reports_loss: bool,
        outcome: ServiceOutcome,
    ) -> LeaveAction<T, P> {
        let policy = self.on_loss;
        tracing::warn!(
            lock = %held_locks.display_names(), ?loss, ?policy, ?outcome,
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
            OnLoss::Finish if reports_loss => {
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
fn log_if_served_unlocked(outcome: ServiceOutcome, is_logged: &AtomicBool) {
    if let Some(status) = outcome.status().filter(|status| *status < 400)
        && !is_logged.swap(true, Ordering::Relaxed)
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
fn lock_lost_reply(loss: LockLoss, was_stopped: bool) -> Reply {
    let detail = if was_stopped {
        "It was stopped where it was; a part of it may have been done."
    } else {
        "It may have been carried out, and perhaps not alone."
    };
    Reply::problem(503, problem::LOCK_LOST, "The request lost its hold on the resource")
        .with_member("detail", detail)
        .with_member("loss", loss_token(loss))
        .retry_after(Duration::from_secs(1))
}
