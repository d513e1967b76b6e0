//! `ChildProcess`: a process of this program that a test starts, stops and kills.

use std::{path::Path, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// It ends when this is dropped, or when the program that started it does.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    input: ChildStdin,
    output_lines: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    /// Starts the program with these words.
    ///
    /// # Panics
    ///
    /// If it can't be started.
    #[must_use]
    pub fn start<W: AsRef<std::ffi::OsStr>>(program: &Path, words: &[W]) -> Self {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the program is there");
        let input = child.stdin.take().expect("it is piped");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, input, output_lines: said }
    }

    /// Tells it something.
    pub async fn send_line(&mut self, line: &str) {
        // One that has ended hears nothing; what it should have said will be missed.
        let _ = self.input.write_all(format!("{line}\n").as_bytes()).await;
        let _ = self.input.flush().await;
    }

    /// The next that it says; `None` if it has ended.
    pub async fn next_line(&mut self) -> Option<String> {
        self.output_lines.next_line().await.ok().flatten()
    }

    /// SIGSTOP: all of its threads stop where they are.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Its number, until it was seen to have ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended by itself; its exit code, if it has one.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        self.child.wait().await.ok()?.code()
    }

    /// SIGKILL; returns when it has ended.
    pub async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id() {
            send_signal(pid, signal);
        }
    }
}

/// SIGKILL to a process of ours that has not been waited for.
pub(super) fn kill_pid(pid: u32) {
    send_signal(pid, Signal::KILL);
}

/// SIGCONT to a process of ours.
pub(super) fn resume_pid(pid: u32) {
    send_signal(pid, Signal::CONT);
}

fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
