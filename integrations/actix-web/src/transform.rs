//! `GateService`: the way of one request. The same steps as the tower driver, on actix's types.

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
    gate::{
        Asked, Attended, Gate, Head, Kept, Outcome, Parting, PickUp, Reading, Room, Verdict, attend,
    },
};

use crate::{
    body::{is_sent_without_body, is_socket, keep, without_unsent},
    framework::{RequestView, apply, head},
    parking::{Parking, read_whole},
    refuse::{Answer, Refusal, refuse},
    reply::{Refused, add_field, add_fields, again, response, told, told_by},
    timed::time,
};

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

    fn passage(&self) -> Passage<S, G>
    where
        G: Clone,
    {
        Passage { inner: Rc::clone(&self.inner), gate: self.gate.clone() }
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
    // A request that is none of the gate's business costs no box, nor one that is answered at once.
    type Future = Either<MapOk<S::Future, fn(ServiceResponse<B>) -> Answer<B>>, Refusal<B>>;

    forward_ready!(inner);

    fn call(&self, mut request: ServiceRequest) -> Self::Future {
        let mut view = RequestView::new(request.request());
        let asked = self.gate.ask(&mut view);
        if let Err(shared) = apply(view.into_changes(), &mut request) {
            return Either::Right(refuse(request, response(shared.reply())));
        }
        match asked {
            Asked::Skip => {
                Either::Left(self.inner.call(request).map_ok(ServiceResponse::map_into_left_body))
            }
            Asked::Answer(reply) => Either::Right(refuse(request, response(reply))),
            Asked::Again(reply) => Either::Right(refuse(request, again(&reply))),
            // What is parked for a gate is kept with its ticket.
            Asked::Pass(quick) if !G::PARKS => {
                Either::Right(Either::Right(Box::pin(self.passage().through(quick, request))))
            }
            Asked::Pass(mut quick) => {
                if let Some(detached) = self.gate.detach(&mut quick) {
                    let ticket = self.gate.ticket(quick);
                    return Either::Right(Either::Right(
                        self.passage().detach(ticket, request, detached),
                    ));
                }
                let ticket = self.gate.ticket(quick);
                Either::Right(Either::Right(Box::pin(self.passage().pass(ticket, request))))
            }
            Asked::Enter(facts) => {
                Either::Right(Either::Right(Box::pin(self.passage().run(facts, request))))
            }
        }
    }
}

pub(crate) struct Passage<S, G> {
    pub(crate) inner: Rc<S>,
    pub(crate) gate: G,
}

impl<S, G: Gate<HttpRequest>> Passage<S, G> {
    async fn run<B>(self, facts: G::Facts, mut request: ServiceRequest) -> Result<Answer<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        match self.gate.enter(facts).await {
            Verdict::Pass(ticket) => {
                let mut view = RequestView::new(request.request());
                self.gate.show(&ticket, &mut view);
                if let Err(shared) = apply(view.into_changes(), &mut request) {
                    return refuse(request, response(shared.reply())).await;
                }
                match self.gate.quick(ticket) {
                    Ok(quick) => self.through(quick, request).await,
                    Err(ticket) => Box::pin(self.pass(ticket, request)).await,
                }
            }
            Verdict::Answer(reply) => refuse(request, response(reply)).await,
            Verdict::Busy(reply, _) => {
                Parking::park(&mut request);
                refuse(request, response(reply)).await
            }
        }
    }

    /// The call of a request of which nothing but its answer matters.
    async fn through<B>(self, quick: G::Quick, request: ServiceRequest) -> Result<Answer<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        let mut ended = self.inner.call(request).await;
        let parted = self.gate.part(quick, |name, value| match &mut ended {
            Ok(answer) => add_field(answer.headers_mut(), name, value),
            Err(error) => error.add_response_mapper(move |mut answer| {
                add_field(answer.headers_mut(), name, value.clone());
                answer
            }),
        });
        match parted {
            Ok(()) => ended.map(ServiceResponse::map_into_left_body),
            Err(quick) => {
                let ticket = self.gate.ticket(quick);
                Box::pin(self.left(ticket, Attended::Ended(ended), Parking::default(), None)).await
            }
        }
    }

    async fn pass<B>(
        self,
        ticket: G::Ticket,
        mut request: ServiceRequest,
    ) -> Result<Answer<B>, Error>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
        B: MessageBody + 'static,
    {
        let parking = Parking::default();
        if G::PARKS {
            request.extensions_mut().insert(parking.clone());
        }
        // No clone of the request is kept meanwhile: routing has to be its only owner.
        let print = self.gate.reads_along(&ticket, || {
            let Head { method, target, .. } = head(request.request());
            (method, target)
        });
        let reading = time(&mut request, self.gate.body_deadline(&ticket), print);
        // Called within the scope, not only polled: a layer further in asks its gate as it is called.
        let call = self.gate.within(&ticket).run(async { self.inner.call(request).await });
        let ended = attend(pin!(call), pin!(self.gate.watch(&ticket)), reading.as_ref()).await;
        self.left(ticket, ended, parking, reading).await
    }

    /// Leaves the gate.
    async fn left<B: MessageBody + 'static>(
        self,
        mut ticket: G::Ticket,
        ended: Attended<Result<ServiceResponse<B>, Error>>,
        parking: Parking,
        reading: Option<Reading>,
    ) -> Result<Answer<B>, Error> {
        let mut ended = match ended {
            Attended::Ended(ended) => Attended::Ended(ended.map(without_unsent)),
            Attended::Stopped => Attended::Stopped,
        };
        // No early return for an error: the gate is left in every case.
        let outcome = ended.outcome(reading.as_ref(), outcome);
        match &mut ended {
            Attended::Ended(Ok(response)) => {
                self.gate.hear(&mut ticket, || told(response));
            }
            Attended::Ended(Err(error)) => self.gate.hear(&mut ticket, || told_by(error)),
            Attended::Stopped => {}
        }
        let parting = self.gate.leave(ticket, outcome).await;
        match ended {
            Attended::Ended(Ok(response)) => {
                Ok(self.answer(response, parting, &parking, reading).await)
            }
            Attended::Ended(Err(error)) if outcome != Outcome::TooSlow => {
                Err(amend(error, parting))
            }
            Attended::Ended(Err(_)) | Attended::Stopped => {
                Err(Refused::error(parting.into_reply()))
            }
        }
    }

    pub(crate) async fn answer<B: MessageBody + 'static>(
        self,
        mut answer: Answer<B>,
        parting: Parting<G::Ticket, G::Parked>,
        parking: &Parking,
        reading: Option<Reading>,
    ) -> Answer<B> {
        let instead = match parting {
            Parting::Fields(fields) => {
                add_fields(answer.headers_mut(), fields);
                None
            }
            Parting::Replace(reply) => Some(reply),
            Parting::Keep(ticket) => {
                // Whoever says nothing on a socket is not late with a body.
                let reading = reading.filter(|_| !is_socket(&answer));
                let kept = Kept::new(self.gate, ticket, reading);
                return answer.map_body(|_, body| {
                    EitherBody::right(match body {
                        EitherBody::Left { body } => keep(body, kept),
                        EitherBody::Right { body } => keep(body, kept),
                    })
                });
            }
            Parting::Accept { parked, room, slot: _ } => match parking.take() {
                Some(payload) => self.accept(parked, answer.request(), payload, room).await,
                None => None,
            },
        };
        match instead {
            Some(reply) => answer.into_response(response(reply).map_into_right_body()),
            None => answer,
        }
    }

    async fn accept(
        &self,
        mut parked: G::Parked,
        request: &HttpRequest,
        payload: Payload,
        mut room: Room,
    ) -> Option<Reply> {
        let head = head(request);
        // What it may want to change would be seen by nobody any more.
        let mut view = RequestView::new(request);
        let body = match self.gate.pick_up(&mut parked, &head, &mut view, &mut room) {
            PickUp::Whole => read_whole(request, payload, &mut room).await,
            PickUp::Head => None,
            PickUp::Nothing => return None,
        };
        self.gate.accept(parked, head, body).await
    }
}

/// How an inner call ended that has ended by itself.
pub(crate) fn outcome<B: MessageBody + 'static>(ended: &Result<Answer<B>, Error>) -> Outcome {
    match ended {
        Ok(response) if is_sent_without_body(response) => {
            Outcome::Answered(response.status().as_u16())
        }
        Ok(response) => Outcome::Streams(response.status().as_u16()),
        // It becomes that answer further out, at the server if not before.
        Err(error) => Outcome::Answered(error.as_response_error().status_code().as_u16()),
    }
}

/// An error of the inner service is an answer to come, and can be replaced as one, or take fields. Else it goes out as it is:
/// its request has gone with it.
pub(crate) fn amend<T, P>(mut error: Error, parting: Parting<T, P>) -> Error {
    match parting {
        Parting::Replace(reply) => return Refused::error(reply),
        Parting::Fields(fields) if !fields.is_empty() => {
            error.add_response_mapper(move |mut answer| {
                add_fields(answer.headers_mut(), fields.clone());
                answer
            });
        }
        Parting::Fields(_) | Parting::Keep(_) | Parting::Accept { .. } => {}
    }
    error
}
