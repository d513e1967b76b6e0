//! `ResponseFuture`.

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
    body::{BoxError, GateBody},
    framework::Framework,
    settle::{Passed, settle},
};
use crate::gate::Gate;

/// Response future of a gated service. Dropping it drops the gate's ticket.
#[pin_project]
pub struct ResponseFuture<C, R, E, G: Gate<Parts>, F> {
    #[pin]
    kind: Kind<C, R, E, G, F>,
}

#[pin_project(project = KindProjection)]
pub(super) enum Kind<C, R, E, G: Gate<Parts>, F> {
    Inner(#[pin] C),
    /// The entering, or the call that comes after it, and then what comes after that.
    Entering(BoxFuture<'static, Self>),
    /// With the gate's ticket. Nothing of it is on the heap: most of these have nothing to settle.
    Passing(#[pin] C, Option<Passed<G, F>>),
    Ready(Option<Response<GateBody<R>>>),
    Gated(BoxFuture<'static, Result<Response<GateBody<R>>, E>>),
}

impl<C, R, E, G: Gate<Parts>, F> ResponseFuture<C, R, E, G, F> {
    pub(super) fn inner(call: C) -> Self {
        Self { kind: Kind::Inner(call) }
    }

    pub(super) fn passing(call: C, passed: Passed<G, F>) -> Self {
        Self { kind: Kind::Passing(call, Some(passed)) }
    }

    pub(super) fn ready(response: Response<GateBody<R>>) -> Self {
        Self { kind: Kind::Ready(Some(response)) }
    }

    pub(super) fn gated(answer: BoxFuture<'static, Result<Response<GateBody<R>>, E>>) -> Self {
        Self { kind: Kind::Gated(answer) }
    }

    pub(super) fn entering(
        future: impl Future<Output = Kind<C, R, E, G, F>> + Send + 'static,
    ) -> Self {
        Self { kind: Kind::Entering(Box::pin(future)) }
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
    type Output = Result<Response<F::Answer<R>>, E>;

    #[expect(clippy::expect_used, reason = "a future that is polled after its end may panic")]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().kind.project() {
            KindProjection::Inner(call) => {
                let response = ready!(call.poll(cx))?;
                Poll::Ready(Ok(response.map(|body| F::answer(GateBody::inner(body)))))
            }
            KindProjection::Entering(future) => {
                let next = ready!(future.as_mut().poll(cx));
                self.as_mut().project().kind.set(next);
                self.poll(cx)
            }
            KindProjection::Passing(call, passed) => {
                let mut ended = ready!(call.poll(cx));
                let passed = passed.take().expect("polled after completion");
                let unsettled = if passed.is_settled() { None } else { passed.part(&mut ended) };
                let Some(passed) = unsettled else {
                    let inner = |body| F::answer(GateBody::inner(body));
                    return Poll::Ready(ended.map(|answer| answer.map(inner)));
                };
                let outcome = passed.outcome(&ended);
                let settled = Kind::Gated(Box::pin(settle(passed, ended, outcome)));
                self.as_mut().project().kind.set(settled);
                self.poll(cx)
            }
            KindProjection::Ready(response) => {
                // As every future: not to be polled after it is done.
                let response = response.take().expect("polled after completion");
                Poll::Ready(Ok(response.map(F::answer)))
            }
            KindProjection::Gated(future) => {
                Poll::Ready(ready!(future.as_mut().poll(cx)).map(|answer| answer.map(F::answer)))
            }
        }
    }
}

impl<C, R, E, G: Gate<Parts>, F> fmt::Debug for ResponseFuture<C, R, E, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
