//! `ResponseFuture`: the future of a gated service.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Response, request::Parts};
use http_body::Body;
use pin_project::pin_project;

use super::{
    framework::Framework,
    gate_body::{BoxError, GateBody},
    settle::{PassedGate, settle_passed},
};
use crate::gate::Gate;

/// Response future of a gated service. Dropping it drops the gate's ticket.
#[pin_project]
pub struct ResponseFuture<C, R, E, G: Gate<Parts>, F> {
    #[pin]
    state: ResponseState<C, R, E, G, F>,
}

#[pin_project(project = ResponseStateProjection)]
pub(super) enum ResponseState<C, R, E, G: Gate<Parts>, F> {
    Inner(#[pin] C),
    /// Enters the gate or runs the call after it; resolves to the next state.
    Entering(BoxFuture<'static, Self>),
    /// With the gate's light ticket. Nothing of it is on the heap: most of these requests have
    /// nothing to settle.
    Calling(#[pin] C, Option<PassedGate<G, F>>),
    Ready(Option<Response<GateBody<R>>>),
    Settling(BoxFuture<'static, Result<Response<GateBody<R>>, E>>),
}

impl<C, R, E, G: Gate<Parts>, F> ResponseFuture<C, R, E, G, F> {
    pub(super) fn from_inner(call: C) -> Self {
        Self { state: ResponseState::Inner(call) }
    }

    pub(super) fn calling(call: C, passed: PassedGate<G, F>) -> Self {
        Self { state: ResponseState::Calling(call, Some(passed)) }
    }

    pub(super) fn ready(response: Response<GateBody<R>>) -> Self {
        Self { state: ResponseState::Ready(Some(response)) }
    }

    pub(super) fn settling(response: BoxFuture<'static, Result<Response<GateBody<R>>, E>>) -> Self {
        Self { state: ResponseState::Settling(response) }
    }

    pub(super) fn entering(
        future: impl Future<Output = ResponseState<C, R, E, G, F>> + Send + 'static,
    ) -> Self {
        Self { state: ResponseState::Entering(Box::pin(future)) }
    }
}

impl<C, R, E, G, F> Future for ResponseFuture<C, R, E, G, F>
where
    C: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Send + 'static,
    G: Gate<Parts>,
    F: Framework,
{
    type Output = Result<Response<F::ResponseBody<R>>, E>;

    #[expect(clippy::expect_used, reason = "a future that is polled after its end may panic")]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().state.project() {
            ResponseStateProjection::Inner(call) => {
                let response = ready!(call.poll(cx))?;
                Poll::Ready(Ok(response.map(|body| F::response_body(GateBody::from_inner(body)))))
            }
            ResponseStateProjection::Entering(future) => {
                let next = ready!(future.as_mut().poll(cx));
                self.as_mut().project().state.set(next);
                self.poll(cx)
            }
            ResponseStateProjection::Calling(call, passed) => {
                let mut call_result = ready!(call.poll(cx));
                let passed = passed.take().expect("polled after completion");
                let unsettled = if passed.is_settled() {
                    None
                } else {
                    passed.settle_with_headers(&mut call_result)
                };
                let Some(passed) = unsettled else {
                    let inner = |body| F::response_body(GateBody::from_inner(body));
                    return Poll::Ready(call_result.map(|response| response.map(inner)));
                };
                let outcome = passed.service_outcome(&call_result);
                let settled =
                    ResponseState::Settling(Box::pin(settle_passed(passed, call_result, outcome)));
                self.as_mut().project().state.set(settled);
                self.poll(cx)
            }
            ResponseStateProjection::Ready(response) => {
                // As with every future, polling after completion panics.
                let response = response.take().expect("polled after completion");
                Poll::Ready(Ok(response.map(F::response_body)))
            }
            ResponseStateProjection::Settling(future) => Poll::Ready(
                ready!(future.as_mut().poll(cx)).map(|response| response.map(F::response_body)),
            ),
        }
    }
}

impl<C, R, E, G: Gate<Parts>, F> fmt::Debug for ResponseFuture<C, R, E, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
