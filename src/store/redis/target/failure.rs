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
                tracing::debug!(%error, "no connection to the store");
                Self::Away
            }
        }
    }
}
