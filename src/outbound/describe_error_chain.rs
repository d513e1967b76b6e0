//! Text of an error of an outbound call, with its sources.

use std::{error::Error, iter};

pub(crate) type OutboundError = Box<dyn Error + Send + Sync>;

/// Formats an error with its sources. hyper-util's own text names only the phase that failed.
pub(crate) fn describe_error_chain(error: &dyn Error) -> String {
    let chain = iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
