//! Why a request has no key, and what it is told then.

use crate::{
    reply::{Reply, problem},
    throttle::{self, throttled},
};

/// Why there is no key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The router matched nothing, so there is nothing to protect: this looks like a 404.
    Unmatched,
    /// The application has said that such a request needs none ([`MissingAddress::Skip`](super::MissingAddress)).
    Exempt,
    /// The client's request lacks it, or its bytes can't be read.
    BadRequest(&'static str),
    /// The application is wired so that it can't be had; the text names the fix.
    Misconfigured(String),
}

impl KeyError {
    /// True if the request may pass untouched.
    pub(crate) fn allows_passage(&self) -> bool {
        matches!(self, Self::Unmatched | Self::Exempt)
    }

    /// The answer, or `None` if the request may pass untouched.
    pub(crate) fn into_reply(self, layer: &str) -> Option<Reply> {
        match self {
            Self::Unmatched | Self::Exempt => None,
            Self::BadRequest(title) => Some(Reply::problem(400, problem::BAD_KEY, title)),
            Self::Misconfigured(fix) => {
                if let Some(suppressed) = throttle::admit(&fix) {
                    tracing::error!(layer, suppressed, "request refused: {fix}");
                }
                Some(Reply::misconfigured())
            }
        }
    }
}

/// Logs that a handler asks for what no layer has put there, once a minute.
pub fn log_missing_layer(extractor: &str, needs: &str) {
    throttled!(error, extractor, "nothing to extract: the route needs {needs}");
}

/// Logs that a middleware keeps a request that a gate has to change, once a minute.
pub fn log_shared_request() {
    throttled!(
        error,
        "request refused: a middleware around the layer keeps an `HttpRequest` while its request goes on, so its \
         fields can't be changed; let it take what it needs of it before"
    );
}

/// What is wrong with a request that lacks an extension.
#[must_use]
pub fn missing_extension_message<T>(name: &str) -> String {
    format!(
        "by_extension::<{0}>({name:?}) sees no {0} in the request's extensions; put the layer that inserts it \
         outside this one",
        std::any::type_name::<T>()
    )
}
