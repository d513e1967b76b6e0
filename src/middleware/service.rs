//! `GateService`: the way of one request.

use std::{
    marker::PhantomData,
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, request::Parts};
use http_body::Body;
use tower_service::Service;

use super::{
    body::{BoxError, again, response},
    called::{Called, Under},
    detached::run,
    framework::{Framework, PartsView},
    future::{Kind, ResponseFuture},
    parking::any,
    settle::Passed,
    timed::Untimed,
};
use crate::gate::{Asked, Gate, Print, Reading, Verdict};

/// A service with a gate around it.
#[derive(Debug)]
pub struct GateService<S, G, F> {
    inner: S,
    /// Each request has one of its own, which is moved with its future.
    gate: Arc<G>,
    framework: PhantomData<F>,
}

impl<S, G, F> GateService<S, G, F> {
    pub(super) fn new(inner: S, gate: Arc<G>) -> Self {
        Self { inner, gate, framework: PhantomData }
    }
}

impl<S: Clone, G, F> Clone for GateService<S, G, F> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.gate))
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
                let mut passed = Passed::new(Arc::clone(&self.gate), quick, &parts.method);
                let detached = passed.detach();
                let call = self.inner.call(Request::from_parts(parts, body));
                match detached {
                    None => ResponseFuture::passing(call, passed),
                    Some(detached) => ResponseFuture::gated(run(call, passed, detached)),
                }
            }
            Asked::Enter(facts) => {
                // The service that was polled ready is the one to be called.
                let fresh = self.inner.clone();
                let inner = mem::replace(&mut self.inner, fresh);
                let gate = Arc::clone(&self.gate);
                let passage = Passage::<S, G, F> { inner, gate, framework: PhantomData };
                ResponseFuture::entering(passage.enter(facts, parts, body))
            }
        }
    }
}

pub(super) struct Passage<S, G, F> {
    pub(super) inner: S,
    pub(super) gate: Arc<G>,
    pub(super) framework: PhantomData<F>,
}

impl<S, G: Gate<Parts>, F: Framework> Passage<S, G, F> {
    /// Enters the gate, and says how the request goes on.
    #[expect(
        clippy::manual_async_fn,
        reason = "what an async fn is given lies in its future twice, and that must stay below 1 KiB: beyond it \
                  allocators have nothing at hand"
    )]
    pub(super) fn enter<B, R>(
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
                        Err(ticket) => self.call(ticket, parts, body),
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

    /// Calls the inner service under the ticket.
    fn call<B, R>(
        mut self,
        ticket: G::Ticket,
        parts: Parts,
        body: B,
    ) -> Kind<S::Future, R, S::Error, G, F>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body + Send + 'static,
    {
        let gate = self.gate;
        let head = parts.method == Method::HEAD;
        let print =
            gate.reads_along(&ticket, || (parts.method.as_str().to_owned(), F::target(&parts)));
        let (body, reading) = time::<B, F>(body, gate.body_deadline(&ticket), print);
        let (scope, watch) = (gate.within(&ticket), gate.watch(&ticket));
        let request = Request::from_parts(parts, body);
        // Called within the scope, not only polled: a layer further in asks its gate as it is called.
        let call = scope.step(|| self.inner.call(request));
        let under = Under { gate, ticket, head, reading };
        Kind::Entering(Box::pin(Called::new(scope.run(call), watch, under)))
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
