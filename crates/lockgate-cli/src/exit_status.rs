//! [`ExitStatus`]: the exit codes of the program.

use std::process::ExitCode;

/// Part of the help text that lists the exit codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done, or nothing is wrong
  1  not found, not possible in this state, or `check` left something
  2  wrong arguments, or the store did not answer
  3  of `check`: the namespace is empty, so its name may be mistyped
  4  not confirmed";

/// Result of a command, as scripts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Done,
    /// The command was understood and answered, and the answer is no.
    Negative,
    Failed,
    /// Not `Done`, since a command with a wrong URL would then succeed every time without being
    /// noticed.
    EmptyNamespace,
    NotConfirmed,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(match status {
            ExitStatus::Done => 0,
            ExitStatus::Negative => 1,
            ExitStatus::Failed => 2,
            ExitStatus::EmptyNamespace => 3,
            ExitStatus::NotConfirmed => 4,
        })
    }
}
