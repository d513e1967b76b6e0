//! `Gate`, and the verdicts and outcomes that pass between a gate and its driver.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    body_budget::BodyBudget,
    detached_run::DetachedRun,
    gate_request::{GateRequest, HttpRequestHead},
    parking_slot_for_busy_lock::ParkingSlot,
    request_fingerprint::RequestFingerprint,
    request_scope::RequestScope,
};
use crate::reply::{HeaderSet, Reply, SharedReply};

/// Decision of a gate before anything is awaited.
#[derive(Debug)]
pub enum InitialVerdict<F, T> {
    /// The gate does not apply to this request: call the inner service and nothing else.
    Skip,
    /// Respond with this reply; don't call the inner service.
    Answer(Reply),
    /// Like `Answer`, with a reply that other requests share.
    SharedAnswer(Arc<SharedReply>),
    /// Enter the gate with this context.
    Enter(F),
    /// Call the inner service at once. The gate is not entered, and the request is not annotated,
    /// cancelled, timed, or run within a scope. If [nothing is left to settle](Gate::is_settled)
    /// after the call, or [headers](Gate::settle_with_headers) suffice, the gate is not left
    /// either.
    PassLight(T),
}

/// Decision of a gate after it was entered.
#[derive(Debug)]
pub enum Verdict<T> {
    /// Call the inner service, then leave with the ticket.
    Pass(T),
    /// Respond with this reply; don't call the inner service.
    Answer(Reply),
    /// Like `Answer`, but first park the unread request in the slot, if an outer gate made one.
    Busy(Reply, Option<ParkingSlot>),
}

/// End of the inner service's call, or of its response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceOutcome {
    /// The service responded with this status, and no body follows.
    Answered(u16),
    /// The service responded with this status, and the body follows.
    Streaming(u16),
    /// The service returned an error.
    Failed,
    /// The call was dropped because [`Gate::cancellation`] resolved.
    Stopped,
    /// The client did not send the body in time: the call was dropped, or its response is void.
    RequestBodyTimeout,
    /// The response body has ended, after [`LeaveAction::KeepTicket`].
    BodyEnded,
    /// The response body failed with an error of its own.
    BodyFailed,
}

impl ServiceOutcome {
    /// Returns the status, if there is a response.
    #[must_use]
    pub fn status(self) -> Option<u16> {
        match self {
            Self::Answered(status) | Self::Streaming(status) => Some(status),
            Self::Failed
            | Self::Stopped
            | Self::RequestBodyTimeout
            | Self::BodyEnded
            | Self::BodyFailed => None,
        }
    }
}

/// Instruction to the driver after the gate was left.
#[derive(Debug)]
pub enum LeaveAction<T, P> {
    /// Add these headers to the response.
    AddHeaders(HeaderSet),
    /// Respond with this reply instead.
    ///
    /// - An error of the inner service is returned unchanged if it is not a response: tower's
    ///   `Service::Error`. In actix-web it is one, and is replaced.
    /// - A call that was stopped has no other response.
    /// - The end of a body that has [ended](ServiceOutcome::BodyEnded) is withheld, so that the
    ///   body breaks off.
    Replace(Reply),
    /// Keep the ticket with the body of a [streaming](ServiceOutcome::Streaming) response: see
    /// [`BodyTicket`](super::BodyTicket).
    KeepTicket(T),
    /// Show the parked request to [`Gate::inspect_parked`], read its body as that decides, and call
    /// [`Gate::accept_parked`]. If no request was parked, leave the response as it is.
    Accept {
        /// Argument of `accept_parked`.
        accept_ticket: P,
        /// Memory for the body, until `accept_parked` has ended.
        body_budget: BodyBudget,
        /// Slot with the parked request.
        slot: ParkingSlot,
    },
}

impl<T, P> LeaveAction<T, P> {
    /// Returns the reply to a call that was stopped, which has no response of its own.
    #[must_use]
    pub fn into_reply(self) -> Reply {
        match self {
            Self::Replace(reply) => reply,
            // A gate that stops calls returns `Replace` for them.
            Self::AddHeaders(_) | Self::KeepTicket(_) | Self::Accept { .. } => Reply::new(503),
        }
    }
}

/// Decision about a parked request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkedVerdict {
    /// Read the body, if it fits into the body budget.
    ReadBody,
    /// Accept the head and leave the body unread.
    HeadOnly,
    /// Leave the response as it is.
    Decline,
}

/// Policy about requests of the native type `N`.
///
/// Outcomes are responses, not errors: a gate has no error type, because each of its own faults has
/// a response too.
pub trait Gate<N: ?Sized>: Clone + Send + Sync + 'static {
    /// Data that the gate read of the request in order to decide.
    type EntryContext: Send + 'static;
    /// Owner of everything that the request has taken; dropping it gives that back.
    type Ticket: Send + 'static;
    /// Ticket of a request that [passes at once](InitialVerdict::PassLight). It is moved with the
    /// future of every request, so it should be small. [`Infallible`](std::convert::Infallible) if
    /// the gate has none.
    type LightTicket: Send + 'static;
    /// Data between the leaving of a gate and the acceptance of its parked request.
    type AcceptTicket: Send + 'static;

    /// True if an inner gate may park requests for this one; the driver then keeps the unread body.
    const ACCEPTS_PARKED: bool = false;

    /// Panics if the settings contradict each other. A driver calls it when it puts the gate around
    /// a service.
    fn validate_settings(&self) {}

    /// Reads the data that the gate needs of the request. Must not block.
    fn inspect<V: GateRequest<NativeRequest = N>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<Self::EntryContext, Self::LightTicket>;

    /// Decides. Cancel safe: whatever a dropped future may have taken is given back.
    fn enter(
        &self,
        context: Self::EntryContext,
    ) -> impl Future<Output = Verdict<Self::Ticket>> + Send;

    /// Makes the ticket's data visible to the handler, such as in request extensions.
    fn annotate_request<V: GateRequest<NativeRequest = N>>(
        &self,
        ticket: &Self::Ticket,
        view: &mut V,
    );

    /// Returns the values that code within the inner call can find without the request. The driver
    /// makes the whole call, from its first step, within [`RequestScope::run`], and single steps of
    /// its own within [`RequestScope::run_sync`]. [`BodyTicket`](super::BodyTicket) does so for its
    /// body.
    fn request_scope(&self, ticket: &Self::Ticket) -> RequestScope {
        let _ = ticket;
        RequestScope::default()
    }

    /// Resolves when the inner call must end: the driver then drops it, and leaves with
    /// [`ServiceOutcome::Stopped`]. Default: never.
    fn cancellation(&self, ticket: &Self::Ticket) -> impl Future<Output = ()> + Send + 'static {
        let _ = ticket;
        std::future::pending()
    }

    /// Returns the total time that the handler may wait for the request body: see
    /// [`BodyTimeoutWatch`](super::BodyTimeoutWatch). Beyond it, the driver drops the inner call,
    /// and leaves with [`ServiceOutcome::RequestBodyTimeout`].
    fn body_read_timeout(&self, ticket: &Self::Ticket) -> Option<Duration> {
        let _ = ticket;
        None
    }

    /// Returns the fingerprint to update with the request body, chunk by chunk, as the handler
    /// reads it. `head` returns the method, and path and query. Default `None`.
    fn body_fingerprint(
        &self,
        ticket: &Self::Ticket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<RequestFingerprint> {
        let _ = (ticket, head);
        None
    }

    /// Returns true if nothing is left to settle, however the call ended: the driver then neither
    /// leaves the gate nor changes the response.
    fn is_settled(&self, light_ticket: &Self::LightTicket) -> bool {
        let _ = light_ticket;
        false
    }

    /// Exchanges the ticket for a light one, if this request needs nothing but its call. The driver
    /// annotates the request first, and then proceeds as for one that [passes at
    /// once](InitialVerdict::PassLight).
    ///
    /// # Errors
    ///
    /// The ticket, if the call has to be cancelled, timed, or run within a scope. The default.
    fn try_light_ticket(&self, ticket: Self::Ticket) -> Result<Self::LightTicket, Self::Ticket> {
        Err(ticket)
    }

    /// Settles a light ticket by adding headers to the response, whatever it is, if nothing else is
    /// left to settle. `add` gets names and values, which are ASCII. Values can be shared rather
    /// than copied: most requests have a light ticket, and many of their values are equal.
    ///
    /// # Errors
    ///
    /// The light ticket, if the gate has to be left. The default.
    fn settle_with_headers(
        &self,
        light_ticket: Self::LightTicket,
        add: impl FnMut(&'static str, Bytes),
    ) -> Result<(), Self::LightTicket> {
        let _ = add;
        Err(light_ticket)
    }

    /// Converts the light ticket of a request that still has something to settle.
    fn full_ticket(&self, light_ticket: Self::LightTicket) -> Self::Ticket;

    /// Asks for the inner call to run in a task of its own that outlives its client: see
    /// [`DetachedRun`]. Called only by drivers that can spawn such a task. Default `None`.
    fn detach(&self, light_ticket: &mut Self::LightTicket) -> Option<DetachedRun> {
        let _ = light_ticket;
        None
    }

    /// Shows the gate the response body of a [detached](Self::detach) request, chunk by chunk.
    fn observe_body_chunk(&self, ticket: &mut Self::Ticket, chunk: &[u8]) {
        let _ = (ticket, chunk);
    }

    /// Shows the gate the response headers before it is left. They include `content-length` if the
    /// length of the body is known, even if an outer layer has yet to write that header.
    fn observe_headers(
        &self,
        ticket: &mut Self::Ticket,
        headers: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        let _ = (ticket, headers);
    }

    /// Settles. Cancel safe, as `enter`.
    fn leave(
        &self,
        ticket: Self::Ticket,
        outcome: ServiceOutcome,
    ) -> impl Future<Output = LeaveAction<Self::Ticket, Self::AcceptTicket>> + Send;

    /// Reads the data that the gate needs of a parked request, and reserves memory for its head.
    /// Must not block.
    fn inspect_parked<V: GateRequest<NativeRequest = N>>(
        &self,
        accept_ticket: &mut Self::AcceptTicket,
        head: &HttpRequestHead,
        view: &mut V,
        body_budget: &mut BodyBudget,
    ) -> ParkedVerdict {
        let _ = (accept_ticket, head, view, body_budget);
        ParkedVerdict::ReadBody
    }

    /// Accepts a parked request; `None` leaves the response as it is. `body` is `None` if the body
    /// was not to be read, or could not be.
    fn accept_parked(
        &self,
        accept_ticket: Self::AcceptTicket,
        head: HttpRequestHead,
        body: Option<Bytes>,
    ) -> impl Future<Output = Option<Reply>> + Send;
}
