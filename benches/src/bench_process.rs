//! Child processes of the runner. Most of them are this binary in another mode. They communicate by
//! lines over stdin and stdout. Dropping the handle kills the process, so that a failed run leaves
//! none behind.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::bench_result::BenchResult;

pub(crate) struct BenchProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl BenchProcess {
    /// Starts this binary in `mode`, with `plan` as its argument.
    pub(crate) fn start(mode: &str, plan: &impl Serialize) -> BenchResult<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(mode).arg(serde_json::to_string(plan)?);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> BenchResult<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("the child process has no stdout")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(crate) fn write_line(&mut self, line: &str) -> BenchResult<()> {
        let input = self.input.as_mut().ok_or("stdin of the child process is closed")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    /// Closes stdin and waits for the process to exit.
    pub(crate) fn close(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }

    pub(crate) fn read_line(&mut self) -> BenchResult<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a child process ended early; its error output is above".into());
        }
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn read_json<T: DeserializeOwned>(&mut self) -> BenchResult<T> {
        Ok(serde_json::from_str(&self.read_line()?)?)
    }

    pub(crate) fn read_bytes(&mut self, length: usize) -> BenchResult<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.output.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits until the process has connected and prepared everything.
    pub(crate) fn wait_until_ready(&mut self) -> BenchResult<()> {
        match self.read_line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("a child process sent `{other}` instead of `ready`").into()),
        }
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
