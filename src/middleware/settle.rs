//! Settling: leaving the gate, and applying its leave action to the response.

use std::{future::Future, marker::PhantomData, sync::Arc};

use futures_util::future::{self, Either, Ready};
use http::{Method, Response, header::CONTENT_LENGTH, request::Parts};
use http_body::Body;
use tokio::runtime::Handle;

use super::{
    framework::Framework,
    gate_body::{GateBody, has_no_sent_body},
    parked_request::{ParkedRequest, read_within_budget},
    parts_view::{PartsView, header_pairs, request_head},
    reply_response::{append_header, append_headers, response_from_reply},
};
use crate::{
    gate::{
        BodyBudget, BodyTicket, BodyTimeoutWatch, CallCompletion, DetachedRun, Gate, LeaveAction,
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
    pub(super) fn new(gate: Arc<G>, light_ticket: G::LightTicket, method: &Method) -> Self {
        Self { gate, light_ticket, is_head: *method == Method::HEAD, framework: PhantomData }
    }

    pub(super) fn service_outcome<R: Body, E>(
        &self,
        call_result: &Result<Response<R>, E>,
    ) -> ServiceOutcome {
        service_outcome(self.is_head, call_result)
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
        call_result: &mut Result<Response<R>, E>,
    ) -> Option<Self> {
        let Self { gate, light_ticket, is_head, framework } = self;
        let unsettled = gate.settle_with_headers(light_ticket, |name, value| {
            if let Ok(response) = call_result {
                append_header(response, name, value);
            }
        });
        unsettled.err().map(|light_ticket| Self { gate, light_ticket, is_head, framework })
    }
}

/// Classifies an inner call that completed by itself.
pub(super) fn service_outcome<R: Body, E>(
    is_head: bool,
    call_result: &Result<Response<R>, E>,
) -> ServiceOutcome {
    match call_result {
        Ok(response) if has_no_sent_body(is_head, response) => {
            ServiceOutcome::Answered(response.status().as_u16())
        }
        Ok(response) => ServiceOutcome::Streaming(response.status().as_u16()),
        Err(_) => ServiceOutcome::Failed,
    }
}

/// Returns the headers of a response, with the length of its body if it is known: an outer layer
/// writes `content-length` if it is not set yet.
pub(super) fn response_headers<R: Body>(response: &Response<R>) -> Vec<(String, Vec<u8>)> {
    let mut headers = header_pairs(response.headers());
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    if let Some(length) = response.body().size_hint().exact().filter(|_| !has_length) {
        headers.push((CONTENT_LENGTH.as_str().to_owned(), length.to_string().into_bytes()));
    }
    headers
}

/// Leaves the gate of a request with a light ticket.
pub(super) fn settle_passed<G: Gate<Parts>, F: Framework, R: Body + Send, E: Send>(
    passed: PassedGate<G, F>,
    call_result: Result<Response<R>, E>,
    outcome: ServiceOutcome,
) -> impl Future<Output = Result<Response<GateBody<R>>, E>> + Send {
    let PassedGate { gate, light_ticket, .. } = passed;
    let mut ticket = gate.full_ticket(light_ticket);
    if let Ok(response) = &call_result {
        gate.observe_headers(&mut ticket, || response_headers(response));
    }
    leave_gate::<G, F, R, E>(gate, ticket, CallCompletion::Completed(call_result), outcome, None)
}

/// Leaves the gate and applies its leave action to the response.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn stores its arguments twice in its future, which must stay below 1 KiB"
)]
pub(super) fn leave_gate<G: Gate<Parts>, F: Framework, R: Body + Send, E: Send>(
    gate: Arc<G>,
    ticket: G::Ticket,
    call_result: CallCompletion<Result<Response<R>, E>>,
    outcome: ServiceOutcome,
    timeout_watch: Option<BodyTimeoutWatch>,
) -> impl Future<Output = Result<Response<GateBody<R>>, E>> + Send {
    async move {
        // No early return for an error: the gate is left in every case.
        let leave_action = gate.leave(ticket, outcome).await;
        match call_result {
            CallCompletion::Completed(Ok(response)) => {
                let applied =
                    apply_leave_action::<G, F, R>(gate, response, leave_action, timeout_watch);
                Ok(applied.await)
            }
            CallCompletion::Completed(Err(error))
                if outcome != ServiceOutcome::RequestBodyTimeout =>
            {
                Err(error)
            }
            CallCompletion::Completed(Err(_)) | CallCompletion::Stopped => {
                Ok(response_from_reply(leave_action.into_reply()))
            }
        }
    }
}

/// Applies a leave action to the response: at once, or by asking the gate for a parked request.
pub(super) fn apply_leave_action<G: Gate<Parts>, F: Framework, R: Body + Send>(
    gate: Arc<G>,
    mut response: Response<R>,
    leave_action: LeaveAction<G::Ticket, G::AcceptTicket>,
    timeout_watch: Option<BodyTimeoutWatch>,
) -> Either<Ready<Response<GateBody<R>>>, impl Future<Output = Response<GateBody<R>>> + Send> {
    Either::Left(future::ready(match leave_action {
        LeaveAction::AddHeaders(headers) => {
            append_headers(&mut response, headers);
            response.map(GateBody::from_inner)
        }
        LeaveAction::Replace(reply) => response_from_reply(reply),
        LeaveAction::KeepTicket(ticket) => {
            let body_ticket = BodyTicket::new(G::clone(&gate), ticket, timeout_watch);
            response.map(|body| GateBody::with_ticket(body, body_ticket))
        }
        // Boxed: most responses have another action, and their futures stay small.
        LeaveAction::Accept { accept_ticket, body_budget, slot } => {
            let accepted = accept_or_keep_response::<G, F, R>(
                gate,
                response,
                accept_ticket,
                body_budget,
                slot,
            );
            return Either::Right(Box::pin(accepted));
        }
    }))
}

/// Returns the gate's reply to a parked request, or the response if the gate does not accept it.
async fn accept_or_keep_response<G: Gate<Parts>, F: Framework, R: Body>(
    gate: Arc<G>,
    response: Response<R>,
    accept_ticket: G::AcceptTicket,
    body_budget: BodyBudget,
    slot: ParkingSlot,
) -> Response<GateBody<R>> {
    let accepted_reply = match slot.take_request() {
        Some(request) => accept_request::<G, F>(&gate, accept_ticket, request, body_budget).await,
        None => None,
    };
    accepted_reply.map_or_else(|| response.map(GateBody::from_inner), response_from_reply)
}

async fn accept_request<G: Gate<Parts>, F: Framework>(
    gate: &G,
    mut accept_ticket: G::AcceptTicket,
    request: ParkedRequest,
    mut body_budget: BodyBudget,
) -> Option<Reply> {
    let (mut parts, body) = request.into_parts();
    let head = request_head::<F>(&parts);
    let mut view = PartsView::<F>::new(&mut parts);
    let body = match gate.inspect_parked(&mut accept_ticket, &head, &mut view, &mut body_budget) {
        ParkedVerdict::ReadBody => read_within_budget(body, &mut body_budget).await,
        ParkedVerdict::HeadOnly => None,
        ParkedVerdict::Decline => return None,
    };
    gate.accept_parked(accept_ticket, head, body).await
}
