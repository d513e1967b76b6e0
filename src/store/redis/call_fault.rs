//! Classification of errors: their meaning for the call and for its connection.

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value, parse_redis_value};

use super::connection_lanes::TrackedConnection;
use crate::error::{Error, ErrorKind};

/// Fault of a call, by the reaction that it allows.
pub(super) enum CallFault {
    /// The server does not know the script, which has not run.
    NoScript,
    /// The server did not run it: it is no master, is loading or busy, or another cluster node owns
    /// the shard.
    NotExecuted,
    /// The server did not run it and will not for some time: it is out of memory, or may not write.
    WritesRejected,
    /// The connection broke: it may have run.
    ConnectionLost,
    /// No reply within the deadline: it may have run, or may run later.
    TimedOut,
    /// The server rejected it.
    Rejected,
}

/// Classifies a reply, which may be an error of the server, and records it for the connection. (A
/// dropped call says nothing about its connection.)
pub(super) fn classify_reply(
    connection: &TrackedConnection,
    outcome: Result<Value, RedisError>,
) -> Result<Value, (CallFault, RedisError)> {
    let outcome = match outcome {
        Ok(Value::ServerError(error)) => Err(error.into()),
        other => other,
    };
    classify_outcome(connection, outcome.map_err(unwrap_script_error))
}

/// Returns the error that a command met inside of a script. Before Redis 7.0 it is part of the text
/// of another error, such as
/// `ERR Error running script (call to f_..): @user_script:1: @user_script: 1: -OOM command ..`.
fn unwrap_script_error(error: RedisError) -> RedisError {
    let inner = error.detail().and_then(|text| {
        let (_, inner) = text.strip_prefix("Error running script")?.split_once("@user_script: ")?;
        let (line_number, message) = inner.split_once(": -")?;
        let is_server_error = line_number.bytes().all(|byte| byte.is_ascii_digit())
            && message.starts_with(|c: char| c.is_ascii_uppercase());
        is_server_error.then_some(message)
    });
    match inner.map(|message| parse_redis_value(format!("-{message}\r\n").as_bytes())) {
        Some(Ok(Value::ServerError(inner))) => inner.into(),
        _ => error,
    }
}

pub(super) fn classify_outcome<T>(
    connection: &TrackedConnection,
    outcome: Result<T, RedisError>,
) -> Result<T, (CallFault, RedisError)> {
    match &outcome {
        // No reply came: the connection may be half open.
        Err(error) if error.is_timeout() => connection.record_timeout(),
        _ => connection.record_answer(),
    }
    if outcome.is_ok() && connection.is_untrusted() {
        let abandoned = (RedisErrorKind::Io, "the connection was given up before the reply");
        return Err((CallFault::ConnectionLost, abandoned.into()));
    }
    outcome
        .map_err(first_server_error)
        .map_err(|error| (CallFault::classify(&error, connection), error))
}

/// Returns the error of the first command that failed. For a pipeline as a whole, redis-rs reports
/// neither code nor text.
fn first_server_error(error: RedisError) -> RedisError {
    match error.clone().into_server_errors().as_deref() {
        Some([(_, first), ..]) => first.clone().into(),
        _ => error,
    }
}

impl CallFault {
    fn classify(error: &RedisError, connection: &TrackedConnection) -> Self {
        match error.kind() {
            RedisErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,
            RedisErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown,
            ) => {
                connection.mark_dead();
                Self::NotExecuted
            }
            // Only in a cluster. The slot has moved (the map learns where), is migrating (no script
            // is started there, see `target::cluster`), or has no owner. The cluster node itself
            // works.
            RedisErrorKind::Server(
                ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown,
            ) if connection.node.is_some() => {
                if let Some(node) = &connection.node {
                    node.handle_redirect(error);
                }
                Self::NotExecuted
            }
            RedisErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::TryAgain) => {
                connection.mark_dead();
                Self::NotExecuted
            }
            // redis-rs reports codes that it has no name for as extensions. A script of another
            // client is running; the connection works.
            _ if error.code() == Some("BUSY") => Self::NotExecuted,
            // Refused before the first write of the script, or before its start.
            _ if matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS")) => {
                Self::WritesRejected
            }
            RedisErrorKind::Server(_)
            | RedisErrorKind::Extension
            | RedisErrorKind::UnexpectedReturnType => Self::Rejected,
            _ if error.is_timeout() => Self::TimedOut,
            _ => {
                connection.mark_broken();
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
                %error, script = name, "the server is out of memory or refuses writes"
            );
        }
        if kind == ErrorKind::Protocol {
            crate::throttle::throttled!(error, %error, script = name, "a script failed");
        }
        Error::new(kind, name).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script_error_code(text: &str) -> Option<String> {
        match parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => {
                unwrap_script_error(error.into()).code().map(str::to_owned)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The texts are those of Redis 6.2.16.
    #[test]
    fn error_of_command_in_script_is_reported_as_its_own_code() {
        let begin = "ERR Error running script (call to f_0a9f75e991483d02789696e4c90d26c10395863e): @user_script:1: @user_script: 1: ";
        for (code, text) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("NOREPLICAS", "Not enough good replicas to write."),
            ("READONLY", "You can't write against a read only replica."),
        ] {
            assert_eq!(script_error_code(&format!("{begin}-{code} {text}")).as_deref(), Some(code));
            assert_eq!(script_error_code(&format!("{code} {text}")).as_deref(), Some(code));
        }
        for other in ["user_script:1: attempt to index a nil value", "x: -OOM y", "-"] {
            assert_eq!(
                script_error_code(&format!("{begin}{other}")).as_deref(),
                Some("ERR"),
                "{other}"
            );
        }
    }
}
