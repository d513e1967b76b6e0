//! Source faults: the broken behaviour, the edits that plant each fault, and the suites that must
//! catch it.
//!
//! Each fault is one that a careless change could make. Suites are named by modules and not by
//! tests, so that a test can be replaced. The list stays unchanged when tests are removed. An edit
//! is located by its original text.

mod deferral;
mod http;
mod locks;
mod queues;
mod quotas;
mod servers;

use std::fmt;

pub(super) struct SourceFault {
    pub(super) name: &'static str,
    /// Row of tests/FAULTS.md: `l`, `d` or `q` with its number, or the section.
    pub(super) table_row: &'static str,
    pub(super) broken_behavior: &'static str,
    pub(super) edits: &'static [SourceEdit],
    pub(super) suites: &'static [TestSuite],
}

/// Replacement of the text `find` in a file.
///
/// In Rust, `FAULT` in the replacement is true if the fault is active, and `ORIGINAL` is the
/// replaced text. A script contains either the new or the old text.
pub(super) struct SourceEdit {
    pub(super) file: &'static str,
    pub(super) find: &'static str,
    pub(super) replacement: &'static str,
}

/// Tests of a program whose names contain one of these filters.
pub(super) struct TestSuite {
    pub(super) program: &'static str,
    pub(super) filters: &'static [&'static str],
}

const fn edit(file: &'static str, find: &'static str, with: &'static str) -> SourceEdit {
    SourceEdit { file, find, replacement: with }
}

/// Unit tests of the library.
const fn unit_tests(filters: &'static [&'static str]) -> TestSuite {
    TestSuite { program: "lockgate", filters }
}

/// Tests in tests/rows.
const fn scenario_tests(filters: &'static [&'static str]) -> TestSuite {
    TestSuite { program: "scenarios", filters }
}

/// Tests that kill and stop processes with deferred requests.
const fn deferral_tests(filters: &'static [&'static str]) -> TestSuite {
    TestSuite { program: "deferral", filters }
}

/// Tests of workers in several processes.
const fn worker_tests(filters: &'static [&'static str]) -> TestSuite {
    TestSuite { program: "workers", filters }
}

pub(super) fn all_faults() -> Vec<&'static SourceFault> {
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

impl fmt::Display for TestSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.filters.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn fault_names_are_unique_and_each_has_a_suite() {
        let all = all_faults();
        assert!(all.len() >= 40);
        assert_eq!(all.iter().map(|fault| fault.name).collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.iter().all(|fault| !fault.edits.is_empty() && !fault.suites.is_empty()));
    }
}
