//! The seam: a [`Gate`] decides about a request before it runs, and settles after it.
//!
//! What happens to a request: a driver (one for tower, one for actix-web) shows the gate a [`GateRequest`] of
//! it; the gate *asks* what it needs, without waiting; *enters*, which may wait for the store; and,
//! if the request may pass, *leaves* when the inner service has answered, or was dropped because the
//! gate's *watch* ended it. What must be given back
//! lies in the ticket between the two: if the driver's future is dropped, so is the ticket, and its
//! `Drop` starts the giving back without waiting, blocking or needing a runtime.
//!
//! A driver holds no policy. It extracts, enters, calls, leaves and translates; so six middlewares
//! are three gates and two drivers.
//!
//! This module is public for those who write a driver. Applications need nothing of it. Its enums are exhaustive: a
//! driver that did not know what a gate wants of it could only guess, so a new variant is a new version that breaks it.

mod address;
mod body_budget;
mod body_ticket;
mod body_timer;
mod call_completion;
mod detached_run;
#[cfg(test)]
pub(crate) mod fake;
mod gate_request;
mod header_name;
mod idempotent_run;
mod key_error;
mod key_source;
mod method_filter;
mod named_source;
mod parking_slot;
mod refusal_tracker;
mod replay_marker;
mod request_fingerprint;
mod request_scope;

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::reply::{HeaderSet, Reply, SharedReply};

pub(crate) use self::{
    address::NetworkSet,
    header_name::{parse_header_name, remove_from_connection},
    idempotent_run::{BeginOutcome, IdempotentRun, RunLimits, STOPPED_REASON},
    key_source::dedup_keys,
    method_filter::MethodFilter,
    parking_slot::{AttemptMode, DirectRunTerms, IdempotencyLookup, UnderLockMark},
    refusal_tracker::{GateId, RefusalTracker},
    replay_marker::{REPLAY_HEADER, RunScopeGuard, current_replay, is_replay},
};
pub use self::{
    address::{ClientAddress, MissingAddress},
    body_budget::BodyBudget,
    body_ticket::{BodyTicket, NextBodyItem, StoppedBody},
    body_timer::{BodyTimeoutError, BodyTimer, BodyTimerHandle},
    call_completion::{CallCompletion, poll_until_cancelled, run_until_cancelled},
    detached_run::{BodySink, DetachedRun},
    gate_request::{DuplicateHeader, GateRequest, HttpRequestHead, PathParamError, RouteMatch},
    key_error::{KeyError, log_missing_layer, log_shared_request, missing_extension_message},
    key_source::KeySource,
    parking_slot::{ParkingContext, ParkingSlot},
    replay_marker::{ReplayMarker, RunningJob},
    request_fingerprint::RequestFingerprint,
    request_scope::RequestScope,
};

/// What a gate says before anything is awaited.
#[derive(Debug)]
pub enum InitialVerdict<F, T> {
    /// This request is none of the gate's business: call the inner service and nothing else.
    Skip,
    /// Answer with this; don't call the inner service.
    Answer(Reply),
    /// As `Answer`, and others are answered with the same.
    SharedAnswer(Arc<SharedReply>),
    /// Enter with these facts.
    Enter(F),
    /// Call the inner service with this at once. Nothing is entered, shown, watched, timed or known within
    /// the call; and if [nothing is to be settled](Gate::is_settled) when it has ended, or [fields](Gate::settle_with_headers) are
    /// all there is, the gate is not left.
    PassLight(T),
}

/// What a gate decides.
#[derive(Debug)]
pub enum Verdict<T> {
    /// Call the inner service, then leave with the ticket.
    Pass(T),
    /// Answer with this; don't call the inner service.
    Answer(Reply),
    /// As `Answer`, but first park the unread request, if an outer gate made a place for it.
    Busy(Reply, Option<ParkingSlot>),
}

/// How the inner service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceOutcome {
    /// It answered with this status, and no body is to come.
    Answered(u16),
    /// It answered with this status, and the body is still to come.
    Streaming(u16),
    /// It returned its error.
    Failed,
    /// It was dropped, because [`Gate::cancellation`] resolved.
    Stopped,
    /// Its client did not send the body in time: it was dropped, or its answer is void.
    RequestBodyTimeout,
    /// The body of its answer has ended, after [`LeaveAction::KeepTicket`].
    BodyEnded,
    /// It has broken off by an error of its own.
    BodyFailed,
}

impl ServiceOutcome {
    /// The status, if there is an answer.
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

/// What a gate wants when it leaves.
#[derive(Debug)]
pub enum LeaveAction<T, P> {
    /// Add these fields to the response.
    AddHeaders(HeaderSet),
    /// Answer with this instead. An error of the inner service goes out as it is all the same, where it is none that will be
    /// an answer (tower's `Service::Error`; in actix it is one, and is replaced). What was stopped has no other answer. Of a
    /// body that has [ended](ServiceOutcome::Ended) the end is kept back, so that it breaks off.
    Replace(Reply),
    /// Keep the ticket with the body of an answer that [streams](ServiceOutcome::Streaming): see [`BodyTicket`].
    KeepTicket(T),
    /// Show the parked request to [`Gate::inspect_parked`], read its body as that says, and call
    /// [`Gate::accept_parked`]. If no request was parked, the response stays as it is.
    Accept {
        /// What to hand to `accept_parked`.
        accept_ticket: P,
        /// For the body, until `accept_parked` has ended.
        body_budget: BodyBudget,
        /// Where the request is.
        slot: ParkingSlot,
    },
}

impl<T, P> LeaveAction<T, P> {
    /// The answer to a call that was stopped, which has no other.
    #[must_use]
    pub fn into_reply(self) -> Reply {
        match self {
            Self::Replace(reply) => reply,
            // A gate that stops calls says what they are answered with.
            Self::AddHeaders(_) | Self::KeepTicket(_) | Self::Accept { .. } => Reply::new(503),
        }
    }
}

/// What a gate wants of a request that was parked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkedVerdict {
    /// Its body, if it can be read whole within the room there is.
    ReadBody,
    /// Its head: the body stays unread.
    HeadOnly,
    /// Nothing: the response stays as it is.
    Decline,
}

/// One policy about requests whose native form is `N`.
///
/// Outcomes are answers, not errors: a gate has no error type, because every fault of its own has an
/// answer too.
pub trait Gate<N: ?Sized>: Clone + Send + Sync + 'static {
    /// What was read of the request.
    type EntryContext: Send + 'static;
    /// What must be given back.
    type Ticket: Send + 'static;
    /// What a request has instead that [passes](InitialVerdict::Pass) as soon as the gate is asked: little, since it is
    /// moved with the future of every request. [`Infallible`](std::convert::Infallible) if there are none.
    type LightTicket: Send + 'static;
    /// What stands between a parked request and its acceptance.
    type AcceptTicket: Send + 'static;

    /// True if an inner gate may park requests for this one: the driver then makes a place for the
    /// unread body.
    const ACCEPTS_PARKED: bool = false;

    /// Checks the settings, and panics if they contradict each other. A driver calls it where a gate is put around a service.
    fn validate_settings(&self) {}

    /// Reads what it needs of the request. Must not block.
    fn inspect<V: GateRequest<NativeRequest = N>>(
        &self,
        view: &mut V,
    ) -> InitialVerdict<Self::EntryContext, Self::LightTicket>;

    /// Decides. Cancel safe: what a dropped future may have taken is given back.
    fn enter(
        &self,
        facts: Self::EntryContext,
    ) -> impl Future<Output = Verdict<Self::Ticket>> + Send;

    /// Shows the handler what it may see of the ticket.
    fn annotate_request<V: GateRequest<NativeRequest = N>>(
        &self,
        ticket: &Self::Ticket,
        view: &mut V,
    );

    /// What code within the inner call may find out without the request: the driver makes the whole call,
    /// from its first step, within [`RequestScope::run`], or within [`RequestScope::run_sync`] what is a step of its own. [`BodyTicket`] does so
    /// with the body that it keeps a ticket for.
    fn request_scope(&self, ticket: &Self::Ticket) -> RequestScope {
        let _ = ticket;
        RequestScope::default()
    }

    /// Resolves when the inner call must not go on: the driver then drops it, and leaves with
    /// [`ServiceOutcome::Stopped`]. Never, for most gates.
    fn cancellation(&self, ticket: &Self::Ticket) -> impl Future<Output = ()> + Send + 'static {
        let _ = ticket;
        std::future::pending()
    }

    /// How long the handler may wait for the body of its request, in all: see [`BodyTimerHandle`]. If it has
    /// waited longer, the driver drops the inner call, and leaves with [`ServiceOutcome::BodyTimeoutError`].
    fn body_read_timeout(&self, ticket: &Self::Ticket) -> Option<Duration> {
        let _ = ticket;
        None
    }

    /// What is shown the body of the request, chunk by chunk, as the handler reads it; `head` says its method, and
    /// its path and query. Nothing, for most requests.
    fn body_fingerprint(
        &self,
        ticket: &Self::Ticket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<RequestFingerprint> {
        let _ = (ticket, head);
        None
    }

    /// True if there is nothing to settle, however the call has ended: the driver need not `leave`, nor touch
    /// the answer.
    fn is_settled(&self, quick: &Self::LightTicket) -> bool {
        let _ = quick;
        false
    }

    /// What such a request has instead of a ticket, if the call of this one needs no more than its call: the driver
    /// shows the ticket first, and then goes on as with a request that [passes](InitialVerdict::Pass).
    ///
    /// # Errors
    ///
    /// The ticket itself: the call is to be watched, timed, or known within. So it is with most gates.
    fn try_light_ticket(&self, ticket: Self::Ticket) -> Result<Self::LightTicket, Self::Ticket> {
        Err(ticket)
    }

    /// Tells what is added to the answer of a request that has passed at once, whatever it is, if nothing else is to
    /// be settled: names and values of fields, the values in ASCII. None of them need be a copy: most requests have
    /// one of these, and much of it is the same for all.
    ///
    /// # Errors
    ///
    /// What it was given: the gate has to be left. So it is with most gates.
    fn settle_with_headers(
        &self,
        quick: Self::LightTicket,
        add: impl FnMut(&'static str, Bytes),
    ) -> Result<(), Self::LightTicket> {
        let _ = add;
        Err(quick)
    }

    /// The ticket of a request that has passed at once, for which there is something to settle.
    fn full_ticket(&self, quick: Self::LightTicket) -> Self::Ticket;

    /// Asks for the inner call to run in a task of its own, which goes on when its client has left: see [`DetachedRun`]. Only
    /// a driver that has such a task at hand asks. Not so for most gates.
    fn detach(&self, quick: &mut Self::LightTicket) -> Option<DetachedRun> {
        let _ = quick;
        None
    }

    /// Shows it what a [detached](Self::detach) request is answered with, chunk by chunk.
    fn observe_body_chunk(&self, ticket: &mut Self::Ticket, chunk: &[u8]) {
        let _ = (ticket, chunk);
    }

    /// Shows it the header fields of the answer, before it leaves with that; `content-length` is among them where the length
    /// of the body is known, whoever is to write that field.
    fn observe_headers(
        &self,
        ticket: &mut Self::Ticket,
        fields: impl FnOnce() -> Vec<(String, Vec<u8>)>,
    ) {
        let _ = (ticket, fields);
    }

    /// Settles. Cancel safe, as `enter`.
    fn leave(
        &self,
        ticket: Self::Ticket,
        outcome: ServiceOutcome,
    ) -> impl Future<Output = LeaveAction<Self::Ticket, Self::AcceptTicket>> + Send;

    /// Reads what it needs of a parked request, and reserves room for its head. Must not block.
    fn inspect_parked<V: GateRequest<NativeRequest = N>>(
        &self,
        parked: &mut Self::AcceptTicket,
        head: &HttpRequestHead,
        view: &mut V,
        room: &mut BodyBudget,
    ) -> ParkedVerdict {
        let _ = (parked, head, view, room);
        ParkedVerdict::ReadBody
    }

    /// Takes a parked request over; `None` leaves the response as it is. Without a body where it was not
    /// to be read, or could not be.
    fn accept_parked(
        &self,
        parked: Self::AcceptTicket,
        head: HttpRequestHead,
        body: Option<Bytes>,
    ) -> impl Future<Output = Option<Reply>> + Send;
}
