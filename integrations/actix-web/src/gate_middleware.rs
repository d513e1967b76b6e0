//! `GateMiddleware`, the driver for actix-web: the steps of the tower driver on actix's types.

use std::{pin::pin, rc::Rc};

use actix_web::{
    Error, HttpMessage as _, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{Payload, Service, ServiceRequest, ServiceResponse, forward_ready},
};
use futures_util::{
    TryFutureExt as _,
    future::{Either, MapOk},
};
use lockgate::{
    Reply,
    driver::{
        BodyBudget, BodyTicket, BodyTimerHandle, CallCompletion, Gate, HttpRequestHead,
        InitialVerdict, LeaveAction, ParkedVerdict, ServiceOutcome, Verdict, run_until_cancelled,
    },
};

use crate::{
    early_response::{EarlyResponse, GatedResponse, respond_early},
    measured_payload::time_payload,
    payload_slot::{PayloadSlot, read_within_budget},
    reply_response::{
        ReplyError, append_header, append_headers, error_headers, response_from_reply,
        response_headers, shared_response,
    },
    request_view::{RequestView, apply_header_changes, request_head},
    ticketed_body::{drop_unsent_body, has_no_sent_body, is_upgraded, ticketed_body},
};

/// Service with a gate around it, created by the layers.
#[derive(Debug)]
pub struct GateMiddleware<S, G> {
    inner: Rc<S>,
    gate: G,
}

impl<S, G> GateMiddleware<S, G> {
    pub(crate) fn new(inner: S, gate: G) -> Self {
        Self { inner: Rc::new(inner), gate }
    }

    fn driver(&self) -> LocalGateDriver<S, G>
    where
        G: Clone,
    {
        LocalGateDriver { inner: Rc::clone(&self.inner), gate: self.gate.clone() }
    }
}

impl<S, G, B> Service<ServiceRequest> for GateMiddleware<S, G>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    G: Gate<HttpRequest>,
    B: MessageBody + 'static,
{
    type Response = GatedResponse<B>;
    type Error = Error;
    // No box for a request that the gate skips or responds to at once.
    type Future =
        Either<MapOk<S::Future, fn(ServiceResponse<B>) -> GatedResponse<B>>, EarlyResponse<B>>;

    forward_ready!(inner);

    fn call(&self, mut request: ServiceRequest) -> Self::Future {
        let mut view = RequestView::new(request.request());
        let asked = self.gate.inspect(&mut view);
        if let Err(shared) = apply_header_changes(view.into_header_changes(), &mut request) {
            return Either::Right(respond_early(request, response_from_reply(shared.reply())));
        }
        match asked {
            InitialVerdict::Skip => {
                Either::Left(self.inner.call(request).map_ok(ServiceResponse::map_into_left_body))
            }
            InitialVerdict::Answer(reply) => {
                Either::Right(respond_early(request, response_from_reply(reply)))
            }
            InitialVerdict::SharedAnswer(reply) => {
                Either::Right(respond_early(request, shared_response(&reply)))
            }
            // A gate that accepts parked requests needs a full ticket, beside which the payload is
            // parked.
            InitialVerdict::PassLight(quick) if !G::ACCEPTS_PARKED => Either::Right(Either::Right(
                Box::pin(self.driver().call_with_light_ticket(quick, request)),
            )),
            InitialVerdict::PassLight(mut quick) => {
                if let Some(detached) = self.gate.detach(&mut quick) {
                    let ticket = self.gate.full_ticket(quick);
                    return Either::Right(Either::Right(
                        self.driver().spawn_detached(ticket, request, detached),
                    ));
                }
                let ticket = self.gate.full_ticket(quick);
                Either::Right(Either::Right(Box::pin(
                    self.driver().call_with_ticket(ticket, request),
                )))
            }
            InitialVerdict::Enter(facts) => {
                Either::Right(Either::Right(Box::pin(self.driver().enter(facts, request))))
            }
        }
    }
}

pub(crate) struct LocalGateDriver<S, G> {
    pub(crate) inner: Rc<S>,
    pub(crate) gate: G,
}

impl<S, G: Gate<HttpRequest>> LocalGateDriver<S, G> {
    async fn enter<B>(
        self,
        facts: G::EntryContext,
        mut request: ServiceRequest,
    ) -> Result<GatedResponse<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        match self.gate.enter(facts).await {
            Verdict::Pass(ticket) => {
                let mut view = RequestView::new(request.request());
                self.gate.annotate_request(&ticket, &mut view);
                if let Err(shared) = apply_header_changes(view.into_header_changes(), &mut request)
                {
                    return respond_early(request, response_from_reply(shared.reply())).await;
                }
                match self.gate.try_light_ticket(ticket) {
                    Ok(quick) => self.call_with_light_ticket(quick, request).await,
                    Err(ticket) => Box::pin(self.call_with_ticket(ticket, request)).await,
                }
            }
            Verdict::Answer(reply) => respond_early(request, response_from_reply(reply)).await,
            Verdict::Busy(reply, _) => {
                PayloadSlot::park_payload(&mut request);
                respond_early(request, response_from_reply(reply)).await
            }
        }
    }

    /// Calls the inner service under a light ticket, which only adds headers to the response.
    async fn call_with_light_ticket<B>(
        self,
        quick: G::LightTicket,
        request: ServiceRequest,
    ) -> Result<GatedResponse<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        let mut ended = self.inner.call(request).await;
        let parted = self.gate.settle_with_headers(quick, |name, value| match &mut ended {
            Ok(answer) => append_header(answer.headers_mut(), name, value),
            Err(error) => error.add_response_mapper(move |mut answer| {
                append_header(answer.headers_mut(), name, value.clone());
                answer
            }),
        });
        match parted {
            Ok(()) => ended.map(ServiceResponse::map_into_left_body),
            Err(quick) => {
                let ticket = self.gate.full_ticket(quick);
                Box::pin(self.leave_gate(
                    ticket,
                    CallCompletion::Completed(ended),
                    PayloadSlot::default(),
                    None,
                ))
                .await
            }
        }
    }

    async fn call_with_ticket<B>(
        self,
        ticket: G::Ticket,
        mut request: ServiceRequest,
    ) -> Result<GatedResponse<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        let parking = PayloadSlot::default();
        if G::ACCEPTS_PARKED {
            request.extensions_mut().insert(parking.clone());
        }
        // No clone of the request may live during the call, since routing must be its only owner.
        let print = self.gate.body_fingerprint(&ticket, || {
            let HttpRequestHead { method, target, .. } = request_head(request.request());
            (method, target)
        });
        let reading = time_payload(&mut request, self.gate.body_read_timeout(&ticket), print);
        // Called, not only polled, within the scope, since an inner layer inspects the request in
        // `call`.
        let call = self.gate.request_scope(&ticket).run(async { self.inner.call(request).await });
        let ended = run_until_cancelled(
            pin!(call),
            pin!(self.gate.cancellation(&ticket)),
            reading.as_ref(),
        )
        .await;
        self.leave_gate(ticket, ended, parking, reading).await
    }

    /// Leaves the gate and applies its leave action.
    async fn leave_gate<B: MessageBody + 'static>(
        self,
        mut ticket: G::Ticket,
        ended: CallCompletion<Result<ServiceResponse<B>, Error>>,
        parking: PayloadSlot,
        reading: Option<BodyTimerHandle>,
    ) -> Result<GatedResponse<B>, Error> {
        let mut ended = match ended {
            CallCompletion::Completed(ended) => {
                CallCompletion::Completed(ended.map(drop_unsent_body))
            }
            CallCompletion::Stopped => CallCompletion::Stopped,
        };
        // No early return for an error: the gate is left in every case.
        let outcome = ended.outcome(reading.as_ref(), service_outcome);
        match &mut ended {
            CallCompletion::Completed(Ok(response)) => {
                self.gate.observe_headers(&mut ticket, || response_headers(response));
            }
            CallCompletion::Completed(Err(error)) => {
                self.gate.observe_headers(&mut ticket, || error_headers(error));
            }
            CallCompletion::Stopped => {}
        }
        let parting = self.gate.leave(ticket, outcome).await;
        match ended {
            CallCompletion::Completed(Ok(response)) => {
                Ok(self.apply_leave_action(response, parting, &parking, reading).await)
            }
            CallCompletion::Completed(Err(error))
                if outcome != ServiceOutcome::RequestBodyTimeout =>
            {
                Err(amend_error(error, parting))
            }
            CallCompletion::Completed(Err(_)) | CallCompletion::Stopped => {
                Err(ReplyError::from_reply(parting.into_reply()))
            }
        }
    }

    pub(crate) async fn apply_leave_action<B: MessageBody + 'static>(
        self,
        mut answer: GatedResponse<B>,
        parting: LeaveAction<G::Ticket, G::AcceptTicket>,
        parking: &PayloadSlot,
        reading: Option<BodyTimerHandle>,
    ) -> GatedResponse<B> {
        let instead = match parting {
            LeaveAction::AddHeaders(fields) => {
                append_headers(answer.headers_mut(), fields);
                None
            }
            LeaveAction::Replace(reply) => Some(reply),
            LeaveAction::KeepTicket(ticket) => {
                // Silence on a socket is not a slow request body.
                let reading = reading.filter(|_| !is_upgraded(&answer));
                let kept = BodyTicket::new(self.gate, ticket, reading);
                return answer.map_body(|_, body| {
                    EitherBody::right(match body {
                        EitherBody::Left { body } => ticketed_body(body, kept),
                        EitherBody::Right { body } => ticketed_body(body, kept),
                    })
                });
            }
            LeaveAction::Accept { accept_ticket: parked, body_budget: room, slot: _ } => {
                match parking.take_payload() {
                    Some(payload) => {
                        self.accept_request(parked, answer.request(), payload, room).await
                    }
                    None => None,
                }
            }
        };
        match instead {
            Some(reply) => answer.into_response(response_from_reply(reply).map_into_right_body()),
            None => answer,
        }
    }

    async fn accept_request(
        &self,
        mut parked: G::AcceptTicket,
        request: &HttpRequest,
        payload: Payload,
        mut room: BodyBudget,
    ) -> Option<Reply> {
        let head = request_head(request);
        // Header changes are dropped, since nothing reads the request any more.
        let mut view = RequestView::new(request);
        let body = match self.gate.inspect_parked(&mut parked, &head, &mut view, &mut room) {
            ParkedVerdict::ReadBody => read_within_budget(request, payload, &mut room).await,
            ParkedVerdict::HeadOnly => None,
            ParkedVerdict::Decline => return None,
        };
        self.gate.accept_parked(parked, head, body).await
    }
}

/// Returns the outcome of an inner call that completed.
pub(crate) fn service_outcome<B: MessageBody + 'static>(
    ended: &Result<GatedResponse<B>, Error>,
) -> ServiceOutcome {
    match ended {
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
pub(crate) fn amend_error<T, P>(mut error: Error, parting: LeaveAction<T, P>) -> Error {
    match parting {
        LeaveAction::Replace(reply) => return ReplyError::from_reply(reply),
        LeaveAction::AddHeaders(fields) if !fields.is_empty() => {
            error.add_response_mapper(move |mut answer| {
                append_headers(answer.headers_mut(), fields.clone());
                answer
            });
        }
        LeaveAction::AddHeaders(_) | LeaveAction::KeepTicket(_) | LeaveAction::Accept { .. } => {}
    }
    error
}
