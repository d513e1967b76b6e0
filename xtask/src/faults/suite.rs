//! Building the tests once, and running those of a row.

use std::{
    collections::{BTreeMap, HashMap},
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
        let mut figure = sum.figures();
        if !row.not_here.is_empty() {
            figure = [&*figure, row.not_here].join(if figure.is_empty() { "" } else { "; " });
        }
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
            figure: sum.figures(),
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
    /// The largest of each name, and its unit.
    worst: BTreeMap<String, (f64, String)>,
}

impl Sum {
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
            if let Some((name, number, unit)) = line.strip_prefix(FIGURE).and_then(figure) {
                let worst = self.worst.entry(name).or_insert((number, unit));
                worst.0 = worst.0.max(number);
            }
        }
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            self.wrong.push(format!("{text}{errors}"));
        }
    }

    fn figures(&self) -> String {
        let all = self.worst.iter().map(|(name, (number, unit))| format!("{name} {number} {unit}"));
        all.map(|figure| figure.trim_end().to_owned()).collect::<Vec<_>>().join(", ")
    }
}

/// A name of some words, a number, and a unit that may be missing.
fn figure(text: &str) -> Option<(String, f64, String)> {
    let words: Vec<_> = text.split_whitespace().collect();
    let at = words.iter().rposition(|word| word.parse::<f64>().is_ok())?;
    Some((words[..at].join(" "), words[at].parse().ok()?, words[at + 1..].join(" ")))
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
    fn the_worst_of_each_is_kept() {
        let mut sum = Sum::default();
        for line in ["waited 5 ms", "waited 12 ms", "waited 7 ms", "lost 0"] {
            let (name, number, unit) = figure(line).unwrap();
            let worst = sum.worst.entry(name).or_insert((number, unit));
            worst.0 = worst.0.max(number);
        }
        assert_eq!(sum.figures(), "lost 0, waited 12 ms");
    }
}
