//! The processes of a run, as the conductor sees them. Each is this binary in another mode, is spoken to
//! by lines, and is killed by its id when its handle goes, also when the run fails.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::outcome::Outcome;

pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// This binary, in the given mode.
    pub(crate) fn start(mode: &str, plan: &impl Serialize) -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(mode).arg(serde_json::to_string(plan)?);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no standard output")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(crate) fn tell(&mut self, line: &str) -> Outcome<()> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    /// Closes its input, and waits for it to end of itself.
    pub(crate) fn close(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }

    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("a process of the run ended before its time; it says why above".into());
        }
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        Ok(serde_json::from_str(&self.line()?)?)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.output.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits until it has connected and prepared everything.
    pub(crate) fn ready(&mut self) -> Outcome<()> {
        match self.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("a process of the run said `{other}` instead of `ready`").into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
