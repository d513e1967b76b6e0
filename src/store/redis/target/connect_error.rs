//! Errors of connection attempts.

use redis::{ConnectionAddr, ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// Reason why a connection could not be made. Each caller gets a clone.
#[derive(Clone)]
pub(in super::super) enum ConnectError {
    Unavailable,
    /// No connection could be made, for this reason: address and cause, without the login.
    Unreachable(String),
    /// The server answers and refuses the connection for now, with this reason.
    Refused(String),
    Config(String),
}

impl ConnectError {
    pub(in super::super) fn into_error(self) -> Error {
        match self {
            Self::Unavailable => Error::new(ErrorKind::Unavailable, "connect"),
            Self::Unreachable(sentence) | Self::Refused(sentence) => {
                Error::new(ErrorKind::Unavailable, "connect").with_source(sentence)
            }
            Self::Config(sentence) => Error::config(sentence),
        }
    }

    /// Adds the server's address to an outage.
    pub(super) fn at(self, address: &ConnectionAddr) -> Self {
        match self {
            Self::Unavailable => Self::Unreachable(format!("{address}: no connection")),
            Self::Unreachable(cause) => Self::Unreachable(format!("{address}: {cause}")),
            Self::Refused(sentence) => Self::Refused(format!("{address}: {sentence}")),
            Self::Config(sentence) => Self::Config(sentence),
        }
    }

    /// Returns the error of a client that could not be created. The address was parsed, so the
    /// certificates are invalid.
    pub(super) fn invalid_certificates() -> Self {
        Self::Config(
            "the client certificate or its key could not be parsed; both must be PEM".to_owned(),
        )
    }

    /// Classifies an error that occurred before any call was sent: nothing has run.
    pub(in super::super) fn from_redis(error: &RedisError) -> Self {
        if let Some(sentence) = missing_permission(error) {
            return Self::Config(sentence);
        }
        let config = |sentence: &str| Self::Config(sentence.to_owned());
        match error.kind() {
            RedisErrorKind::AuthenticationFailed => config("the server rejected the password"),
            RedisErrorKind::InvalidClientConfig => config("the store's URL is invalid"),
            _ if is_unsupported(error) => config(
                "the server lacks a command that lockgate needs, such as HELLO; lockgate needs \
                 Redis 6.2 or newer, or Valkey, without renamed commands",
            ),
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
                config("the server needs another password")
            }
            // The reply to `SELECT`; a retry would get the same one.
            _ if error.detail().is_some_and(|text| text.contains("DB index")) => {
                config("the server has no database of this number")
            }
            _ => {
                #[cfg(feature = "tls")]
                if let Some(sentence) = super::redis_tls_settings::certificate_error(error) {
                    return Self::Config(sentence);
                }
                log_failure(error);
                match refusal_message(error) {
                    Some(sentence) => Self::Refused(sentence),
                    // A text of the operating system. One of the server may repeat the input,
                    // including the password.
                    None if error.is_io_error() => Self::Unreachable(error.to_string()),
                    None => Self::Unavailable,
                }
            }
        }
    }
}

/// Error codes of refusals with a fixed text.
const REFUSAL_CODES: [&str; 6] =
    ["LOADING", "MASTERDOWN", "BUSY", "DENIED", "CLUSTERDOWN", "MISCONF"];

/// Maximum length of a refusal in messages. (The text of the protected mode is long.)
const MAX_MESSAGE_CHARS: usize = 120;

/// Returns the server's message if it is a fixed text. Other messages may repeat the input,
/// including the password.
fn refusal_message(error: &RedisError) -> Option<String> {
    let (code, text) = (error.code()?, error.detail().unwrap_or_default());
    // Redis says `max number of clients reached`, in a cluster `max number of clients + cluster
    // connections reached`.
    let is_full = code == "ERR" && text.starts_with("max number of clients");
    let short: String = text.chars().take(MAX_MESSAGE_CHARS).collect();
    (is_full || REFUSAL_CODES.contains(&code)).then(|| format!("{code} {short}"))
}

/// Returns true if the server lacks a required command or protocol; a retry would fail too.
fn is_unsupported(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|text| text.contains("unknown command"))
}

/// Returns a message that names the missing permission of the store's user, if that is the error.
/// In scripts, the server's text differs, also between its versions.
pub(in super::super) fn missing_permission(error: &RedisError) -> Option<String> {
    let text = error.detail().unwrap_or_default();
    let in_a_script = text.contains("The user executing the script can't")
        || text.contains("ACL failure in script");
    if !in_a_script && error.kind() != RedisErrorKind::Server(ServerErrorKind::NoPerm) {
        return None;
    }
    let missing = if text.contains("channel") {
        "publish to lockgate's channels; allow `&lg:1:NAMESPACE:*`".to_owned()
    } else if text.contains("key") {
        "use lockgate's keys; allow `~lg:1:NAMESPACE:*`".to_owned()
    } else if let Some((command, _)) =
        text.split_once("the '").and_then(|(_, t)| t.split_once("' c"))
    {
        format!("run `{command}`, which lockgate needs")
    } else {
        "run all commands that lockgate's scripts need, such as TIME and PUBLISH".to_owned()
    };
    Some(format!("the store's user may not {missing} (see `StoreBuilder::login`)"))
}

fn log_failure(error: &RedisError) {
    if error.is_io_error() {
        tracing::debug!(%error, "connection to the store failed");
    } else {
        // A message of the server may repeat the input, including the password.
        tracing::debug!(kind = ?error.kind(), code = ?error.code(), "connection to the store failed");
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn missing_permission_of(text: &str) -> Option<String> {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => missing_permission(&error.into()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_outage_names_address_and_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let address = ConnectionAddr::Tcp("redis.internal".to_owned(), 6379);
        let failure = ConnectError::from_redis(&RedisError::from(refused)).at(&address);
        let text = failure.into_error().to_string();
        assert!(
            text.starts_with("connect: the store is unavailable: redis.internal:6379: ")
                && text.contains("refused"),
            "{text}"
        );
    }

    /// Texts of Redis 6.2, 7.0 and 7.2.
    #[test]
    fn permission_errors_name_the_missing_permission() {
        for (text, expected) in [
            (
                "@user_script: 5: The user executing the script can't run this command or subcommand",
                "TIME",
            ),
            ("ERR The user executing the script can't run this command or subcommand", "TIME"),
            (
                "ERR ACL failure in script: User app has no permissions to run the 'time' command",
                "`time`",
            ),
            ("NOPERM this user has no permissions to run the 'eval' command", "`eval`"),
            ("NOPERM User app has no permissions to run the 'hdel' command", "`hdel`"),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command",
                "&lg:1:",
            ),
            (
                "ERR ACL failure in script: User app has no permissions to access the 'x' channel",
                "&lg:1:",
            ),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                "&lg:1:",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                "~lg:1:",
            ),
        ] {
            let sentence = missing_permission_of(text).expect(text);
            assert!(sentence.contains(expected), "{text}: {sentence}");
        }
        assert_eq!(missing_permission_of("ERR user_script:1: attempt to index a nil value"), None);
        assert_eq!(missing_permission_of("LOADING Redis is loading the dataset in memory"), None);
    }
}
