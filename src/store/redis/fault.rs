//! What an error means for the call that met it, and for its socket.

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value};

use super::connect::Socket;
use crate::error::{Error, ErrorKind};

/// What an error of the server or of the socket means for the call that met it.
pub(super) enum Fault {
    /// The server does not know the script; it has not run.
    NoScript,
    /// The server would not run it: no master, still loading or busy, or another node has the shard.
    NotRun,
    /// The server would not run it, and will not for a while: it has no room, or may not write.
    Full,
    /// The connection broke: it may have run.
    Broken,
    /// No answer within the deadline: it may have run, or may yet.
    Late,
    /// The server ran it and did not like it.
    Refused,
}

/// An answer that came, an error of the server included. (A call whose caller has gone away tells nothing
/// about the socket.)
pub(super) fn answer_of(
    socket: &Socket,
    answer: Result<Value, RedisError>,
) -> Result<Value, (Fault, RedisError)> {
    let answer = match answer {
        Ok(Value::ServerError(error)) => Err(error.into()),
        other => other,
    };
    judged(socket, answer)
}

pub(super) fn judged<T>(
    socket: &Socket,
    answer: Result<T, RedisError>,
) -> Result<T, (Fault, RedisError)> {
    socket.answered();
    if answer.is_ok() && socket.is_in_doubt() {
        let left = (RedisErrorKind::Io, "the connection was left before this was answered");
        return Err((Fault::Broken, left.into()));
    }
    answer.map_err(|error| (Fault::of(&error, socket), error))
}

impl Fault {
    fn of(error: &RedisError, socket: &Socket) -> Self {
        match error.kind() {
            RedisErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,
            RedisErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown,
            ) => {
                socket.condemn();
                Self::NotRun
            }
            // Of a cluster. The slot has moved (the map learns where to), is on its way (nothing is begun there: see
            // `target::cluster`), or nobody answers for it. The node itself is well.
            RedisErrorKind::Server(
                ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown,
            ) if let Some(place) = &socket.place => {
                place.redirected(error);
                Self::NotRun
            }
            RedisErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::TryAgain) => {
                socket.condemn();
                Self::NotRun
            }
            // Codes the library has no name for come as extensions. A script of somebody else's takes its time; the
            // connection is well.
            _ if error.code() == Some("BUSY") => Self::NotRun,
            // Before the first write of a script, or not at all.
            _ if matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS")) => Self::Full,
            RedisErrorKind::Server(_)
            | RedisErrorKind::Extension
            | RedisErrorKind::UnexpectedReturnType => Self::Refused,
            _ if error.is_timeout() => Self::Late,
            _ => {
                socket.broke();
                Self::Broken
            }
        }
    }

    pub(super) fn explain(self, name: &'static str, error: RedisError) -> Error {
        let kind = match self {
            Self::NotRun | Self::Full => ErrorKind::Unavailable,
            Self::Broken | Self::Late => ErrorKind::Timeout,
            Self::NoScript | Self::Refused => ErrorKind::Protocol,
        };
        if matches!(self, Self::Full) {
            tracing::warn!(%error, script = name, "the store has no room, or may not write");
        }
        if kind == ErrorKind::Protocol {
            tracing::error!(%error, script = name, "the store refused a script");
        }
        Error::new(kind, name).with(error)
    }
}
