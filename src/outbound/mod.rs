//! HTTP/1.1 client of webhooks and HTTP replays, on hyper-util's client and `hyper-rustls`.

#[cfg(all(test, any(feature = "webhook", feature = "http-replay-tls")))]
pub(crate) mod tests;
#[cfg(any(feature = "webhook", feature = "http-replay-tls"))]
mod tls;
/// Stub of the TLS functions for builds without the TLS features.
#[cfg(not(any(feature = "webhook", feature = "http-replay-tls")))]
mod tls {
    #[derive(Clone)]
    pub(crate) struct TlsClientConfig;

    pub(crate) fn with_tls<T>(tcp: T, _: &TlsClientConfig) -> T {
        tcp
    }

    pub(crate) fn system_tls_config(_: bool, _: &str) -> TlsClientConfig {
        TlsClientConfig
    }
}

use std::{
    error::Error,
    iter,
    task::{Context, Poll},
};

use http::Uri;
use tower_service::Service;

#[cfg(all(test, any(feature = "webhook", feature = "http-replay-tls")))]
pub(crate) use self::tls::tls_config_with_roots;
pub(crate) use self::tls::{TlsClientConfig, system_tls_config, with_tls};

pub(crate) type OutboundError = Box<dyn Error + Send + Sync>;

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

/// Formats an error with its sources. hyper-util's own text names only the phase that failed.
pub(crate) fn describe_error_chain(error: &dyn Error) -> String {
    let chain = iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
