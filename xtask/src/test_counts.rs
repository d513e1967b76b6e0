//! Test counts from the reports of nextest and `cargo test`.

use std::ops::AddAssign;

/// Counts of one suite, or the sum of several suites.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TestCounts {
    pub(crate) suites: u64,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl TestCounts {
    /// Parses libtest's `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, with or without
    /// colours.
    pub(crate) fn parse_result_line(line: &str) -> Option<Self> {
        let result = line.strip_prefix("test result: ")?;
        let count = |suffix: &str| {
            result.split([';', '.']).find_map(|part| {
                part.trim()
                    .strip_suffix(suffix)?
                    .rsplit(' ')
                    .find(|number| !number.is_empty())?
                    .parse()
                    .ok()
            })
        };
        Some(Self {
            suites: 1,
            passed: count(" passed")?,
            failed: count(" failed")?,
            ignored: count(" ignored")?,
        })
    }

    /// Parses the head of nextest's JUnit report. Each suite of the report is a test binary.
    pub(crate) fn parse_junit_report(report: &str) -> Option<Self> {
        let (_, suites) = report.split_once("<testsuites ")?;
        let head = suites.split('>').next()?;
        let count = |name: &str| -> Option<u64> {
            let (_, value) = head.split_once(&format!(" {name}=\""))?;
            value.split('"').next()?.parse().ok()
        };
        let failed = count("failures")? + count("errors")?;
        Some(Self {
            suites: suites.matches("<testsuite ").count() as u64,
            passed: count("tests")?.checked_sub(failed)?,
            failed,
            ignored: 0,
        })
    }

    /// Returns true if at least one test ran and none failed. A run without tests proves nothing.
    pub(crate) fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl AddAssign for TestCounts {
    fn add_assign(&mut self, other: Self) {
        self.suites += other.suites;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_line_is_parsed() {
        let line = "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.51s";
        let summary = TestCounts::parse_result_line(line).unwrap();
        assert_eq!(summary, TestCounts { suites: 1, passed: 12, failed: 0, ignored: 3 });
        assert!(summary.is_success());
    }

    #[test]
    fn colored_failure_line_is_parsed() {
        let line = "test result: \u{1b}[31mFAILED\u{1b}[m. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let summary = TestCounts::parse_result_line(line).unwrap();
        assert_eq!((summary.passed, summary.failed), (1, 2));
        assert!(!summary.is_success());
    }

    #[test]
    fn junit_report_totals_are_parsed() {
        let report = r#"<?xml version="1.0" encoding="UTF-8"?>
            <testsuites name="nextest-run" tests="7" failures="2" errors="1" uuid="0" time="1.5">
                <testsuite name="a" tests="4" disabled="0" errors="0" failures="0">
                </testsuite>
                <testsuite name="b" tests="3" disabled="0" errors="1" failures="2">
                </testsuite>
            </testsuites>"#;
        let expected = TestCounts { suites: 2, passed: 4, failed: 3, ignored: 0 };
        assert_eq!(TestCounts::parse_junit_report(report), Some(expected));
        assert_eq!(TestCounts::parse_junit_report(""), None);
    }

    #[test]
    fn other_lines_are_not_parsed() {
        for line in [
            "",
            "test lock::waits ... ok",
            "test result:",
            "running 3 tests",
            " test result: ok. x passed",
        ] {
            assert_eq!(TestCounts::parse_result_line(line), None, "{line:?}");
        }
    }

    #[test]
    fn counts_add_up_and_an_empty_run_is_no_success() {
        let mut sum = TestCounts::default();
        assert!(!sum.is_success());
        sum += TestCounts { suites: 1, passed: 2, failed: 0, ignored: 1 };
        sum += TestCounts { suites: 1, passed: 0, failed: 0, ignored: 0 };
        assert_eq!(sum, TestCounts { suites: 2, passed: 2, failed: 0, ignored: 1 });
        assert!(sum.is_success());
    }
}
