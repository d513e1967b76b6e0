//! [`ConsoleReply`]: a response of the console.

use std::fmt;

use super::snapshot_feed::ConsoleEvents;
use crate::reply::Reply;

/// Response of the console, for an integration to translate.
#[non_exhaustive]
pub enum ConsoleReply {
    /// A response with its body.
    Complete(Reply),
    /// The head of a response whose body is a stream.
    Events(Reply, ConsoleEvents),
}

impl fmt::Debug for ConsoleReply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete(reply) => formatter.debug_tuple("Complete").field(reply).finish(),
            Self::Events(reply, _) => formatter.debug_tuple("Events").field(reply).finish(),
        }
    }
}
