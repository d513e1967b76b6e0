//! `ChildProcess`: a process of this program that a test starts, stops and kills.

use std::{path::Path, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Child process that ends when this value is dropped, or with the program that started it.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    input: ChildStdin,
    output_lines: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    /// Starts the program with these arguments.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    #[must_use]
    pub fn start<W: AsRef<std::ffi::OsStr>>(program: &Path, arguments: &[W]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the program is there");
        let input = child.stdin.take().expect("it is piped");
        let output_lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, input, output_lines }
    }

    /// Writes a line to the process's input.
    pub async fn send_line(&mut self, line: &str) {
        // The write fails if the process has ended; the missing output shows it.
        let _ = self.input.write_all(format!("{line}\n").as_bytes()).await;
        let _ = self.input.flush().await;
    }

    /// Returns the next line of output, or `None` if the process has ended.
    pub async fn next_line(&mut self) -> Option<String> {
        self.output_lines.next_line().await.ok().flatten()
    }

    /// Sends SIGSTOP, which pauses all threads.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Returns the process id, or `None` once the process was seen to have ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns true if the process runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process ends by itself. Returns its exit code, if it has one.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        self.child.wait().await.ok()?.code()
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id() {
            send_signal(pid, signal);
        }
    }
}

/// Sends SIGKILL to a child that has not been waited for.
pub(super) fn kill_pid(pid: u32) {
    send_signal(pid, Signal::KILL);
}

/// Sends SIGCONT to a child.
pub(super) fn resume_pid(pid: u32) {
    send_signal(pid, Signal::CONT);
}

fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
