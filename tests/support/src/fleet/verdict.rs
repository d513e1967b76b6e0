//! The result of a history.

use std::{fmt, path::PathBuf};

use crate::checker::Violation;

/// The result of a history.
#[derive(Debug)]
pub struct Verdict {
    /// What was done and seen, a line each.
    pub told: Vec<String>,
    /// Empty if all is well.
    pub wrong: Vec<Violation>,
    /// The folder of the logs, if something is wrong.
    pub logs: Option<PathBuf>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.told {
            writeln!(f, "{line}")?;
        }
        for wrong in &self.wrong {
            writeln!(f, "{wrong}")?;
        }
        match &self.logs {
            Some(logs) => writeln!(f, "the logs are in {}", logs.display()),
            None => writeln!(f, "all checks passed"),
        }
    }
}
