//! [`AdminError`]: why an action was not done.

use std::fmt;

use crate::error::Error;

/// Reason why an action of an operator was not done.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AdminError {
    /// The operator lacks the permission. The attempt is in the audit log.
    NotPermitted,
    /// An argument has no usable value. The text names the fix.
    Invalid(String),
    /// The target does not exist, or is in a state in which the action is not possible.
    NotPossible(String),
    /// The store failed. If the error is a [`Timeout`](crate::ErrorKind::Timeout), the action may
    /// have been done.
    Store(Error),
}

impl fmt::Display for AdminError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => formatter.write_str("the operator may not do that"),
            Self::Invalid(text) | Self::NotPossible(text) => formatter.write_str(text),
            Self::Store(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for AdminError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}
