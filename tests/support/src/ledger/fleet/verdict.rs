//! What came of a fleet.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use lockgate_history::{Violation, deferred::Looked};

/// What came of it.
#[derive(Debug)]
pub struct Verdict {
    /// What was looked at.
    pub looked: Looked,
    /// What was asked of the server, and for how much.
    pub cost: String,
    /// What is wrong; empty if all is well.
    pub wrong: Vec<Violation>,
    /// Requests that were answered 202, and of which nobody knows at the end.
    pub lost: usize,
    /// How often each final state was reached.
    pub states: BTreeMap<String, usize>,
    /// Where the logs are, if something is wrong.
    pub logs: Option<PathBuf>,
}

impl Verdict {
    /// Fails the test if something is wrong.
    ///
    /// # Panics
    ///
    /// If something is wrong.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "that all is well is enough for most")]
    pub fn is_good(self) -> Looked {
        println!("{}", self.figure());
        assert!(self.wrong.is_empty(), "{self}");
        self.looked
    }

    /// For the table of faults.
    pub(crate) fn figure(&self) -> String {
        format!("figure: accepted and lost {}", self.lost)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}; {:?}; {}", self.looked, self.states, self.cost)?;
        for line in &self.wrong {
            writeln!(f, "{line}")?;
        }
        match &self.logs {
            Some(logs) => writeln!(f, "the logs are in {}", logs.display()),
            None => writeln!(f, "all checks passed"),
        }
    }
}
