//! The faults: for each what it breaks, how it is planted, and the suites of which each must catch it.
//!
//! A fault is one that a careless change could make. Its suites are named by modules, not by tests, so that a test may
//! be replaced by another one. The list stays as it is while tests are removed; an edit follows the text it is found by.

mod deferral;
mod http;
mod locks;
mod queues;
mod quotas;
mod servers;

use std::fmt;

pub(super) struct Fault {
    pub(super) name: &'static str,
    /// Row of tests/FAULTS.md: `l`, `d` or `q` with its number, or the section.
    pub(super) row: &'static str,
    pub(super) breaks: &'static str,
    pub(super) edits: &'static [Edit],
    pub(super) suites: &'static [Suite],
}

/// The text `find` of a file, and what stands there instead. In Rust `FAULT` in it is true where the fault is planted, and
/// `ORIGINAL` is what was found; a script has the new text, or the old one, as a whole.
pub(super) struct Edit {
    pub(super) file: &'static str,
    pub(super) find: &'static str,
    pub(super) with: &'static str,
}

/// Tests of a program with one of these texts in their names.
pub(super) struct Suite {
    pub(super) program: &'static str,
    pub(super) filters: &'static [&'static str],
}

const fn edit(file: &'static str, find: &'static str, with: &'static str) -> Edit {
    Edit { file, find, with }
}

/// Unit tests of the library.
const fn unit(filters: &'static [&'static str]) -> Suite {
    Suite { program: "lockgate", filters }
}

/// Rows of tests/rows.
const fn rows(filters: &'static [&'static str]) -> Suite {
    Suite { program: "scenarios", filters }
}

/// Tests of processes with deferred requests that are killed and stopped.
const fn deferral(filters: &'static [&'static str]) -> Suite {
    Suite { program: "deferral", filters }
}

pub(super) fn all() -> Vec<&'static Fault> {
    let all = [
        locks::FAULTS,
        servers::FAULTS,
        http::FAULTS,
        quotas::FAULTS,
        deferral::FAULTS,
        queues::FAULTS,
    ];
    all.into_iter().flatten().collect()
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.filters.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_fault_is_named_once_and_has_a_suite() {
        let all = all();
        assert!(all.len() >= 40);
        assert_eq!(all.iter().map(|fault| fault.name).collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.iter().all(|fault| !fault.edits.is_empty() && !fault.suites.is_empty()));
    }
}
