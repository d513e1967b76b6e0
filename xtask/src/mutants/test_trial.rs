//! One run of a test program, with or without a fault, up to the first failed test.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use super::mutant_build::TestProgram;
use crate::redis_server_installation::TestEnvironment;

/// Variable that activates a fault. Processes started by tests inherit it.
pub(super) const FAULT_VARIABLE: &str = "LOCKGATE_FAULT";

/// Longest time between two results. No test takes as long, even on a busy machine.
const RESULT_TIMEOUT: Duration = Duration::from_secs(240);

/// Test program to run once, with or without a fault.
pub(super) struct TestTrial<'a> {
    pub(super) program: &'a TestProgram,
    pub(super) environment: &'a TestEnvironment,
    pub(super) fault: Option<&'static str>,
    /// Substrings of test names, or full names if `exact_names` is set.
    pub(super) filters: Vec<String>,
    pub(super) skipped_tests: Vec<String>,
    pub(super) exact_names: bool,
}

/// End of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TrialOutcome {
    Passed,
    Failed(String),
    /// The tests that libtest reported as slow.
    Hung(Vec<String>),
    /// The program ended without a result.
    Died(Vec<String>),
}

impl TestTrial<'_> {
    pub(super) fn run(&self) -> Result<TrialOutcome, String> {
        // One folder per trial, because servers of killed tests leave their files behind.
        static TRIAL_COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = TRIAL_COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockgate-mutants-{}-{number}", std::process::id());
        let files = env::temp_dir().join(name);
        let failed =
            |error| format!("{} could not be run: {error}", self.program.executable.display());
        fs::create_dir_all(&files).map_err(failed)?;
        let mut command = Command::new(&self.program.executable);
        command
            .current_dir(&self.program.working_dir)
            .env("CARGO_MANIFEST_DIR", &self.program.working_dir);
        command
            .env("TMPDIR", &files)
            .args(&self.filters)
            .args(self.exact_names.then_some("--exact"));
        command.args(self.skipped_tests.iter().flat_map(|test| ["--skip", test]));
        command.envs(self.environment.iter().cloned());
        match self.fault {
            Some(fault) => command.env(FAULT_VARIABLE, fault),
            None => command.env_remove(FAULT_VARIABLE),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        start_process_group(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let outcome = child.stdout.take().map(spawn_line_reader).map(|lines| read_outcome(&lines));
        kill_process_group(&mut child);
        let _ = fs::remove_dir_all(&files);
        outcome.unwrap_or_else(|| Err("a test program had no output".to_owned()))
    }
}

fn spawn_line_reader(out: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = Vec::new();
        while out.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}

/// Parses libtest's output up to the first failure.
fn read_outcome(lines: &Receiver<String>) -> Result<TrialOutcome, String> {
    let mut slow = BTreeSet::new();
    loop {
        let line = match lines.recv_timeout(RESULT_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(TrialOutcome::Hung(Vec::from_iter(slow))),
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(TrialOutcome::Died(Vec::from_iter(slow)));
            }
        };
        if line == "running 0 tests" {
            return Err("no test has a name like the filters'".to_owned());
        }
        if line.starts_with("test result: ok") {
            return Ok(TrialOutcome::Passed);
        }
        let Some(report) = line.strip_prefix("test ") else { continue };
        if let Some((test, _)) = report.split_once(" has been running for over") {
            slow.insert(test.to_owned());
        }
        if let Some((test, result)) = report.split_once(" ... ") {
            let test = test.split(" - ").next().unwrap_or(test);
            slow.remove(test);
            if result.starts_with("FAILED") {
                return Ok(TrialOutcome::Failed(test.to_owned()));
            }
        }
    }
}

#[cfg(unix)]
fn start_process_group(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn start_process_group(_: &mut Command) {}

/// Kills a test program and the servers and processes that it started.
fn kill_process_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(text: &str) -> Result<TrialOutcome, String> {
        read_outcome(&spawn_line_reader(std::io::Cursor::new(text.to_owned())))
    }

    #[test]
    fn first_failure_ends_the_trial() {
        let text = "running 2 tests\ntest a::b ... ok\ntest a::c - should panic ... FAILED\n";
        assert_eq!(outcome_of(text), Ok(TrialOutcome::Failed("a::c".to_owned())));
    }

    #[test]
    fn program_without_a_result_line_has_died() {
        let slow = "test a has been running for over 60 seconds\n";
        assert_eq!(outcome_of(slow), Ok(TrialOutcome::Died(vec!["a".to_owned()])));
        assert_eq!(
            outcome_of("running 1 test\ntest a ... ok\n\ntest result: ok. 1"),
            Ok(TrialOutcome::Passed)
        );
    }

    #[test]
    fn filters_without_matching_tests_are_an_error() {
        assert!(outcome_of("\nrunning 0 tests\n").is_err());
    }
}
