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
    body::{BoxError, GateBody, again, response},
    framework::{Framework, PartsView, fields},
    future::{Kind, ResponseFuture},
    parking::any,
    settle::{Passed, finish, outcome},
    timed::Untimed,
};
use crate::gate::{Asked, Attended, Gate, Outcome, Print, Reading, Verdict, attend};

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
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<F::Answer<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error, G, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        match self.gate.ask(&mut PartsView::<F>::new(&mut parts)) {
            Asked::Skip => ResponseFuture::inner(self.inner.call(Request::from_parts(parts, body))),
            Asked::Answer(reply) => ResponseFuture::ready(response(reply)),
            Asked::Again(reply) => ResponseFuture::ready(again(&reply)),
            Asked::Pass(quick) => {
                let passed = Passed::new(self.gate.clone(), quick, &parts.method);
                let call = self.inner.call(Request::from_parts(parts, body));
                ResponseFuture::passing(call, passed)
            }
            Asked::Enter(facts) => {
                // The service that was polled ready is the one to be called.
                let fresh = self.inner.clone();
                let inner = mem::replace(&mut self.inner, fresh);
                let passage =
                    Passage::<S, G, F> { inner, gate: self.gate.clone(), framework: PhantomData };
                ResponseFuture::entering(passage.enter(facts, parts, body))
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
    /// Enters the gate, and says how the request goes on.
    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice, and that must stay below 1 KiB: beyond it \
                  allocators have nothing at hand"
    )]
    fn enter<B, R>(
        mut self,
        facts: G::Facts,
        mut parts: Parts,
        body: B,
    ) -> impl Future<Output = Kind<S::Future, R, S::Error, G, F>> + Send + 'static
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body + Send + 'static,
    {
        async move {
            match self.gate.enter(facts).await {
                Verdict::Pass(ticket) => {
                    self.gate.show(&ticket, &mut PartsView::<F>::new(&mut parts));
                    match self.gate.quick(ticket) {
                        Ok(quick) => {
                            let passed = Passed::new(self.gate, quick, &parts.method);
                            let call = self.inner.call(Request::from_parts(parts, body));
                            Kind::Passing(call, Some(passed))
                        }
                        Err(ticket) => Kind::Gated(Box::pin(self.pass(ticket, parts, body))),
                    }
                }
                Verdict::Answer(reply) => Kind::Ready(Some(response(reply))),
                Verdict::Busy(reply, slot) => {
                    if let Some(slot) = slot {
                        slot.park(any(Request::from_parts(parts, body)));
                    }
                    Kind::Ready(Some(response(reply)))
                }
            }
        }
    }

    async fn pass<B, R>(
        mut self,
        mut ticket: G::Ticket,
        parts: Parts,
        body: B,
    ) -> Result<Response<GateBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body,
    {
        let head = parts.method == Method::HEAD;
        let print = self
            .gate
            .reads_along(&ticket, || (parts.method.as_str().to_owned(), F::target(&parts)));
        let (body, reading) = time::<B, F>(body, self.gate.body_deadline(&ticket), print);
        let (inner, request) = (&mut self.inner, Request::from_parts(parts, body));
        // Called within the scope, not only polled: a layer further in asks its gate as it is called.
        let call = self.gate.within(&ticket).run(async { inner.call(request).await });
        let ended = attend(pin!(call), pin!(self.gate.watch(&ticket)), reading.as_ref()).await;
        // No early return for an error: the gate is left in every case.
        let outcome = ended.outcome(reading.as_ref(), |ended| outcome(head, ended));
        if let Attended::Ended(Ok(answer)) = &ended {
            self.gate.hear(&mut ticket, || fields(answer.headers()));
        }
        let parting = self.gate.leave(ticket, outcome).await;
        match ended {
            Attended::Ended(Ok(answer)) => {
                Ok(finish::<G, F, R>(self.gate, answer, parting, reading).await)
            }
            Attended::Ended(Err(error)) if outcome != Outcome::TooSlow => Err(error),
            Attended::Ended(Err(_)) | Attended::Stopped => Ok(response(parting.into_reply())),
        }
    }
}

/// A body that is at its end has no client to wait for, and is known already.
fn time<B, F>(body: B, limit: Option<Duration>, print: Option<Print>) -> (B, Option<Reading>)
where
    B: Body<Data = Bytes> + Send + 'static,
    F: Framework,
{
    if body.is_end_stream() {
        print.iter().for_each(Print::end);
        return (body, None);
    }
    if limit.is_none() && print.is_none() {
        return (body, None);
    }
    // Nothing is counted where the driver's end is dropped.
    let (reading, patience) = Reading::new(limit.unwrap_or_default());
    let reading = limit.map(|_| reading);
    (F::time(Untimed::new(body, patience, limit.is_some(), print)), reading)
}
