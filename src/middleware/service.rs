//! `GateService`: the way of one request.

use std::{
    marker::PhantomData,
    mem,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, request::Parts};
use http_body::Body;
use tower_service::Service;

use super::{
    body::{GateBody, add_fields, again, is_sent_without_body, response},
    framework::{Framework, PartsView, head},
    future::ResponseFuture,
    parking::{AnyRequest, Parking, read_whole},
    timed::Untimed,
};
use crate::{
    gate::{Asked, Attended, Gate, Kept, Outcome, Parting, Reading, Verdict, attend},
    reply::{Fields, Reply},
};

/// A service with a gate around it.
#[derive(Debug)]
pub struct GateService<S, G, F> {
    inner: S,
    gate: G,
    framework: PhantomData<F>,
}

impl<S, G, F> GateService<S, G, F> {
    pub(super) fn new(inner: S, gate: G) -> Self {
        Self { inner, gate, framework: PhantomData }
    }
}

impl<S: Clone, G: Clone, F> Clone for GateService<S, G, F> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.gate.clone())
    }
}

impl<S, G, F, B, R> Service<Request<B>> for GateService<S, G, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    G: Gate<Parts>,
    F: Framework,
    B: Body<Data = Bytes> + Send + 'static,
    R: Body + Send + 'static,
{
    type Response = Response<GateBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        match self.gate.ask(&mut PartsView::<F>::new(&mut parts)) {
            Asked::Skip => ResponseFuture::inner(self.inner.call(Request::from_parts(parts, body))),
            Asked::Answer(reply) => ResponseFuture::ready(response(reply)),
            Asked::Again(reply) => ResponseFuture::ready(again(&reply)),
            Asked::Enter(facts) => {
                // The service that was polled ready is the one to be called.
                let fresh = self.inner.clone();
                let inner = mem::replace(&mut self.inner, fresh);
                let passage =
                    Passage::<S, G, F> { inner, gate: self.gate.clone(), framework: PhantomData };
                ResponseFuture::gated(passage.run(facts, parts, body))
            }
        }
    }
}

struct Passage<S, G, F> {
    inner: S,
    gate: G,
    framework: PhantomData<F>,
}

impl<S, G: Gate<Parts>, F: Framework> Passage<S, G, F> {
    async fn run<B, R>(
        self,
        facts: G::Facts,
        mut parts: Parts,
        body: B,
    ) -> Result<Response<GateBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body,
    {
        match self.gate.enter(facts).await {
            Verdict::Pass(ticket) => self.pass(ticket, parts, body).await,
            Verdict::Answer(reply) => Ok(response(reply)),
            Verdict::Busy(reply) => {
                if let Some(parking) = parts.extensions.remove::<Parking>() {
                    parking.park(Request::from_parts(parts, body));
                }
                Ok(response(reply))
            }
        }
    }

    async fn pass<B, R>(
        mut self,
        ticket: G::Ticket,
        mut parts: Parts,
        body: B,
    ) -> Result<Response<GateBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body,
    {
        let head = parts.method == Method::HEAD;
        self.gate.show(&ticket, &mut PartsView::<F>::new(&mut parts));
        let parking = Parking::default();
        if G::PARKS {
            parts.extensions.insert(parking.clone());
        }
        let (body, reading) = time::<B, F>(body, self.gate.body_deadline(&ticket));
        let (inner, request) = (&mut self.inner, Request::from_parts(parts, body));
        // Called within the scope, not only polled: a layer further in asks its gate as it is called.
        let call = self.gate.within(&ticket).run(async { inner.call(request).await });
        let ended = attend(pin!(call), pin!(self.gate.watch(&ticket)), reading.as_ref()).await;
        // No early return for an error: the gate is left in every case.
        let outcome = ended.outcome(reading.as_ref(), |ended| match ended {
            Ok(response) if is_sent_without_body(head, response) => {
                Outcome::Answered(response.status().as_u16())
            }
            Ok(response) => Outcome::Streams(response.status().as_u16()),
            Err(_) => Outcome::Failed,
        });
        let parting = self.gate.leave(ticket, outcome).await;
        let answer = match ended {
            Attended::Ended(Ok(answer)) => answer,
            Attended::Ended(Err(error)) if outcome != Outcome::TooSlow => return Err(error),
            Attended::Ended(Err(_)) | Attended::Stopped => {
                return Ok(response(parting.into_reply()));
            }
        };
        let instead = match parting {
            Parting::Fields(fields) => return Ok(with_fields(answer, fields)),
            Parting::Replace(reply) => Some(reply),
            Parting::Keep(ticket) => {
                let kept = Kept::new(self.gate, ticket, reading);
                return Ok(answer.map(|body| GateBody::kept(body, kept)));
            }
            Parting::Accept { parked, limit } => match parking.take() {
                Some(request) => accept::<G, F>(&self.gate, parked, request, limit).await,
                None => None,
            },
        };
        Ok(match instead {
            Some(reply) => response(reply),
            None => answer.map(GateBody::inner),
        })
    }
}

/// A body that is at its end has no client to wait for.
fn time<B, F>(body: B, limit: Option<Duration>) -> (B, Option<Reading>)
where
    B: Body<Data = Bytes> + Send + 'static,
    F: Framework,
{
    match limit {
        Some(limit) if !body.is_end_stream() => {
            let (reading, patience) = Reading::new(limit);
            (F::time(Untimed::new(body, patience)), Some(reading))
        }
        _ => (body, None),
    }
}

fn with_fields<R>(mut response: Response<R>, fields: Fields) -> Response<GateBody<R>> {
    add_fields(&mut response, fields);
    response.map(GateBody::inner)
}

async fn accept<G: Gate<Parts>, F: Framework>(
    gate: &G,
    parked: G::Parked,
    request: AnyRequest,
    limit: usize,
) -> Option<Reply> {
    let (parts, body) = request.into_parts();
    let head = head::<F>(&parts);
    let body = read_whole(body, limit).await?;
    gate.accept(parked, head, body).await
}
