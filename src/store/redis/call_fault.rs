//! What an error means for the call that met it, and for its socket.

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value, parse_redis_value};

use super::connection_lanes::TrackedConnection;
use crate::error::{Error, ErrorKind};

/// What an error of the server or of the socket means for the call that met it.
pub(super) enum CallFault {
    /// The server does not know the script; it has not run.
    NoScript,
    /// The server would not run it: no master, still loading or busy, or another node has the shard.
    NotExecuted,
    /// The server would not run it, and will not for a while: it has no room, or may not write.
    WritesRejected,
    /// The connection broke: it may have run.
    ConnectionLost,
    /// No answer within the deadline: it may have run, or may yet.
    TimedOut,
    /// The server ran it and did not like it.
    Rejected,
}

/// An answer that came, an error of the server included. (A call whose caller has gone away tells nothing
/// about the socket.)
pub(super) fn classify_reply(
    socket: &TrackedConnection,
    answer: Result<Value, RedisError>,
) -> Result<Value, (CallFault, RedisError)> {
    let answer = match answer {
        Ok(Value::ServerError(error)) => Err(error.into()),
        other => other,
    };
    classify_outcome(socket, answer.map_err(unwrap_script_error))
}

/// What a command was told within a script. Before Redis 7.0 it stands in the text of another error, as in
/// `ERR Error running script (call to f_..): @user_script:1: @user_script: 1: -OOM command not allowed ..`.
fn unwrap_script_error(error: RedisError) -> RedisError {
    let inner = error.detail().and_then(|text| {
        let (_, inner) = text.strip_prefix("Error running script")?.split_once("@user_script: ")?;
        let (line, told) = inner.split_once(": -")?;
        let is_one = line.bytes().all(|byte| byte.is_ascii_digit())
            && told.starts_with(|c: char| c.is_ascii_uppercase());
        is_one.then_some(told)
    });
    match inner.map(|told| parse_redis_value(format!("-{told}\r\n").as_bytes())) {
        Some(Ok(Value::ServerError(inner))) => inner.into(),
        _ => error,
    }
}

pub(super) fn classify_outcome<T>(
    socket: &TrackedConnection,
    answer: Result<T, RedisError>,
) -> Result<T, (CallFault, RedisError)> {
    match &answer {
        // That is no answer: the connection may be half open.
        Err(error) if error.is_timeout() => socket.record_timeout(),
        _ => socket.record_answer(),
    }
    if answer.is_ok() && socket.is_untrusted() {
        let left = (RedisErrorKind::Io, "the connection was left before this was answered");
        return Err((CallFault::ConnectionLost, left.into()));
    }
    answer.map_err(first_server_error).map_err(|error| (CallFault::classify(&error, socket), error))
}

/// What the first that failed of several commands was told: of all together the library knows neither code nor text.
fn first_server_error(error: RedisError) -> RedisError {
    match error.clone().into_server_errors().as_deref() {
        Some([(_, first), ..]) => first.clone().into(),
        _ => error,
    }
}

impl CallFault {
    fn classify(error: &RedisError, socket: &TrackedConnection) -> Self {
        match error.kind() {
            RedisErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,
            RedisErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown,
            ) => {
                socket.mark_dead();
                Self::NotExecuted
            }
            // Of a cluster. The slot has moved (the map learns where to), is on its way (nothing is begun there: see
            // `target::cluster`), or nobody answers for it. The node itself is well.
            RedisErrorKind::Server(
                ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown,
            ) if let Some(place) = &socket.node => {
                place.handle_redirect(error);
                Self::NotExecuted
            }
            RedisErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::TryAgain) => {
                socket.mark_dead();
                Self::NotExecuted
            }
            // Codes the library has no name for come as extensions. A script of somebody else's takes its time; the
            // connection is well.
            _ if error.code() == Some("BUSY") => Self::NotExecuted,
            // Before the first write of a script, or not at all.
            _ if matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS")) => {
                Self::WritesRejected
            }
            RedisErrorKind::Server(_)
            | RedisErrorKind::Extension
            | RedisErrorKind::UnexpectedReturnType => Self::Rejected,
            _ if error.is_timeout() => Self::TimedOut,
            _ => {
                socket.mark_broken();
                Self::ConnectionLost
            }
        }
    }

    pub(super) fn into_error(self, name: &'static str, error: RedisError) -> Error {
        let kind = match self {
            Self::NotExecuted | Self::WritesRejected => ErrorKind::Unavailable,
            Self::ConnectionLost | Self::TimedOut => ErrorKind::Timeout,
            Self::NoScript | Self::Rejected => ErrorKind::Protocol,
        };
        if matches!(self, Self::WritesRejected) {
            crate::throttle::throttled!(
                warn,
                %error, script = name, "the store has no room, or may not write"
            );
        }
        if kind == ErrorKind::Protocol {
            crate::throttle::throttled!(error, %error, script = name, "the store refused a script");
        }
        Error::new(kind, name).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Option<String> {
        match parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => {
                unwrap_script_error(error.into()).code().map(str::to_owned)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The texts are those of Redis 6.2.16.
    #[test]
    fn what_a_command_was_told_in_a_script_is_what_the_script_was_told() {
        let begin = "ERR Error running script (call to f_0a9f75e991483d02789696e4c90d26c10395863e): @user_script:1: @user_script: 1: ";
        for (code, text) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("NOREPLICAS", "Not enough good replicas to write."),
            ("READONLY", "You can't write against a read only replica."),
        ] {
            assert_eq!(told(&format!("{begin}-{code} {text}")).as_deref(), Some(code));
            assert_eq!(told(&format!("{code} {text}")).as_deref(), Some(code));
        }
        for other in ["user_script:1: attempt to index a nil value", "x: -OOM y", "-"] {
            assert_eq!(told(&format!("{begin}{other}")).as_deref(), Some("ERR"), "{other}");
        }
    }
}
