//! [`CliError`]: why a command did not succeed.

use std::{error::Error as _, fmt};

use lockgate::admin::AdminError;

use crate::exit_status::ExitStatus;

/// Text for the operator, and the exit status of the program.
#[derive(Debug)]
pub(crate) struct CliError {
    text: String,
    status: ExitStatus,
}

impl CliError {
    pub(crate) fn negative(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: ExitStatus::Negative }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: ExitStatus::Failed }
    }

    pub(crate) fn not_confirmed() -> Self {
        Self {
            text: "nothing was done: not confirmed; pass --yes to skip the confirmation".to_owned(),
            status: ExitStatus::NotConfirmed,
        }
    }

    pub(crate) fn exit_status(&self) -> ExitStatus {
        self.status
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl From<lockgate::Error> for CliError {
    /// Takes the text of an error with its cause, which the text of some kinds contains already.
    fn from(error: lockgate::Error) -> Self {
        let text = error.to_string();
        Self::usage(match error.source().map(ToString::to_string) {
            Some(cause) if !text.contains(&cause) => format!("{text}: {cause}"),
            _ => text,
        })
    }
}

impl From<AdminError> for CliError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::NotPossible(text) => Self::negative(text),
            AdminError::Store(error) => error.into(),
            error => Self::usage(error.to_string()),
        }
    }
}
