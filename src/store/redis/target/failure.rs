//! Why a connection could not be made.

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// Each caller gets an error of its own.
#[derive(Clone)]
pub(in super::super) enum Failure {
    Away,
    Config(String),
}

impl Failure {
    pub(in super::super) fn error(self) -> Error {
        match self {
            Self::Away => Error::new(ErrorKind::Unavailable, "connect"),
            Self::Config(sentence) => Error::config(sentence),
        }
    }

    /// A client could not even be made: of an address that was read, by its certificates.
    pub(super) fn unusable() -> Self {
        Self::Config(
            "the certificate or the key for the store can't be read; both are PEM".to_owned(),
        )
    }

    /// An error before any call was sent: nothing has run.
    pub(in super::super) fn of(error: &RedisError) -> Self {
        let config = |sentence: &str| Self::Config(sentence.to_owned());
        match error.kind() {
            RedisErrorKind::AuthenticationFailed => config("the store refused the password"),
            RedisErrorKind::Server(ServerErrorKind::NoPerm) => {
                config("the store's user may not run the commands lockgate needs")
            }
            RedisErrorKind::InvalidClientConfig => config("the store's URL can't be used"),
            _ if does_not_know(error) => config(
                "the store's server does not know a command that lockgate needs, as HELLO; it needs Redis 6.2 or newer, \
                 or Valkey, and commands by their own names",
            ),
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
                config("the store needs another password")
            }
            // `SELECT`; it will not have one later either.
            _ if error.detail().is_some_and(|text| text.contains("DB index")) => {
                config("the store's server has no database of this number")
            }
            _ => {
                #[cfg(feature = "tls")]
                if let Some(sentence) = super::tls::mistake(error) {
                    return Self::Config(sentence);
                }
                log(error);
                Self::Away
            }
        }
    }
}

/// It will not know it later either.
fn does_not_know(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|text| text.contains("unknown command"))
}

fn log(error: &RedisError) {
    if error.is_io_error() {
        tracing::debug!(%error, "no connection to the store");
    } else {
        // What a server says may repeat what it was sent, the password with it.
        tracing::debug!(kind = ?error.kind(), code = ?error.code(), "no connection to the store");
    }
}
