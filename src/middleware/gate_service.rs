//! `GateService`: a service with a gate around it, and the steps of one request through it.

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
    detached_call::spawn_detached,
    framework::Framework,
    gate_body::BoxError,
    guarded_call::{CallContext, GuardedCall},
    parked_request::box_request,
    parts_view::PartsView,
    reply_response::{response_from_reply, shared_response},
    response_future::{ResponseFuture, ResponseState},
    settle::PassedGate,
    timed_and_hashed_body::UntimedBody,
};
use crate::gate::{BodyTimeoutWatch, Gate, InitialVerdict, RequestFingerprint, Verdict};

/// Service with a gate around it.
#[derive(Debug)]
pub struct GateService<S, G, F> {
    inner: S,
    /// The future of each request has a clone.
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
    type Response = Response<F::ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error, G, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        match self.gate.inspect(&mut PartsView::<F>::new(&mut parts)) {
            InitialVerdict::Skip => {
                ResponseFuture::from_inner(self.inner.call(Request::from_parts(parts, body)))
            }
            InitialVerdict::Answer(reply) => ResponseFuture::ready(response_from_reply(reply)),
            InitialVerdict::SharedAnswer(reply) => ResponseFuture::ready(shared_response(&reply)),
            InitialVerdict::PassLight(light_ticket) => {
                let mut passed =
                    PassedGate::new(Arc::clone(&self.gate), light_ticket, &parts.method);
                let detached = passed.try_detach();
                let call = self.inner.call(Request::from_parts(parts, body));
                match detached {
                    None => ResponseFuture::calling(call, passed),
                    Some(detached) => {
                        ResponseFuture::settling(spawn_detached(call, passed, detached))
                    }
                }
            }
            InitialVerdict::Enter(context) => {
                // The clone that was polled ready must be the one that is called.
                let clone_for_next_call = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone_for_next_call);
                let gate = Arc::clone(&self.gate);
                let driver = GateDriver::<S, G, F> { inner, gate, framework: PhantomData };
                ResponseFuture::entering(driver.enter(context, parts, body))
            }
        }
    }
}

pub(super) struct GateDriver<S, G, F> {
    pub(super) inner: S,
    pub(super) gate: Arc<G>,
    pub(super) framework: PhantomData<F>,
}

impl<S, G: Gate<Parts>, F: Framework> GateDriver<S, G, F> {
    /// Enters the gate and returns the next state of the request.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn stores its arguments twice in its future, which must stay below 1 \
         KiB: allocators cache no larger blocks"
    )]
    pub(super) fn enter<B, R>(
        mut self,
        context: G::EntryContext,
        mut parts: Parts,
        body: B,
    ) -> impl Future<Output = ResponseState<S::Future, R, S::Error, G, F>> + Send + 'static
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body + Send + 'static,
    {
        async move {
            match self.gate.enter(context).await {
                Verdict::Pass(ticket) => {
                    self.gate.annotate_request(&ticket, &mut PartsView::<F>::new(&mut parts));
                    match self.gate.try_light_ticket(ticket) {
                        Ok(light_ticket) => {
                            let passed = PassedGate::new(self.gate, light_ticket, &parts.method);
                            let call = self.inner.call(Request::from_parts(parts, body));
                            ResponseState::Calling(call, Some(passed))
                        }
                        Err(ticket) => self.call_inner(ticket, parts, body),
                    }
                }
                Verdict::Answer(reply) => ResponseState::Ready(Some(response_from_reply(reply))),
                Verdict::Busy(reply, slot) => {
                    if let Some(slot) = slot {
                        slot.park_request(box_request(Request::from_parts(parts, body)));
                    }
                    ResponseState::Ready(Some(response_from_reply(reply)))
                }
            }
        }
    }

    /// Calls the inner service under the ticket.
    fn call_inner<B, R>(
        mut self,
        ticket: G::Ticket,
        parts: Parts,
        body: B,
    ) -> ResponseState<S::Future, R, S::Error, G, F>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        R: Body + Send + 'static,
    {
        let gate = self.gate;
        let is_head = parts.method == Method::HEAD;
        let fingerprint = gate
            .body_fingerprint(&ticket, || (parts.method.as_str().to_owned(), F::target(&parts)));
        let (body, timeout_watch) =
            time_request_body::<B, F>(body, gate.body_read_timeout(&ticket), fingerprint);
        let (request_scope, cancellation) =
            (gate.request_scope(&ticket), gate.cancellation(&ticket));
        let request = Request::from_parts(parts, body);
        // `call` is within the scope too, since an inner layer inspects its request there.
        let call = request_scope.run_sync(|| self.inner.call(request));
        let call_context = CallContext { gate, ticket, is_head, timeout_watch };
        ResponseState::Entering(Box::pin(GuardedCall::new(
            request_scope.run(call),
            cancellation,
            call_context,
        )))
    }
}

/// Times a request body and attaches its fingerprint. A body at its end needs no timer, and its
/// fingerprint is complete.
fn time_request_body<B, F>(
    body: B,
    limit: Option<Duration>,
    fingerprint: Option<RequestFingerprint>,
) -> (B, Option<BodyTimeoutWatch>)
where
    B: Body<Data = Bytes> + Send + 'static,
    F: Framework,
{
    if body.is_end_stream() {
        fingerprint.iter().for_each(RequestFingerprint::finish);
        return (body, None);
    }
    if limit.is_none() && fingerprint.is_none() {
        return (body, None);
    }
    // Without a limit the driver's end is dropped, which disarms the timer.
    let (timeout_watch, timer) = BodyTimeoutWatch::new(limit.unwrap_or_default());
    let timeout_watch = limit.map(|_| timeout_watch);
    (F::time_body(UntimedBody::new(body, timer, limit.is_some(), fingerprint)), timeout_watch)
}
