//! `cargo xtask test`: everything that proves behaviour, and the counts.
//!
//! nextest runs the tests of all binaries side by side, each in a process of its own; cargo runs the doc tests, which
//! nextest does not.

mod servers;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use self::servers::Servers;
use crate::{
    redis_server, shell,
    summary::Summary,
    tools::{self, NEXTEST},
};

const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];

/// Tests that run at a time, for each processor: most of them wait most of the time.
const TESTS_PER_PROCESSOR: usize = 4;

/// Tells the tests of the demos where these are, so that none has to build them.
const DEMOS: &str = "LOCKGATE_TESTS_DEMOS";

/// The options that choose packages or targets.
const CHOICES: [&str; 14] = [
    "-p",
    "--package",
    "--workspace",
    "--all",
    "--exclude",
    "--lib",
    "--bins",
    "--bin",
    "--tests",
    "--test",
    "--examples",
    "--example",
    "--all-targets",
    "--doc",
];

/// How long after cargo's end a process left behind by a test may keep its output open.
const LINGER: Duration = Duration::from_secs(2);

pub(crate) fn run(extra: &[&str]) -> ExitCode {
    let mut all = Summary::default();
    let well = run_all(extra, &mut all)
        .inspect_err(|sentence| eprintln!("{sentence}"))
        .is_ok_and(|()| all.good());
    if all.passed + all.failed == 0 {
        eprintln!("No test ran.");
    }
    println!();
    println!("{} suites, {} ignored", all.suites, all.ignored);
    println!("{} passed, {} failed", all.passed, all.failed);
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(extra: &[&str], all: &mut Summary) -> Result<(), String> {
    let environment = redis_server::chosen()?;
    if environment.is_empty() {
        redis_server::ensure()?;
    }
    tools::ensure(&NEXTEST)?;
    let servers = Servers::start(&environment)?;
    let mut failed = Vec::new();
    for run in plan(extra) {
        let mut command = shell::cargo(&run.args);
        command.envs(environment.iter().cloned());
        let outcome = match run.kind {
            Kind::Build => shell::run(command),
            Kind::Nextest => nextest(command, &servers, all),
            Kind::Docs => docs(command, all),
        };
        failed.extend(outcome.err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Build,
    Nextest,
    Docs,
}

struct Run<'a> {
    kind: Kind,
    args: Vec<&'a str>,
}

/// The commands to run. A choice of packages or targets is left to nextest as it is.
fn plan<'a>(extra: &[&'a str]) -> Vec<Run<'a>> {
    // A filter may leave one of the two without tests. `run` refuses a run that has none at all.
    const NEXTEST: [&str; 4] = ["nextest", "run", "--no-fail-fast", "--no-tests=pass"];
    const DOCS: [&str; 3] = ["test", "--no-fail-fast", "--doc"];
    let run = |kind, parts: &[&[&'a str]]| Run { kind, args: parts.concat() };
    let ours = extra.split(|arg| *arg == "--").next().unwrap_or_default();
    if ours.contains(&"--doc") {
        let others: Vec<_> = extra.iter().copied().filter(|arg| *arg != "--doc").collect();
        return vec![run(Kind::Docs, &[&DOCS, &others])];
    }
    if ours.iter().any(|arg| CHOICES.iter().any(|name| same_option(arg, name))) {
        return vec![run(Kind::Nextest, &[&NEXTEST, extra])];
    }
    // What is behind a feature has tests behind it: without all of them, those of TLS and of pools would never run.
    vec![
        // With all targets, so that dependencies have the same features as for the tests and are compiled once.
        run(Kind::Build, &[&["build"], &EVERYTHING, &["--all-targets"]]),
        run(Kind::Nextest, &[&NEXTEST, &EVERYTHING, &["--all-targets"], extra]),
        run(Kind::Docs, &[&DOCS, &EVERYTHING, extra]),
    ]
}

/// Runs nextest, which shows its progress itself, and counts by the report that it leaves behind.
fn nextest(mut command: Command, servers: &Servers, all: &mut Summary) -> Result<(), String> {
    let report = shell::target().join("nextest/default/junit.xml");
    let _ = fs::remove_file(&report);
    if env::var_os("NEXTEST_TEST_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (processors * TESTS_PER_PROCESSOR).to_string();
        command.env("NEXTEST_TEST_THREADS", threads);
    }
    servers.tell(&mut command);
    // To make a backtrace takes longer than some cases may take, which are then repeated as too slow.
    command.env("RUST_BACKTRACE", "0");
    if command.get_args().any(|arg| arg == "--workspace") {
        command.env(DEMOS, shell::target().join("debug"));
    }
    let outcome = shell::run(command);
    if let Some(tests) = fs::read_to_string(&report).ok().and_then(|text| Summary::of_junit(&text))
    {
        *all += tests;
    }
    outcome
}

fn same_option(arg: &str, name: &str) -> bool {
    let joined_short = !name.starts_with("--") && arg.starts_with(name) && !arg.starts_with("--");
    arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        || joined_short
}

/// Runs the doc tests, shows what cargo writes as it comes, and counts.
fn docs(mut command: Command, all: &mut Summary) -> Result<(), String> {
    shell::announce(&command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    let (lines, read) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut line = Vec::new();
            while out.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if lines.send(text).is_err() {
                    break;
                }
                line.clear();
            }
        });
    }
    let mut ended: Option<Instant> = None;
    loop {
        match read.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => {
                println!("{line}");
                if let Some(suite) = Summary::of_line(&line) {
                    *all += suite;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // The end of cargo is not the end of its output as long as somebody else holds it.
                if ended.is_none() && matches!(child.try_wait(), Ok(Some(_))) {
                    ended = Some(Instant::now());
                }
                if ended.is_some_and(|at| at.elapsed() > LINGER) {
                    eprintln!(
                        "A process that the tests started outlives them and holds their output."
                    );
                    break;
                }
            }
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo test ended with {status}.")),
        Err(error) => Err(format!("cargo test was lost: {error}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(extra: &[&str]) -> Vec<String> {
        plan(extra).iter().map(|run| run.args.join(" ")).collect()
    }

    const RUN: &str = "nextest run --no-fail-fast --no-tests=pass";

    #[test]
    fn everything_by_default() {
        let everything = EVERYTHING.join(" ");
        let expected = [
            format!("build {everything} --all-targets"),
            format!("{RUN} {everything} --all-targets"),
            format!("test --no-fail-fast --doc {everything}"),
        ];
        assert_eq!(planned(&[]), expected);
    }

    #[test]
    fn a_filter_and_test_options_are_passed_on() {
        let runs = planned(&["lock", "--", "--nocapture", "--test"]);
        assert_eq!(runs.len(), 3);
        assert!(
            runs[1..].iter().all(|run| run.ends_with("lock -- --nocapture --test")),
            "{runs:?}"
        );
    }

    #[test]
    fn a_choice_of_targets_or_packages_is_left_alone() {
        let told = planned(&["-p", "lockgate", "--lib", "a", "--", "--exact"]);
        assert_eq!(told, [format!("{RUN} -p lockgate --lib a -- --exact")]);
        for one in ["-plockgate", "--package=lockgate", "--test=store"] {
            assert_eq!(planned(&[one]), [format!("{RUN} {one}")]);
        }
        assert_eq!(planned(&["--package-like"]).len(), 3);
    }

    #[test]
    fn doc_tests_are_left_to_cargo() {
        let told = planned(&["--doc", "-p", "lockgate"]);
        assert_eq!(told, ["test --no-fail-fast --doc -p lockgate"]);
    }
}
