//! One run of a test program, with a fault or without, until the first test fails.

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

use super::tree::Program;
use crate::redis_server::Environment;

/// The variable that plants a fault; the processes that tests start inherit it.
pub(super) const VARIABLE: &str = "LOCKGATE_FAULT";

/// Longest time without the end of a test. No test takes as long, on a busy machine either.
const SILENCE: Duration = Duration::from_secs(240);

pub(super) struct Trial<'a> {
    pub(super) program: &'a Program,
    pub(super) server: &'a Environment,
    pub(super) fault: Option<&'static str>,
    /// Parts of the names of tests; whole names if `exact`.
    pub(super) filters: Vec<String>,
    pub(super) skipped: Vec<String>,
    pub(super) exact: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Passed,
    Failed(String),
    /// The tests that libtest has called slow.
    Hung(Vec<String>),
    /// The program ended without a result.
    Died(Vec<String>),
}

impl Trial<'_> {
    pub(super) fn run(&self) -> Result<Ended, String> {
        // Servers of tests that are killed leave their files behind.
        static TRIALS: AtomicUsize = AtomicUsize::new(0);
        let number = TRIALS.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockgate-mutants-{}-{number}", std::process::id());
        let files = env::temp_dir().join(name);
        let failed = |error| format!("{} could not be run: {error}", self.program.file.display());
        fs::create_dir_all(&files).map_err(failed)?;
        let mut command = Command::new(&self.program.file);
        command.current_dir(&self.program.folder).env("CARGO_MANIFEST_DIR", &self.program.folder);
        command.env("TMPDIR", &files).args(&self.filters).args(self.exact.then_some("--exact"));
        command.args(self.skipped.iter().flat_map(|test| ["--skip", test]));
        command.envs(self.server.iter().cloned());
        match self.fault {
            Some(fault) => command.env(VARIABLE, fault),
            None => command.env_remove(VARIABLE),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        own_group(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let ended = child.stdout.take().map(lines).map(|lines| watch(&lines));
        end(&mut child);
        let _ = fs::remove_dir_all(&files);
        ended.unwrap_or_else(|| Err("a test program had no output".to_owned()))
    }
}

fn lines(out: impl Read + Send + 'static) -> Receiver<String> {
    let (told, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = Vec::new();
        while out.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if told.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}

/// Reads what libtest writes, until the first failure.
fn watch(lines: &Receiver<String>) -> Result<Ended, String> {
    let mut slow = BTreeSet::new();
    loop {
        let line = match lines.recv_timeout(SILENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(Ended::Hung(Vec::from_iter(slow))),
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Died(Vec::from_iter(slow))),
        };
        if line == "running 0 tests" {
            return Err("no test has a name like the filters'".to_owned());
        }
        if line.starts_with("test result: ok") {
            return Ok(Ended::Passed);
        }
        let Some(rest) = line.strip_prefix("test ") else { continue };
        if let Some((test, _)) = rest.split_once(" has been running for over") {
            slow.insert(test.to_owned());
        }
        if let Some((test, result)) = rest.split_once(" ... ") {
            let test = test.split(" - ").next().unwrap_or(test);
            slow.remove(test);
            if result.starts_with("FAILED") {
                return Ok(Ended::Failed(test.to_owned()));
            }
        }
    }
}

#[cfg(unix)]
fn own_group(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

/// Ends a test program with the servers and processes that it has started.
fn end(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Ended, String> {
        watch(&lines(std::io::Cursor::new(text.to_owned())))
    }

    #[test]
    fn the_first_failure_ends_it() {
        let text = "running 2 tests\ntest a::b ... ok\ntest a::c - should panic ... FAILED\n";
        assert_eq!(of(text), Ok(Ended::Failed("a::c".to_owned())));
    }

    #[test]
    fn a_program_that_ends_without_a_result_has_died() {
        let slow = "test a has been running for over 60 seconds\n";
        assert_eq!(of(slow), Ok(Ended::Died(vec!["a".to_owned()])));
        assert_eq!(of("running 1 test\ntest a ... ok\n\ntest result: ok. 1"), Ok(Ended::Passed));
    }

    #[test]
    fn filters_that_name_nothing_are_an_error() {
        assert!(of("\nrunning 0 tests\n").is_err());
    }
}
