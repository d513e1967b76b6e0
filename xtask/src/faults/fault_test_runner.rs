//! `FaultTestRunner`: builds the test programs once, and runs the tests of a row or a history.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::Value;

use super::{
    result_table::{RowResult, RowVerdict},
    rows::{FaultRow, TestTarget},
};
use crate::{shell, test_counts::TestCounts};

/// Prefix of a line in which a test reports its worst figure: `figure: longest wait 1240 ms`.
const FIGURE_PREFIX: &str = "figure: ";

/// Prefix of a line in which a test reports a part that this machine cannot run, and the reason.
const SKIPPED_PREFIX: &str = "not here: ";

/// Built test programs by name.
pub(super) struct FaultTestRunner(HashMap<String, PathBuf>);

impl FaultTestRunner {
    pub(super) fn build() -> Result<Self, String> {
        let mut command = shell::cargo_command([
            "test",
            "--no-run",
            "--message-format",
            "json-render-diagnostics",
            "--package",
            "lockgate",
            "--package",
            "lockgate-tests",
            "--lib",
            "--bins",
            "--tests",
        ]);
        shell::print_command(&command);
        let built = command.stderr(Stdio::inherit()).output();
        let built = built.map_err(|error| format!("cargo could not be started: {error}"))?;
        if !built.status.success() {
            return Err("The tests do not compile.".to_owned());
        }
        let messages = built.stdout.split(|&byte| byte == b'\n');
        let messages = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        Ok(Self(messages.filter_map(|message| parse_executable(&message)).collect()))
    }

    fn find_program(&self, name: &str) -> Result<&PathBuf, String> {
        self.0.get(name).ok_or_else(|| format!("cargo has built no {name}"))
    }

    /// Runs the tests of a row `runs` times.
    pub(super) fn run_row(&self, row: &FaultRow, runs: u32) -> RowResult {
        let (started_at, mut totals) = (Instant::now(), RunTotals::default());
        for _ in 0..runs {
            for (target, filters) in filters_by_target(row) {
                match self.find_program(target.binary_name()) {
                    Ok(program) => totals.run_tests(program, &filters),
                    Err(message) => totals.failures.push(message),
                }
            }
        }
        let verdict = match (row.tests.is_empty(), totals.failures.is_empty()) {
            (true, _) => RowVerdict::NotRunnable,
            (_, true) => RowVerdict::Holds,
            (_, false) => RowVerdict::Violated(totals.failures.join("\n")),
        };
        let figure = totals.format_figures(row.limitation);
        RowResult {
            row: row.id(),
            fault: row.fault.to_owned(),
            topology: row.topology.name(),
            test_count: totals.test_count,
            verdict,
            worst_figure: figure,
            duration: started_at.elapsed(),
        }
    }

    /// Runs one history of random faults.
    pub(super) fn run_history(&self, history: &str, seconds: u64, seed: Option<u64>) -> RowResult {
        let started_at = Instant::now();
        let mut totals = RunTotals::default();
        match self.find_program("lockgate-faults") {
            Ok(program) => {
                let mut command = Command::new(program);
                command.args([history, "--seconds", &seconds.to_string()]);
                command.args(seed.into_iter().flat_map(|seed| ["--seed".into(), seed.to_string()]));
                totals.test_count = 1;
                totals.run_command(&mut command);
            }
            Err(message) => totals.failures.push(message),
        }
        let holds = totals.failures.is_empty();
        RowResult {
            row: history.to_owned(),
            fault: format!("random faults for {seconds} s, and the checks"),
            topology: "single",
            test_count: totals.test_count,
            worst_figure: totals.format_figures(""),
            verdict: if holds {
                RowVerdict::Holds
            } else {
                RowVerdict::Violated(totals.failures.join("\n"))
            },
            duration: started_at.elapsed(),
        }
    }
}

fn parse_executable(message: &Value) -> Option<(String, PathBuf)> {
    let path = message["executable"].as_str()?;
    let (target, test) = (&message["target"], message["profile"]["test"].as_bool()?);
    let (name, kind) = (target["name"].as_str()?, target["kind"][0].as_str()?);
    // The program of a binary, and the test program of every other target.
    (test != (kind == "bin")).then(|| (name.to_owned(), path.into()))
}

fn filters_by_target(row: &FaultRow) -> BTreeMap<TestTarget, Vec<&'static str>> {
    let mut all: BTreeMap<TestTarget, Vec<&'static str>> = BTreeMap::new();
    for (target, filter) in row.tests {
        all.entry(*target).or_default().push(filter);
    }
    all
}

/// Totals of several runs.
#[derive(Debug, Default)]
struct RunTotals {
    test_count: u64,
    failures: Vec<String>,
    worst_figures: WorstFigures,
    /// Parts that tests reported as skipped.
    skipped_parts: BTreeSet<String>,
}

/// Worst value and unit of each figure: the smallest if [less is worse](less_is_worse), otherwise
/// the largest.
#[derive(Debug, Default)]
struct WorstFigures(BTreeMap<String, (f64, String)>);

impl WorstFigures {
    fn record(&mut self, (name, number, unit): (String, f64, String)) {
        let worse_of = if less_is_worse(&name) { f64::min } else { f64::max };
        let worst = self.0.entry(name).or_insert((number, unit));
        worst.0 = worse_of(worst.0, number);
    }

    fn format_all(&self) -> String {
        let all = self.0.iter().map(|(name, (number, unit))| format!("{name} {number} {unit}"));
        all.map(|figure| figure.trim_end().to_owned()).collect::<Vec<_>>().join(", ")
    }
}

/// Returns true for rates and counts of progress, where a larger value is better.
fn less_is_worse(name: &str) -> bool {
    name.starts_with("lowest ") || name.starts_with("fewest ")
}

impl RunTotals {
    /// Lists the figures, then the parts that cannot run on this machine, then the limitation.
    fn format_figures(&self, limitation: &str) -> String {
        let skipped = self.skipped_parts.iter().map(|part| format!("not here: {part}"));
        let figures = self.worst_figures.format_all();
        let parts = [figures].into_iter().chain(skipped).chain([limitation.to_owned()]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    fn run_tests(&mut self, program: &PathBuf, filters: &[&str]) {
        // A filter that matches no test would pass without a check.
        let listed = shell::capture_stdout({
            let mut list = Command::new(program);
            list.args(filters)
                .args(["--list", "--include-ignored"])
                .current_dir(shell::workspace_root());
            list
        });
        let listed = listed.unwrap_or_default();
        for filter in filters.iter().filter(|filter| !listed.contains(**filter)) {
            self.failures.push(format!("there is no test {filter}"));
        }
        let mut command = Command::new(program);
        command.args(filters).args(["--include-ignored", "--show-output", "--test-threads", "2"]);
        self.run_command(&mut command);
    }

    fn run_command(&mut self, command: &mut Command) {
        command
            .current_dir(shell::workspace_root())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return self.failures.push(format!("it could not be started: {error}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        for line in text.lines() {
            if let Some(summary) = TestCounts::parse_result_line(line) {
                self.test_count += summary.passed + summary.failed;
            }
            if let Some(figure) = line.strip_prefix(FIGURE_PREFIX).and_then(parse_figure) {
                self.worst_figures.record(figure);
            }
            self.skipped_parts.extend(line.strip_prefix(SKIPPED_PREFIX).map(str::to_owned));
        }
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            self.failures.push(format!("{text}{errors}"));
        }
    }
}

/// Parses a name of one or more words, a number and an optional unit. A rate is named `lowest`.
fn parse_figure(text: &str) -> Option<(String, f64, String)> {
    let words: Vec<_> = text.split_whitespace().collect();
    let at = words.iter().rposition(|word| word.parse::<f64>().is_ok())?;
    let (mut name, unit) = (words[..at].join(" "), words[at + 1..].join(" "));
    if name.contains(" a second") && !less_is_worse(&name) {
        name.insert_str(0, "lowest ");
    }
    Some((name, words[at].parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_parsed() {
        let read =
            |text| parse_figure(text).map(|(name, number, unit)| format!("{name}|{number}|{unit}"));
        assert_eq!(read("longest wait 1240 ms").unwrap(), "longest wait|1240|ms");
        assert_eq!(read("lost 0").unwrap(), "lost|0|");
        assert_eq!(read("nothing"), None);
    }

    #[test]
    fn skipped_parts_follow_the_figures() {
        let mut totals = RunTotals::default();
        assert_eq!(totals.format_figures(""), "");
        assert_eq!(totals.format_figures("never"), "never");
        totals.worst_figures.record(parse_figure("lost 0").unwrap());
        totals.skipped_parts.insert("too old".to_owned());
        assert_eq!(totals.format_figures("never"), "lost 0; not here: too old; never");
    }

    fn worst_figures_of(lines: &[&str]) -> String {
        let mut worst = WorstFigures::default();
        lines.iter().for_each(|line| worst.record(parse_figure(line).unwrap()));
        worst.format_all()
    }

    #[test]
    fn largest_value_of_a_figure_is_kept() {
        let lines = ["waited 5 ms", "waited 12 ms", "waited 7 ms", "lost 0"];
        assert_eq!(worst_figures_of(&lines), "lost 0, waited 12 ms");
    }

    /// The best rate of several runs shows nothing about the fault.
    #[test]
    fn smallest_value_of_a_rate_or_margin_is_kept() {
        let rates = ["requests a second during 900", "requests a second during 40"];
        assert_eq!(worst_figures_of(&rates), "lowest requests a second during 40");
        let more =
            ["fewest holds 31", "fewest holds 28", "lowest margin 7 ms", "lowest margin 9 ms"];
        assert_eq!(worst_figures_of(&more), "fewest holds 28, lowest margin 7 ms");
    }
}
