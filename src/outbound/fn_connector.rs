//! `FnConnector`: a connector made of a function.

use std::task::{Context, Poll};

use http::Uri;
use tower_service::Service;

/// Connector made of a function, like `tower::service_fn`.
#[derive(Clone)]
pub(crate) struct FnConnector<F>(pub(crate) F);

impl<F, C, S, E> Service<Uri> for FnConnector<F>
where
    F: Fn(Uri) -> C,
    C: Future<Output = Result<S, E>>,
{
    type Response = S;
    type Error = E;
    type Future = C;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> C {
        (self.0)(uri)
    }
}
