//! The seam: a [`Gate`] decides about a request before it runs, and settles after it.
//!
//! What happens to a request: a driver (one for tower, one for actix-web) shows the gate a [`View`] of
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
mod attend;
mod begun;
mod detached;
#[cfg(test)]
pub(crate) mod fake;
mod fault;
mod field;
mod kept;
mod methods;
mod named;
mod print;
mod reading;
mod refusals;
mod replay;
mod room;
mod scope;
mod slot;
mod source;
mod view;

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::reply::{HeaderSet, SharedReply, Reply};

pub(crate) use self::{
    address::Networks,
    begun::{Begin, Begun, RunLimits, STOPPED},
    field::{field_name, goes_on},
    methods::Methods,
    refusals::{GateId, RememberedRun},
    replay::{Inside, REPLAY_FIELD, current_replay, is_replay},
    slot::{Record, Remember, Trying, UnderLock},
    source::each_once,
};
pub use self::{
    address::{Absent, ClientAddress},
    attend::{Attended, attend, poll_attended},
    detached::{Detached, Sink},
    fault::{KeyFault, log_not_installed, log_shared_request, no_extension},
    kept::{Kept, Next, Stopped},
    print::Print,
    reading::{Patience, Reading, TooSlow},
    replay::{Deferred, Replay},
    room::Room,
    scope::Scope,
    slot::{Parked, Slot},
    source::KeySource,
    view::{BadParam, Head, Route, SentTwice, View},
};

/// What a gate says before anything is awaited.
#[derive(Debug)]
pub enum Asked<F, T> {
    /// This request is none of the gate's business: call the inner service and nothing else.
    Skip,
    /// Answer with this; don't call the inner service.
    Answer(Reply),
    /// As `Answer`, and others are answered with the same.
    Again(Arc<SharedReply>),
    /// Enter with these facts.
    Enter(F),
    /// Call the inner service with this at once. Nothing is entered, shown, watched, timed or known within
    /// the call; and if [nothing is to be settled](Gate::is_settled) when it has ended, or [fields](Gate::part) are
    /// all there is, the gate is not left.
    Pass(T),
}

/// What a gate decides.
#[derive(Debug)]
pub enum Verdict<T> {
    /// Call the inner service, then leave with the ticket.
    Pass(T),
    /// Answer with this; don't call the inner service.
    Answer(Reply),
    /// As `Answer`, but first park the unread request, if an outer gate made a place for it.
    Busy(Reply, Option<Slot>),
}

/// How the inner service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It answered with this status, and no body is to come.
    Answered(u16),
    /// It answered with this status, and the body is still to come.
    Streams(u16),
    /// It returned its error.
    Failed,
    /// It was dropped, because [`Gate::watch`] resolved.
    Stopped,
    /// Its client did not send the body in time: it was dropped, or its answer is void.
    TooSlow,
    /// The body of its answer has ended, after [`Parting::Keep`].
    Ended,
    /// It has broken off by an error of its own.
    BrokeOff,
}

impl Outcome {
    /// The status, if there is an answer.
    #[must_use]
    pub fn status(self) -> Option<u16> {
        match self {
            Self::Answered(status) | Self::Streams(status) => Some(status),
            Self::Failed | Self::Stopped | Self::TooSlow | Self::Ended | Self::BrokeOff => None,
        }
    }
}

/// What a gate wants when it leaves.
#[derive(Debug)]
pub enum Parting<T, P> {
    /// Add these fields to the response.
    Fields(HeaderSet),
    /// Answer with this instead. An error of the inner service goes out as it is all the same, where it is none that will be
    /// an answer (tower's `Service::Error`; in actix it is one, and is replaced). What was stopped has no other answer. Of a
    /// body that has [ended](Outcome::Ended) the end is kept back, so that it breaks off.
    Replace(Reply),
    /// Keep the ticket with the body of an answer that [streams](Outcome::Streams): see [`Kept`].
    Keep(T),
    /// Show the parked request to [`Gate::pick_up`], read its body as that says, and call
    /// [`Gate::accept`]. If no request was parked, the response stays as it is.
    Accept {
        /// What to hand to `accept`.
        parked: P,
        /// For the body, until `accept` has ended.
        room: Room,
        /// Where the request is.
        slot: Slot,
    },
}

impl<T, P> Parting<T, P> {
    /// The answer to a call that was stopped, which has no other.
    #[must_use]
    pub fn into_reply(self) -> Reply {
        match self {
            Self::Replace(reply) => reply,
            // A gate that stops calls says what they are answered with.
            Self::Fields(_) | Self::Keep(_) | Self::Accept { .. } => Reply::new(503),
        }
    }
}

/// What a gate wants of a request that was parked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickUp {
    /// Its body, if it can be read whole within the room there is.
    Whole,
    /// Its head: the body stays unread.
    Head,
    /// Nothing: the response stays as it is.
    Nothing,
}

/// One policy about requests whose native form is `N`.
///
/// Outcomes are answers, not errors: a gate has no error type, because every fault of its own has an
/// answer too.
pub trait Gate<N: ?Sized>: Clone + Send + Sync + 'static {
    /// What was read of the request.
    type Facts: Send + 'static;
    /// What must be given back.
    type Ticket: Send + 'static;
    /// What a request has instead that [passes](Asked::Pass) as soon as the gate is asked: little, since it is
    /// moved with the future of every request. [`Infallible`](std::convert::Infallible) if there are none.
    type Quick: Send + 'static;
    /// What stands between a parked request and its acceptance.
    type Parked: Send + 'static;

    /// True if an inner gate may park requests for this one: the driver then makes a place for the
    /// unread body.
    const PARKS: bool = false;

    /// Checks the settings, and panics if they contradict each other. A driver calls it where a gate is put around a service.
    fn check(&self) {}

    /// Reads what it needs of the request. Must not block.
    fn ask<V: View<Native = N>>(&self, view: &mut V) -> Asked<Self::Facts, Self::Quick>;

    /// Decides. Cancel safe: what a dropped future may have taken is given back.
    fn enter(&self, facts: Self::Facts) -> impl Future<Output = Verdict<Self::Ticket>> + Send;

    /// Shows the handler what it may see of the ticket.
    fn show<V: View<Native = N>>(&self, ticket: &Self::Ticket, view: &mut V);

    /// What code within the inner call may find out without the request: the driver makes the whole call,
    /// from its first step, within [`Scope::run`], or within [`Scope::step`] what is a step of its own. [`Kept`] does so
    /// with the body that it keeps a ticket for.
    fn within(&self, ticket: &Self::Ticket) -> Scope {
        let _ = ticket;
        Scope::default()
    }

    /// Resolves when the inner call must not go on: the driver then drops it, and leaves with
    /// [`Outcome::Stopped`]. Never, for most gates.
    fn watch(&self, ticket: &Self::Ticket) -> impl Future<Output = ()> + Send + 'static {
        let _ = ticket;
        std::future::pending()
    }

    /// How long the handler may wait for the body of its request, in all: see [`Reading`]. If it has
    /// waited longer, the driver drops the inner call, and leaves with [`Outcome::TooSlow`].
    fn body_deadline(&self, ticket: &Self::Ticket) -> Option<Duration> {
        let _ = ticket;
        None
    }

    /// What is shown the body of the request, chunk by chunk, as the handler reads it; `head` says its method, and
    /// its path and query. Nothing, for most requests.
    fn reads_along(
        &self,
        ticket: &Self::Ticket,
        head: impl FnOnce() -> (String, String),
    ) -> Option<Print> {
        let _ = (ticket, head);
        None
    }

    /// True if there is nothing to settle, however the call has ended: the driver need not `leave`, nor touch
    /// the answer.
    fn is_settled(&self, quick: &Self::Quick) -> bool {
        let _ = quick;
        false
    }

    /// What such a request has instead of a ticket, if the call of this one needs no more than its call: the driver
    /// shows the ticket first, and then goes on as with a request that [passes](Asked::Pass).
    ///
    /// # Errors
    ///
    /// The ticket itself: the call is to be watched, timed, or known within. So it is with most gates.
    fn quick(&self, ticket: Self::Ticket) -> Result<Self::Quick, Self::Ticket> {
        Err(ticket)
    }

    /// Tells what is added to the answer of a request that has passed at once, whatever it is, if nothing else is to
    /// be settled: names and values of fields, the values in ASCII. None of them need be a copy: most requests have
    /// one of these, and much of it is the same for all.
    ///
    /// # Errors
    ///
    /// What it was given: the gate has to be left. So it is with most gates.
    fn part(
        &self,
        quick: Self::Quick,
        add: impl FnMut(&'static str, Bytes),
    ) -> Result<(), Self::Quick> {
        let _ = add;
        Err(quick)
    }

    /// The ticket of a request that has passed at once, for which there is something to settle.
    fn ticket(&self, quick: Self::Quick) -> Self::Ticket;

    /// Asks for the inner call to run in a task of its own, which goes on when its client has left: see [`Detached`]. Only
    /// a driver that has such a task at hand asks. Not so for most gates.
    fn detach(&self, quick: &mut Self::Quick) -> Option<Detached> {
        let _ = quick;
        None
    }

    /// Shows it what a [detached](Self::detach) request is answered with, chunk by chunk.
    fn hear_body(&self, ticket: &mut Self::Ticket, chunk: &[u8]) {
        let _ = (ticket, chunk);
    }

    /// Shows it the header fields of the answer, before it leaves with that; `content-length` is among them where the length
    /// of the body is known, whoever is to write that field.
    fn hear(&self, ticket: &mut Self::Ticket, fields: impl FnOnce() -> Vec<(String, Vec<u8>)>) {
        let _ = (ticket, fields);
    }

    /// Settles. Cancel safe, as `enter`.
    fn leave(
        &self,
        ticket: Self::Ticket,
        outcome: Outcome,
    ) -> impl Future<Output = Parting<Self::Ticket, Self::Parked>> + Send;

    /// Reads what it needs of a parked request, and reserves room for its head. Must not block.
    fn pick_up<V: View<Native = N>>(
        &self,
        parked: &mut Self::Parked,
        head: &Head,
        view: &mut V,
        room: &mut Room,
    ) -> PickUp {
        let _ = (parked, head, view, room);
        PickUp::Whole
    }

    /// Takes a parked request over; `None` leaves the response as it is. Without a body where it was not
    /// to be read, or could not be.
    fn accept(
        &self,
        parked: Self::Parked,
        head: Head,
        body: Option<Bytes>,
    ) -> impl Future<Output = Option<Reply>> + Send;
}
