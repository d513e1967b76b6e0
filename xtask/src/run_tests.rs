//! `cargo xtask test`: runs all tests and prints the counts.
//!
//! nextest runs the tests of all binaries in parallel, each in its own process. cargo runs the doc
//! tests, which nextest does not support.

mod shared_servers;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use self::shared_servers::SharedServers;
use crate::{
    cargo_tool::{self, CARGO_NEXTEST},
    optional_program::{CHROMEDRIVER, PROMTOOL},
    redis_server_installation, shell,
    test_counts::TestCounts,
};

const WORKSPACE_ARGS: [&str; 2] = ["--workspace", "--all-features"];

/// Parallel tests per processor. Most tests spend most of their time waiting.
const TESTS_PER_PROCESSOR: usize = 4;

/// Variable with the folder of the built demos, so that tests do not build them.
const DEMOS_VARIABLE: &str = "LOCKGATE_TESTS_DEMOS";

/// Options that choose packages or targets.
const TARGET_OPTIONS: [&str; 14] = [
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

/// Time that a process left behind by a test may keep cargo's output open after cargo has ended.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

pub(crate) fn run(extra: &[&str]) -> ExitCode {
    let mut counts = TestCounts::default();
    let is_success = run_planned_tests(extra, &mut counts)
        .inspect_err(|message| eprintln!("{message}"))
        .is_ok_and(|()| counts.is_success());
    if counts.passed + counts.failed == 0 {
        eprintln!("No test ran.");
    }
    println!();
    println!("{} suites, {} ignored", counts.suites, counts.ignored);
    println!("{} passed, {} failed", counts.passed, counts.failed);
    if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_planned_tests(extra: &[&str], counts: &mut TestCounts) -> Result<(), String> {
    let mut environment = redis_server_installation::chosen_server_environment()?;
    if environment.is_empty() {
        redis_server_installation::ensure_installed()?;
    }
    cargo_tool::ensure_installed(&CARGO_NEXTEST)?;
    let servers = SharedServers::start(&environment)?;
    let mut skipped = Vec::new();
    for (test_target, program) in [("browser", CHROMEDRIVER), ("metrics", PROMTOOL)] {
        if includes_target(extra, test_target) {
            let (program_environment, message) = program.plan()?;
            environment.extend(program_environment);
            skipped.extend(message);
        }
    }
    let mut failed = Vec::new();
    for run in plan_runs(extra) {
        let mut command = shell::cargo_command(&run.args);
        command.envs(environment.iter().cloned());
        let outcome = match run.kind {
            RunKind::Build => shell::run(command),
            RunKind::Nextest => run_nextest(command, &servers, counts),
            RunKind::DocTests => run_doc_tests(command, counts),
        };
        failed.extend(outcome.err());
    }
    for message in skipped {
        println!("\n{message}");
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

#[derive(Debug, PartialEq, Eq)]
enum RunKind {
    Build,
    Nextest,
    DocTests,
}

struct PlannedRun<'a> {
    kind: RunKind,
    args: Vec<&'a str>,
}

/// Commands to run. If the arguments choose packages or targets, they go to nextest alone.
fn plan_runs<'a>(extra: &[&'a str]) -> Vec<PlannedRun<'a>> {
    // A filter may leave one of the two without tests. `run` fails if no test ran at all.
    const NEXTEST_ARGS: [&str; 4] = ["nextest", "run", "--no-fail-fast", "--no-tests=pass"];
    const DOC_TEST_ARGS: [&str; 3] = ["test", "--no-fail-fast", "--doc"];
    let run = |kind, parts: &[&[&'a str]]| PlannedRun { kind, args: parts.concat() };
    let cargo_args = extra.split(|arg| *arg == "--").next().unwrap_or_default();
    if cargo_args.contains(&"--doc") {
        let other_args: Vec<_> = extra.iter().copied().filter(|arg| *arg != "--doc").collect();
        return vec![run(RunKind::DocTests, &[&DOC_TEST_ARGS, &other_args])];
    }
    if cargo_args.iter().any(|arg| TARGET_OPTIONS.iter().any(|name| matches_option(arg, name))) {
        return vec![run(RunKind::Nextest, &[&NEXTEST_ARGS, extra])];
    }
    // All features, because the tests of TLS and of pools are behind features.
    vec![
        // All targets, so that dependencies are compiled once, with the same features as for the
        // tests.
        run(RunKind::Build, &[&["build"], &WORKSPACE_ARGS, &["--all-targets"]]),
        run(RunKind::Nextest, &[&NEXTEST_ARGS, &WORKSPACE_ARGS, &["--all-targets"], extra]),
        run(RunKind::DocTests, &[&DOC_TEST_ARGS, &WORKSPACE_ARGS, extra]),
    ]
}

/// Returns true if the tests of this target may be among those that run. If the arguments choose
/// packages or targets, they have to name it.
fn includes_target(extra: &[&str], target: &str) -> bool {
    let cargo_args = extra.split(|arg| *arg == "--").next().unwrap_or_default();
    let is_choice = |arg: &&str| TARGET_OPTIONS.iter().any(|name| matches_option(arg, name));
    !cargo_args.iter().any(is_choice) || cargo_args.iter().any(|arg| arg.contains(target))
}

/// Runs nextest with its own progress output and adds the counts of its report.
fn run_nextest(
    mut command: Command,
    servers: &SharedServers,
    counts: &mut TestCounts,
) -> Result<(), String> {
    // nextest's own folder, which CARGO_TARGET_DIR does not move.
    let report = shell::workspace_root().join("target/nextest/default/junit.xml");
    let _ = fs::remove_file(&report);
    if env::var_os("NEXTEST_TEST_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (processors * TESTS_PER_PROCESSOR).to_string();
        command.env("NEXTEST_TEST_THREADS", threads);
    }
    servers.set_port_variables(&mut command);
    // Capturing a backtrace exceeds the time limit of some cases, which are then retried as too
    // slow.
    command.env("RUST_BACKTRACE", "0");
    if command.get_args().any(|arg| arg == "--workspace") {
        command.env(DEMOS_VARIABLE, shell::target_dir().join("debug"));
    }
    let outcome = shell::run(command);
    if let Some(tests) =
        fs::read_to_string(&report).ok().and_then(|text| TestCounts::parse_junit_report(&text))
    {
        *counts += tests;
    }
    outcome
}

fn matches_option(arg: &str, name: &str) -> bool {
    let joined_short = !name.starts_with("--") && arg.starts_with(name) && !arg.starts_with("--");
    arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        || joined_short
}

/// Runs the doc tests, forwards cargo's output as it arrives, and adds the counts.
fn run_doc_tests(mut command: Command, counts: &mut TestCounts) -> Result<(), String> {
    shell::print_command(&command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    let (line_sender, line_receiver) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut line = Vec::new();
            while out.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if line_sender.send(text).is_err() {
                    break;
                }
                line.clear();
            }
        });
    }
    let mut ended_at: Option<Instant> = None;
    loop {
        match line_receiver.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => {
                println!("{line}");
                if let Some(suite) = TestCounts::parse_result_line(&line) {
                    *counts += suite;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // The output stays open after cargo has ended if another process inherited it.
                if ended_at.is_none() && matches!(child.try_wait(), Ok(Some(_))) {
                    ended_at = Some(Instant::now());
                }
                if ended_at.is_some_and(|at| at.elapsed() > OUTPUT_GRACE) {
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

    fn planned_args(extra: &[&str]) -> Vec<String> {
        plan_runs(extra).iter().map(|run| run.args.join(" ")).collect()
    }

    const NEXTEST_COMMAND: &str = "nextest run --no-fail-fast --no-tests=pass";

    #[test]
    fn plan_without_arguments_covers_the_workspace() {
        let workspace = WORKSPACE_ARGS.join(" ");
        let expected = [
            format!("build {workspace} --all-targets"),
            format!("{NEXTEST_COMMAND} {workspace} --all-targets"),
            format!("test --no-fail-fast --doc {workspace}"),
        ];
        assert_eq!(planned_args(&[]), expected);
    }

    #[test]
    fn filters_and_test_options_reach_both_runners() {
        let runs = planned_args(&["lock", "--", "--nocapture", "--test"]);
        assert_eq!(runs.len(), 3);
        assert!(
            runs[1..].iter().all(|run| run.ends_with("lock -- --nocapture --test")),
            "{runs:?}"
        );
    }

    #[test]
    fn package_or_target_choice_runs_nextest_alone() {
        let args = planned_args(&["-p", "lockgate", "--lib", "a", "--", "--exact"]);
        assert_eq!(args, [format!("{NEXTEST_COMMAND} -p lockgate --lib a -- --exact")]);
        for one in ["-plockgate", "--package=lockgate", "--test=store"] {
            assert_eq!(planned_args(&[one]), [format!("{NEXTEST_COMMAND} {one}")]);
        }
        assert_eq!(planned_args(&["--package-like"]).len(), 3);
    }

    #[test]
    fn optional_program_is_installed_for_its_tests_alone() {
        for included in [&[] as &[&str], &["lock"], &["-p", "lockgate-tests", "--test", "browser"]]
        {
            assert!(includes_target(included, "browser"), "{included:?}");
        }
        for other in [&["-p", "lockgate"][..], &["--test=demos"], &["--doc"]] {
            assert!(!includes_target(other, "browser"), "{other:?}");
        }
    }

    #[test]
    fn doc_option_runs_doc_tests_alone() {
        let args = planned_args(&["--doc", "-p", "lockgate"]);
        assert_eq!(args, ["test --no-fail-fast --doc -p lockgate"]);
    }
}
