//! `GateService`: the way of one request. The same steps as the tower driver, on actix's types.

use std::rc::Rc;

use actix_web::{
    Error, HttpMessage as _, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{Payload, Service, ServiceRequest, ServiceResponse, forward_ready},
};
use futures_util::{
    TryFutureExt as _,
    future::{Either, LocalBoxFuture, MapOk},
};
use lockgate::{
    Reply,
    gate::{Asked, Gate, Outcome, Parting, Verdict},
};

use crate::{
    framework::{RequestView, head},
    parking::{Parking, read_whole},
    reply::{add_fields, response},
};

/// The inner service's own body, or that of a reply of ours.
type Answer<B> = ServiceResponse<EitherBody<B>>;

/// A service with a gate around it: what the layers make of a service.
#[derive(Debug)]
pub struct GateService<S, G> {
    inner: Rc<S>,
    gate: G,
}

impl<S, G> GateService<S, G> {
    pub(crate) fn new(inner: S, gate: G) -> Self {
        Self { inner: Rc::new(inner), gate }
    }
}

impl<S, G, B> Service<ServiceRequest> for GateService<S, G>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    G: Gate<HttpRequest>,
    B: MessageBody + 'static,
{
    type Response = Answer<B>;
    type Error = Error;
    // A request that is none of the gate's business costs no box.
    type Future = Either<
        MapOk<S::Future, fn(ServiceResponse<B>) -> Answer<B>>,
        LocalBoxFuture<'static, Result<Answer<B>, Error>>,
    >;

    forward_ready!(inner);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        match self.gate.ask(&mut RequestView(request.request())) {
            Asked::Skip => {
                Either::Left(self.inner.call(request).map_ok(ServiceResponse::map_into_left_body))
            }
            Asked::Answer(reply) => {
                Either::Right(Box::pin(async move { Ok(refuse(request, reply)) }))
            }
            Asked::Enter(facts) => {
                let passage = Passage { inner: Rc::clone(&self.inner), gate: self.gate.clone() };
                Either::Right(Box::pin(passage.run(facts, request)))
            }
        }
    }
}

struct Passage<S, G> {
    inner: Rc<S>,
    gate: G,
}

impl<S, G: Gate<HttpRequest>> Passage<S, G> {
    async fn run<B>(self, facts: G::Facts, mut request: ServiceRequest) -> Result<Answer<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    {
        match self.gate.enter(facts).await {
            Verdict::Pass(ticket) => self.pass(ticket, request).await,
            Verdict::Answer(reply) => Ok(refuse(request, reply)),
            Verdict::Busy(reply) => {
                Parking::park(&mut request);
                Ok(refuse(request, reply))
            }
        }
    }

    async fn pass<B>(self, ticket: G::Ticket, request: ServiceRequest) -> Result<Answer<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    {
        self.gate.show(&ticket, &mut RequestView(request.request()));
        let parking = Parking::default();
        if G::PARKS {
            request.extensions_mut().insert(parking.clone());
        }
        // No clone of the request is kept meanwhile: routing has to be its only owner.
        let outcome = self.inner.call(request).await;
        // No early return for an error: the gate is left in every case.
        let status = match &outcome {
            Ok(response) => Outcome::Answered(response.status().as_u16()),
            Err(_) => Outcome::Failed,
        };
        match self.gate.leave(ticket, status).await {
            Parting::Fields(fields) => outcome.map(|mut response| {
                add_fields(response.headers_mut(), fields);
                response.map_into_left_body()
            }),
            Parting::Accept { parked, limit } => {
                // An error of the inner service goes out as it is, whatever is parked: the request has
                // gone with it.
                let (request, unchanged) = outcome?.into_parts();
                let reply = match parking.take() {
                    Some(payload) => self.accept(parked, &request, payload, limit).await,
                    None => None,
                };
                let response = match reply {
                    Some(reply) => response(reply).map_into_right_body(),
                    None => unchanged.map_into_left_body(),
                };
                Ok(ServiceResponse::new(request, response))
            }
        }
    }

    async fn accept(
        &self,
        parked: G::Parked,
        request: &HttpRequest,
        payload: Payload,
        limit: usize,
    ) -> Option<Reply> {
        let body = read_whole(request, payload, limit).await?;
        self.gate.accept(parked, head(request), body).await
    }
}

fn refuse<B>(request: ServiceRequest, reply: Reply) -> Answer<B> {
    request.into_response(response(reply).map_into_right_body())
}
