//! Building the tests once, and running those of a row.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::Value;

use super::{
    rows::{Row, Target},
    table::{Found, Verdict},
};
use crate::{shell, summary::Summary};

/// A test tells the worst that it has seen in a line that begins with this: `figure: longest wait 1240 ms`.
const FIGURE: &str = "figure: ";

/// A test that can't do its part on this machine says so, and why, in a line that begins with this.
const NOT_HERE: &str = "not here: ";

/// The tests, ready to run.
pub(super) struct Suite(HashMap<String, PathBuf>);

impl Suite {
    pub(super) fn build() -> Result<Self, String> {
        let mut command = shell::cargo([
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
        shell::announce(&command);
        let built = command.stderr(Stdio::inherit()).output();
        let built = built.map_err(|error| format!("cargo could not be started: {error}"))?;
        if !built.status.success() {
            return Err("The tests do not compile.".to_owned());
        }
        let messages = built.stdout.split(|&byte| byte == b'\n');
        let messages = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        Ok(Self(messages.filter_map(|message| executable(&message)).collect()))
    }

    fn program(&self, name: &str) -> Result<&PathBuf, String> {
        self.0.get(name).ok_or_else(|| format!("cargo has built no {name}"))
    }

    /// Runs the tests of a row so often.
    pub(super) fn row(&self, row: &Row, runs: u32) -> Found {
        let (began, mut sum) = (Instant::now(), Sum::default());
        for _ in 0..runs {
            for (target, filters) in by_target(row) {
                match self.program(target.name()) {
                    Ok(program) => sum.add(program, &filters),
                    Err(sentence) => sum.wrong.push(sentence),
                }
            }
        }
        let verdict = match (row.by.is_empty(), sum.wrong.is_empty()) {
            (true, _) => Verdict::NotHere,
            (_, true) => Verdict::Holds,
            (_, false) => Verdict::Violated(sum.wrong.join("\n")),
        };
        let figure = sum.told(row.not_here);
        Found {
            row: row.name(),
            fault: row.fault.to_owned(),
            topology: row.topology.name(),
            runs: sum.tests,
            verdict,
            figure,
            took: began.elapsed(),
        }
    }

    /// One of the long histories.
    pub(super) fn history(&self, which: &str, seconds: u64, seed: Option<u64>) -> Found {
        let began = Instant::now();
        let mut sum = Sum::default();
        match self.program("lockgate-faults") {
            Ok(program) => {
                let mut command = Command::new(program);
                command.args([which, "--seconds", &seconds.to_string()]);
                command.args(seed.into_iter().flat_map(|seed| ["--seed".into(), seed.to_string()]));
                sum.tests = 1;
                sum.read(&mut command);
            }
            Err(sentence) => sum.wrong.push(sentence),
        }
        let good = sum.wrong.is_empty();
        Found {
            row: which.to_owned(),
            fault: format!("random faults for {seconds} s, and the checks"),
            topology: "single",
            runs: sum.tests,
            figure: sum.told(""),
            verdict: if good { Verdict::Holds } else { Verdict::Violated(sum.wrong.join("\n")) },
            took: began.elapsed(),
        }
    }
}

fn executable(message: &Value) -> Option<(String, PathBuf)> {
    let path = message["executable"].as_str()?;
    let (target, test) = (&message["target"], message["profile"]["test"].as_bool()?);
    let (name, kind) = (target["name"].as_str()?, target["kind"][0].as_str()?);
    // The program itself, and not its unit tests; and of libraries, that of the crate.
    (test != (kind == "bin")).then(|| (name.to_owned(), path.into()))
}

fn by_target(row: &Row) -> BTreeMap<Target, Vec<&'static str>> {
    let mut all: BTreeMap<Target, Vec<&'static str>> = BTreeMap::new();
    for (target, filter) in row.by {
        all.entry(*target).or_default().push(filter);
    }
    all
}

/// What came of several runs.
#[derive(Debug, Default)]
struct Sum {
    tests: u64,
    wrong: Vec<String>,
    worst: Worst,
    /// What was not done.
    missing: BTreeSet<String>,
}

/// The worst of each figure, and its unit: the largest, or the least where [less is worse](less_is_worse).
#[derive(Debug, Default)]
struct Worst(BTreeMap<String, (f64, String)>);

impl Worst {
    fn add(&mut self, (name, number, unit): (String, f64, String)) {
        let pick = if less_is_worse(&name) { f64::min } else { f64::max };
        let worst = self.0.entry(name).or_insert((number, unit));
        worst.0 = pick(worst.0, number);
    }

    fn told(&self) -> String {
        let all = self.0.iter().map(|(name, (number, unit))| format!("{name} {number} {unit}"));
        all.map(|figure| figure.trim_end().to_owned()).collect::<Vec<_>>().join(", ")
    }
}

/// The rate of a load, and what a test has made happen: the more of it, the better.
fn less_is_worse(name: &str) -> bool {
    name.starts_with("lowest ") || name.starts_with("fewest ")
}

impl Sum {
    /// The figures; then what is not done, ever or on this machine.
    fn told(&self, never: &str) -> String {
        let missing = self.missing.iter().map(|what| format!("not here: {what}"));
        let parts = [self.worst.told()].into_iter().chain(missing).chain([never.to_owned()]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    fn add(&mut self, program: &PathBuf, filters: &[&str]) {
        // A filter that meets nothing would show nothing.
        let listed = shell::output({
            let mut list = Command::new(program);
            list.args(filters).args(["--list", "--include-ignored"]).current_dir(shell::root());
            list
        });
        let listed = listed.unwrap_or_default();
        for filter in filters.iter().filter(|filter| !listed.contains(**filter)) {
            self.wrong.push(format!("there is no test {filter}"));
        }
        let mut command = Command::new(program);
        command.args(filters).args(["--include-ignored", "--show-output", "--test-threads", "2"]);
        self.read(&mut command);
    }

    fn read(&mut self, command: &mut Command) {
        command.current_dir(shell::root()).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return self.wrong.push(format!("it could not be started: {error}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        for line in text.lines() {
            if let Some(summary) = Summary::of_line(line) {
                self.tests += summary.passed + summary.failed;
            }
            if let Some(figure) = line.strip_prefix(FIGURE).and_then(figure) {
                self.worst.add(figure);
            }
            self.missing.extend(line.strip_prefix(NOT_HERE).map(str::to_owned));
        }
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            self.wrong.push(format!("{text}{errors}"));
        }
    }
}

/// A name of some words, a number, and a unit that may be missing. Of a rate the table tells the lowest.
fn figure(text: &str) -> Option<(String, f64, String)> {
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
    fn figures_are_read() {
        let read =
            |text| figure(text).map(|(name, number, unit)| format!("{name}|{number}|{unit}"));
        assert_eq!(read("longest wait 1240 ms").unwrap(), "longest wait|1240|ms");
        assert_eq!(read("lost 0").unwrap(), "lost|0|");
        assert_eq!(read("nothing"), None);
    }

    #[test]
    fn what_is_not_done_is_told_behind_the_figures() {
        let mut sum = Sum::default();
        assert_eq!(sum.told(""), "");
        assert_eq!(sum.told("never"), "never");
        sum.worst.add(figure("lost 0").unwrap());
        sum.missing.insert("too old".to_owned());
        assert_eq!(sum.told("never"), "lost 0; not here: too old; never");
    }

    fn worst(lines: &[&str]) -> String {
        let mut worst = Worst::default();
        lines.iter().for_each(|line| worst.add(figure(line).unwrap()));
        worst.told()
    }

    #[test]
    fn the_worst_of_each_is_kept() {
        let lines = ["waited 5 ms", "waited 12 ms", "waited 7 ms", "lost 0"];
        assert_eq!(worst(&lines), "lost 0, waited 12 ms");
    }

    /// The best rate of several runs says nothing about the fault.
    #[test]
    fn of_rates_and_of_what_was_made_to_happen_the_least_is_kept() {
        let rates = ["requests a second during 900", "requests a second during 40"];
        assert_eq!(worst(&rates), "lowest requests a second during 40");
        let more =
            ["fewest turns 31", "fewest turns 28", "lowest margin 7 ms", "lowest margin 9 ms"];
        assert_eq!(worst(&more), "fewest turns 28, lowest margin 7 ms");
    }
}
