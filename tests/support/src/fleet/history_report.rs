//! `HistoryReport`: the result of a history.

use std::{fmt, path::PathBuf};

use crate::checker::Violation;

/// Result of a history.
#[derive(Debug)]
pub struct HistoryReport {
    /// Faults and figures, one line each.
    pub lines: Vec<String>,
    /// Violations; empty if all checks passed.
    pub violations: Vec<Violation>,
    /// Folder of the logs, if there are violations.
    pub log_folder: Option<PathBuf>,
}

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        match &self.log_folder {
            Some(logs) => writeln!(f, "the logs are in {}", logs.display()),
            None => writeln!(f, "all checks passed"),
        }
    }
}
