//! `ResponseFuture`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use http::Response;
use pin_project::pin_project;

use super::body::GateBody;

/// Response future of a gated service. Dropping it drops the gate's ticket.
#[pin_project]
pub struct ResponseFuture<F, R, E> {
    #[pin]
    kind: Kind<F, R, E>,
}

#[pin_project(project = KindProjection)]
enum Kind<F, R, E> {
    Inner(#[pin] F),
    Ready(Option<Response<GateBody<R>>>),
    Gated(BoxFuture<'static, Result<Response<GateBody<R>>, E>>),
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(super) fn inner(future: F) -> Self {
        Self { kind: Kind::Inner(future) }
    }

    pub(super) fn ready(response: Response<GateBody<R>>) -> Self {
        Self { kind: Kind::Ready(Some(response)) }
    }

    pub(super) fn gated(
        future: impl Future<Output = Result<Response<GateBody<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { kind: Kind::Gated(Box::pin(future)) }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<GateBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Inner(future) => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(GateBody::inner)))
            }
            KindProjection::Ready(response) => {
                // As every future: not to be polled after it is done.
                Poll::Ready(Ok(response.take().expect("polled after completion")))
            }
            KindProjection::Gated(future) => future.as_mut().poll(cx),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
