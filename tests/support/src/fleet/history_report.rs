//! `HistoryReport`: the result of a history.

use std::{fmt, path::PathBuf};

use crate::checker::Violation;

/// The result of a history.
#[derive(Debug)]
pub struct HistoryReport {
    /// What was done and seen, a line each.
    pub lines: Vec<String>,
    /// Empty if all is well.
    pub violations: Vec<Violation>,
    /// The folder of the logs, if something is wrong.
    pub log_folder: Option<PathBuf>,
}

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        for wrong in &self.violations {
            writeln!(f, "{wrong}")?;
        }
        match &self.log_folder {
            Some(logs) => writeln!(f, "the logs are in {}", logs.display()),
            None => writeln!(f, "all checks passed"),
        }
    }
}
