//! Settling: leaving the gate, and applying its leave action to the response.

use std::{future::Future, marker::PhantomData, sync::Arc};

use futures_util::future::{self, Either, Ready};
use http::{Method, Response, header::CONTENT_LENGTH, request::Parts};
use http_body::Body;
use tokio::runtime::Handle;

use super::{
    boxed_request::{BoxedRequest, read_within_budget},
    framework::{Framework, PartsView, header_pairs, request_head},
    gate_body::{GateBody, append_header, append_headers, has_no_sent_body, response_from_reply},
};
use crate::{
    gate::{
        BodyBudget, BodyTicket, BodyTimerHandle, CallCompletion, DetachedRun, Gate, LeaveAction,
        ParkedVerdict, ParkingSlot, ServiceOutcome,
    },
    reply::Reply,
};

/// Gate that a request has passed with a light ticket, until the response.
pub(super) struct PassedGate<G: Gate<Parts>, F> {
    gate: Arc<G>,
    light_ticket: G::LightTicket,
    /// The request's method is HEAD.
    is_head: bool,
    framework: PhantomData<F>,
}

impl<G: Gate<Parts>, F> PassedGate<G, F> {
    pub(super) fn new(gate: Arc<G>, quick: G::LightTicket, method: &Method) -> Self {
        Self { gate, light_ticket: quick, is_head: *method == Method::HEAD, framework: PhantomData }
    }

    pub(super) fn service_outcome<R: Body, E>(
        &self,
        ended: &Result<Response<R>, E>,
    ) -> ServiceOutcome {
        service_outcome(self.is_head, ended)
    }

    /// Returns a detached run, if the gate asks for one and there is a runtime to spawn it on.
    pub(super) fn try_detach(&mut self) -> Option<DetachedRun> {
        Handle::try_current().ok()?;
        self.gate.detach(&mut self.light_ticket)
    }

    /// Returns the gate, its ticket, and true if the request's method is HEAD.
    pub(super) fn into_full_ticket(self) -> (Arc<G>, G::Ticket, bool) {
        let ticket = self.gate.full_ticket(self.light_ticket);
        (self.gate, ticket, self.is_head)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.gate.is_settled(&self.light_ticket)
    }

    /// Adds the gate's headers to the response, and returns `None` if that settles everything.
    pub(super) fn settle_with_headers<R, E>(
        self,
        ended: &mut Result<Response<R>, E>,
    ) -> Option<Self> {
        let Self { gate, light_ticket: quick, is_head: head, framework } = self;
        let parted = gate.settle_with_headers(quick, |name, value| {
            if let Ok(answer) = ended {
                append_header(answer, name, value);
            }
        });
        parted.err().map(|quick| Self { gate, light_ticket: quick, is_head: head, framework })
    }
}

/// Classifies an inner call that completed by itself.
pub(super) fn service_outcome<R: Body, E>(
    head: bool,
    ended: &Result<Response<R>, E>,
) -> ServiceOutcome {
    match ended {
        Ok(response) if has_no_sent_body(head, response) => {
            ServiceOutcome::Answered(response.status().as_u16())
        }
        Ok(response) => ServiceOutcome::Streaming(response.status().as_u16()),
        Err(_) => ServiceOutcome::Failed,
    }
}

/// Returns the headers of a response, with the length of its body if it is known: an outer layer
/// writes `content-length` if it is not set yet.
pub(super) fn response_headers<R: Body>(answer: &Response<R>) -> Vec<(String, Vec<u8>)> {
    let mut told = header_pairs(answer.headers());
    let known = answer.headers().contains_key(CONTENT_LENGTH);
    if let Some(length) = answer.body().size_hint().exact().filter(|_| !known) {
        told.push((CONTENT_LENGTH.as_str().to_owned(), length.to_string().into_bytes()));
    }
    told
}

/// Leaves the gate of a request with a light ticket.
pub(super) fn settle_passed<G: Gate<Parts>, F: Framework, R: Body + Send, E: Send>(
    passed: PassedGate<G, F>,
    ended: Result<Response<R>, E>,
    outcome: ServiceOutcome,
) -> impl Future<Output = Result<Response<GateBody<R>>, E>> + Send {
    let PassedGate { gate, light_ticket: quick, .. } = passed;
    let mut ticket = gate.full_ticket(quick);
    if let Ok(answer) = &ended {
        gate.observe_headers(&mut ticket, || response_headers(answer));
    }
    leave_gate::<G, F, R, E>(gate, ticket, CallCompletion::Completed(ended), outcome, None)
}

/// Leaves the gate and applies its leave action to the response.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn stores its arguments twice in its future, which must stay below 1 KiB"
)]
pub(super) fn leave_gate<G: Gate<Parts>, F: Framework, R: Body + Send, E: Send>(
    gate: Arc<G>,
    ticket: G::Ticket,
    ended: CallCompletion<Result<Response<R>, E>>,
    outcome: ServiceOutcome,
    reading: Option<BodyTimerHandle>,
) -> impl Future<Output = Result<Response<GateBody<R>>, E>> + Send {
    async move {
        // No early return for an error: the gate is left in every case.
        let parting = gate.leave(ticket, outcome).await;
        match ended {
            CallCompletion::Completed(Ok(answer)) => {
                let made = apply_leave_action::<G, F, R>(gate, answer, parting, reading);
                Ok(made.await)
            }
            CallCompletion::Completed(Err(error))
                if outcome != ServiceOutcome::RequestBodyTimeout =>
            {
                Err(error)
            }
            CallCompletion::Completed(Err(_)) | CallCompletion::Stopped => {
                Ok(response_from_reply(parting.into_reply()))
            }
        }
    }
}

/// Applies a leave action to the response: at once, or by asking the gate for a parked request.
pub(super) fn apply_leave_action<G: Gate<Parts>, F: Framework, R: Body + Send>(
    gate: Arc<G>,
    mut answer: Response<R>,
    parting: LeaveAction<G::Ticket, G::AcceptTicket>,
    reading: Option<BodyTimerHandle>,
) -> Either<Ready<Response<GateBody<R>>>, impl Future<Output = Response<GateBody<R>>> + Send> {
    Either::Left(future::ready(match parting {
        LeaveAction::AddHeaders(fields) => {
            append_headers(&mut answer, fields);
            answer.map(GateBody::from_inner)
        }
        LeaveAction::Replace(reply) => response_from_reply(reply),
        LeaveAction::KeepTicket(ticket) => {
            let kept = BodyTicket::new(G::clone(&gate), ticket, reading);
            answer.map(|body| GateBody::with_ticket(body, kept))
        }
        // Boxed: most responses have another action, and their futures stay small.
        LeaveAction::Accept { accept_ticket: parked, body_budget: room, slot } => {
            let accepted = accept_or_keep_response::<G, F, R>(gate, answer, parked, room, slot);
            return Either::Right(Box::pin(accepted));
        }
    }))
}

/// Returns the gate's reply to a parked request, or the response if the gate does not accept it.
async fn accept_or_keep_response<G: Gate<Parts>, F: Framework, R: Body>(
    gate: Arc<G>,
    answer: Response<R>,
    parked: G::AcceptTicket,
    room: BodyBudget,
    slot: ParkingSlot,
) -> Response<GateBody<R>> {
    let instead = match slot.take_request() {
        Some(request) => accept_request::<G, F>(&gate, parked, request, room).await,
        None => None,
    };
    instead.map_or_else(|| answer.map(GateBody::from_inner), response_from_reply)
}

async fn accept_request<G: Gate<Parts>, F: Framework>(
    gate: &G,
    mut parked: G::AcceptTicket,
    request: BoxedRequest,
    mut room: BodyBudget,
) -> Option<Reply> {
    let (mut parts, body) = request.into_parts();
    let head = request_head::<F>(&parts);
    let mut view = PartsView::<F>::new(&mut parts);
    let body = match gate.inspect_parked(&mut parked, &head, &mut view, &mut room) {
        ParkedVerdict::ReadBody => read_within_budget(body, &mut room).await,
        ParkedVerdict::HeadOnly => None,
        ParkedVerdict::Decline => return None,
    };
    gate.accept_parked(parked, head, body).await
}
