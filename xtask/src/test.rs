//! `cargo xtask test`: everything that proves behaviour, and the counts.

use std::{
    io::{BufRead, BufReader},
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use crate::{redis_server, shell, summary::Summary};

/// The options of `cargo test` that choose packages or targets.
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
    let environment = match redis_server::chosen() {
        Ok(none) if none.is_empty() => redis_server::ensure().map(|()| none),
        chosen => chosen,
    };
    let environment = match environment {
        Ok(environment) => environment,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    let mut all = Summary::default();
    let mut well = true;
    for args in plan(extra) {
        let mut command = shell::cargo(args);
        command.envs(environment.iter().cloned());
        match suites(command, &mut all) {
            Ok(()) => {}
            Err(sentence) => {
                eprintln!("{sentence}");
                well = false;
            }
        }
    }
    if all.passed + all.failed == 0 {
        eprintln!("No test ran.");
    }
    println!();
    println!("{} suites, {} ignored", all.suites, all.ignored);
    println!("{} passed, {} failed", all.passed, all.failed);
    if well && all.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The runs of `cargo test` to make: doc tests need one of their own. A choice of packages or
/// targets is left to cargo as it is.
fn plan<'a>(extra: &[&'a str]) -> Vec<Vec<&'a str>> {
    const FRONT: [&str; 2] = ["test", "--no-fail-fast"];
    let ours = extra.split(|arg| *arg == "--").next().unwrap_or_default();
    if ours.iter().any(|arg| CHOICES.iter().any(|name| same_option(arg, name))) {
        return vec![[&FRONT, extra].concat()];
    }
    // What is behind a feature has tests behind it: without all of them, those of TLS and of pools would never run.
    const ALL: [&str; 2] = ["--workspace", "--all-features"];
    let run = |targets| [&FRONT[..], &ALL, &[targets], extra].concat();
    vec![run("--all-targets"), run("--doc")]
}

fn same_option(arg: &str, name: &str) -> bool {
    let joined_short = !name.starts_with("--") && arg.starts_with(name) && !arg.starts_with("--");
    arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        || joined_short
}

/// Runs one `cargo test`, shows what it writes as it comes, and counts.
fn suites(mut command: Command, all: &mut Summary) -> Result<(), String> {
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
        plan(extra).iter().map(|args| args.join(" ")).collect()
    }

    #[test]
    fn everything_by_default() {
        let front = "test --no-fail-fast --workspace --all-features";
        assert_eq!(planned(&[]), [format!("{front} --all-targets"), format!("{front} --doc")]);
    }

    #[test]
    fn a_filter_and_libtest_options_are_passed_on() {
        let runs = planned(&["lock", "--", "--nocapture", "--test"]);
        assert_eq!(runs.len(), 2);
        assert!(runs.iter().all(|run| run.ends_with("lock -- --nocapture --test")), "{runs:?}");
    }

    #[test]
    fn a_choice_of_targets_or_packages_is_left_alone() {
        let told = planned(&["-p", "lockgate", "--lib", "a", "--", "--exact"]);
        assert_eq!(told, ["test --no-fail-fast -p lockgate --lib a -- --exact"]);
        for one in ["-plockgate", "--package=lockgate", "--test=store", "--doc"] {
            assert_eq!(planned(&[one]), [format!("test --no-fail-fast {one}")]);
        }
        assert_eq!(planned(&["--package-like"]).len(), 2);
    }
}
