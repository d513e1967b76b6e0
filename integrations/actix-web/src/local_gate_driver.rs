//! `LocalGateDriver`: runs one request through a gate, by the steps of the tower driver on actix's
//! types. It enters the gate, calls the inner service, leaves the gate and applies the leave
//! action.

use std::{pin::pin, rc::Rc};

use actix_web::{
    Error, HttpMessage as _, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{Payload, Service, ServiceRequest, ServiceResponse},
};
use lockgate::{
    Reply,
    driver::{
        BodyBudget, BodyTicket, BodyTimeoutWatch, CallCompletion, Gate, HttpRequestHead,
        LeaveAction, ParkedVerdict, ServiceOutcome, Verdict, run_until_cancelled,
    },
};

use crate::{
    early_response::{GatedResponse, respond_early},
    measured_payload::measure_payload,
    missing_extractor_config::record_extractor_configs,
    parked_payload::{ParkedPayload, read_parked_payload},
    reply_to_response::{ReplyError, response_from_reply},
    request_view::{RequestView, apply_header_changes, request_head},
    response_and_error_headers::{append_header, append_headers, error_headers, response_headers},
    ticketed_body::ticketed_body,
    unsent_body::{drop_unsent_body, has_no_sent_body, is_upgraded},
};

/// Driver of one request, on actix's local types.
pub(crate) struct LocalGateDriver<S, G> {
    pub(crate) inner: Rc<S>,
    pub(crate) gate: G,
}

impl<S, G: Gate<HttpRequest>> LocalGateDriver<S, G> {
    /// Enters the gate, and calls the inner service if the gate lets the request pass.
    pub(crate) async fn enter<B>(
        self,
        context: G::EntryContext,
        mut request: ServiceRequest,
    ) -> Result<GatedResponse<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        match self.gate.enter(context).await {
            Verdict::Pass(ticket) => {
                let mut view = RequestView::new(request.request());
                self.gate.annotate_request(&ticket, &mut view);
                if let Err(error) = apply_header_changes(view.into_header_changes(), &mut request) {
                    return respond_early(request, response_from_reply(error.reply())).await;
                }
                match self.gate.try_light_ticket(ticket) {
                    Ok(light_ticket) => self.call_with_light_ticket(light_ticket, request).await,
                    Err(ticket) => Box::pin(self.call_with_ticket(ticket, request)).await,
                }
            }
            Verdict::Answer(reply) => respond_early(request, response_from_reply(reply)).await,
            Verdict::Busy(reply, _) => {
                ParkedPayload::park_payload(&mut request);
                respond_early(request, response_from_reply(reply)).await
            }
        }
    }

    /// Calls the inner service under a light ticket, which only adds headers to the response.
    pub(crate) async fn call_with_light_ticket<B>(
        self,
        light_ticket: G::LightTicket,
        request: ServiceRequest,
    ) -> Result<GatedResponse<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        let mut result = self.inner.call(request).await;
        let settled =
            self.gate.settle_with_headers(light_ticket, |name, value| match &mut result {
                Ok(response) => append_header(response.headers_mut(), name, value),
                Err(error) => error.add_response_mapper(move |mut response| {
                    append_header(response.headers_mut(), name, value.clone());
                    response
                }),
            });
        match settled {
            Ok(()) => result.map(ServiceResponse::map_into_left_body),
            Err(light_ticket) => {
                let ticket = self.gate.full_ticket(light_ticket);
                Box::pin(self.leave_gate(
                    ticket,
                    CallCompletion::Completed(result),
                    ParkedPayload::default(),
                    None,
                ))
                .await
            }
        }
    }

    /// Calls the inner service under a full ticket: with a timed body and within the request scope,
    /// until the gate cancels the call.
    pub(crate) async fn call_with_ticket<B>(
        self,
        ticket: G::Ticket,
        mut request: ServiceRequest,
    ) -> Result<GatedResponse<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        let parked_payload = ParkedPayload::default();
        if G::ACCEPTS_PARKED {
            request.extensions_mut().insert(parked_payload.clone());
        }
        // No clone of the request may live during the call, since routing must be its only owner.
        let fingerprint = self.gate.body_fingerprint(&ticket, || {
            let HttpRequestHead { method, target, .. } = request_head(request.request());
            (method, target)
        });
        let timeout_watch =
            measure_payload(&mut request, self.gate.body_read_timeout(&ticket), fingerprint);
        // Called, not only polled, within the scope, since an inner layer inspects the request in
        // `call`.
        let call = self.gate.request_scope(&ticket).run(async { self.inner.call(request).await });
        let completion = run_until_cancelled(
            pin!(call),
            pin!(self.gate.cancellation(&ticket)),
            timeout_watch.as_ref(),
        )
        .await;
        self.leave_gate(ticket, completion, parked_payload, timeout_watch).await
    }

    /// Leaves the gate and applies its leave action.
    async fn leave_gate<B: MessageBody + 'static>(
        self,
        mut ticket: G::Ticket,
        completion: CallCompletion<Result<ServiceResponse<B>, Error>>,
        parked_payload: ParkedPayload,
        timeout_watch: Option<BodyTimeoutWatch>,
    ) -> Result<GatedResponse<B>, Error> {
        let mut completion = match completion {
            CallCompletion::Completed(result) => {
                CallCompletion::Completed(result.map(drop_unsent_body))
            }
            CallCompletion::Stopped => CallCompletion::Stopped,
        };
        // No early return for an error: the gate is left in every case.
        let outcome = completion.outcome(timeout_watch.as_ref(), service_outcome);
        match &mut completion {
            CallCompletion::Completed(Ok(response)) => {
                self.gate.observe_headers(&mut ticket, || response_headers(response));
            }
            CallCompletion::Completed(Err(error)) => {
                self.gate.observe_headers(&mut ticket, || error_headers(error));
            }
            CallCompletion::Stopped => {}
        }
        let leave_action = self.gate.leave(ticket, outcome).await;
        match completion {
            CallCompletion::Completed(Ok(response)) => Ok(self
                .apply_leave_action(response, leave_action, &parked_payload, timeout_watch)
                .await),
            CallCompletion::Completed(Err(error))
                if outcome != ServiceOutcome::RequestBodyTimeout =>
            {
                Err(amend_error(error, leave_action))
            }
            CallCompletion::Completed(Err(_)) | CallCompletion::Stopped => {
                Err(ReplyError::from_reply(leave_action.into_reply()))
            }
        }
    }

    /// Applies a leave action to the response of the inner service.
    pub(crate) async fn apply_leave_action<B: MessageBody + 'static>(
        self,
        mut response: GatedResponse<B>,
        leave_action: LeaveAction<G::Ticket, G::AcceptTicket>,
        parked_payload: &ParkedPayload,
        timeout_watch: Option<BodyTimeoutWatch>,
    ) -> GatedResponse<B> {
        let replacement = match leave_action {
            LeaveAction::AddHeaders(headers) => {
                append_headers(response.headers_mut(), headers);
                None
            }
            LeaveAction::Replace(reply) => Some(reply),
            LeaveAction::KeepTicket(ticket) => {
                // Silence on a socket is not a slow request body.
                let timeout_watch = timeout_watch.filter(|_| !is_upgraded(&response));
                let body_ticket = BodyTicket::new(self.gate, ticket, timeout_watch);
                return response.map_body(|_, body| {
                    EitherBody::right(match body {
                        EitherBody::Left { body } => ticketed_body(body, body_ticket),
                        EitherBody::Right { body } => ticketed_body(body, body_ticket),
                    })
                });
            }
            LeaveAction::Accept { accept_ticket, body_budget, slot: _ } => {
                match parked_payload.take_payload() {
                    Some(payload) => {
                        let request = response.request();
                        self.accept_request(accept_ticket, request, payload, body_budget).await
                    }
                    None => None,
                }
            }
        };
        match replacement {
            Some(reply) => response.into_response(response_from_reply(reply).map_into_right_body()),
            None => response,
        }
    }

    /// Shows the parked request to the gate, and reads its body if the gate asks for it. Returns
    /// the reply of the gate, or `None` if it declines the request.
    async fn accept_request(
        &self,
        mut accept_ticket: G::AcceptTicket,
        request: &HttpRequest,
        payload: Payload,
        mut budget: BodyBudget,
    ) -> Option<Reply> {
        record_extractor_configs(request);
        let head = request_head(request);
        // Header changes are dropped, since nothing reads the request any more.
        let mut view = RequestView::new(request);
        let verdict = self.gate.inspect_parked(&mut accept_ticket, &head, &mut view, &mut budget);
        let body = match verdict {
            ParkedVerdict::ReadBody => read_parked_payload(request, payload, &mut budget).await,
            ParkedVerdict::HeadOnly => None,
            ParkedVerdict::Decline => return None,
        };
        self.gate.accept_parked(accept_ticket, head, body).await
    }
}

/// Returns the outcome of an inner call that completed.
pub(crate) fn service_outcome<B: MessageBody + 'static>(
    result: &Result<GatedResponse<B>, Error>,
) -> ServiceOutcome {
    match result {
        Ok(response) if has_no_sent_body(response) => {
            ServiceOutcome::Answered(response.status().as_u16())
        }
        Ok(response) => ServiceOutcome::Streaming(response.status().as_u16()),
        // An outer layer or the server turns the error into this response.
        Err(error) => ServiceOutcome::Answered(error.as_response_error().status_code().as_u16()),
    }
}

/// Applies a leave action to an error of the inner service.
///
/// The error is a response to come, so it can be replaced or get headers. Every other action leaves
/// it unchanged, since its request was dropped with it.
pub(crate) fn amend_error<T, P>(mut error: Error, leave_action: LeaveAction<T, P>) -> Error {
    match leave_action {
        LeaveAction::Replace(reply) => return ReplyError::from_reply(reply),
        LeaveAction::AddHeaders(headers) if !headers.is_empty() => {
            error.add_response_mapper(move |mut response| {
                append_headers(response.headers_mut(), headers.clone());
                response
            });
        }
        LeaveAction::AddHeaders(_) | LeaveAction::KeepTicket(_) | LeaveAction::Accept { .. } => {}
    }
    error
}
