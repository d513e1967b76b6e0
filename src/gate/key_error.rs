//! `KeyError`: a request without a key, and the response to it.

use crate::{
    reply::{Reply, problem},
    throttle,
};

/// Reason why a request has no key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The router found no match, so there is nothing to protect; the response will be a 404.
    Unmatched,
    /// The application exempts requests without an address
    /// ([`MissingAddress::Skip`](super::MissingAddress::Skip)).
    Exempt,
    /// The request lacks the key, or its bytes can't be read.
    BadRequest(&'static str),
    /// The application is misconfigured; the text names the fix.
    Misconfigured(String),
}

impl KeyError {
    /// Returns true if the request may pass without a key.
    pub(crate) fn allows_passage(&self) -> bool {
        matches!(self, Self::Unmatched | Self::Exempt)
    }

    /// Returns the response, or `None` if the request may pass without a key.
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

/// Returns the log message for a request that lacks an extension.
pub(super) fn missing_extension_message<T>(name: &str) -> String {
    format!(
        "by_extension::<{0}>({name:?}) found no {0} in the request's extensions; put the layer \
         that inserts it outside this one",
        std::any::type_name::<T>()
    )
}
