//! `GateMiddleware`: an actix service with a gate around it.

use std::rc::Rc;

use actix_web::{
    Error, HttpRequest,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, forward_ready},
};
use futures_util::{
    TryFutureExt as _,
    future::{Either, MapOk},
};
use lockgate::driver::{Gate, InitialVerdict};

use crate::{
    early_response::{EarlyResponse, GatedResponse, respond_early},
    local_gate_driver::LocalGateDriver,
    reply_to_response::{response_from_reply, shared_response},
    request_view::{RequestView, apply_header_changes},
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
        let verdict = self.gate.inspect(&mut view);
        if let Err(error) = apply_header_changes(view.into_header_changes(), &mut request) {
            return Either::Right(respond_early(request, response_from_reply(error.reply())));
        }
        match verdict {
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
            InitialVerdict::PassLight(light_ticket) if !G::ACCEPTS_PARKED => {
                Either::Right(Either::Right(Box::pin(
                    self.driver().call_with_light_ticket(light_ticket, request),
                )))
            }
            InitialVerdict::PassLight(mut light_ticket) => {
                if let Some(detached) = self.gate.detach(&mut light_ticket) {
                    let ticket = self.gate.full_ticket(light_ticket);
                    return Either::Right(Either::Right(
                        self.driver().spawn_detached(ticket, request, detached),
                    ));
                }
                let ticket = self.gate.full_ticket(light_ticket);
                Either::Right(Either::Right(Box::pin(
                    self.driver().call_with_ticket(ticket, request),
                )))
            }
            InitialVerdict::Enter(context) => {
                Either::Right(Either::Right(Box::pin(self.driver().enter(context, request))))
            }
        }
    }
}
