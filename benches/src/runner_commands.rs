//! Commands of the runner, which a child process reads from stdin. When stdin closes, because the
//! runner ended in whatever way, the child process exits.

use std::{
    fmt::Display,
    io::{self, BufRead as _, Write as _},
    process,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use crate::bench_result::BenchResult;

pub(crate) struct RunnerCommands(Receiver<String>);

impl RunnerCommands {
    /// Starts the threads that read commands and end this process: when stdin closes, or after
    /// `max_run_time`, in case the runner or the measured library hangs. The message then contains
    /// `process_name`.
    pub(crate) fn listen(process_name: impl Display, max_run_time: Duration) -> Self {
        let process_name = process_name.to_string();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
            process::exit(0);
        });
        thread::spawn(move || {
            thread::sleep(max_run_time);
            eprintln!("{process_name}: this benchmark process exceeded {max_run_time:?} and exits");
            process::exit(3);
        });
        Self(receiver)
    }

    /// Reports that this process is ready, and waits for the start time, in nanoseconds.
    pub(crate) fn await_start(&self) -> BenchResult<u64> {
        send_line("ready")?;
        Ok(self.0.recv()?.parse()?)
    }

    /// Waits for the next command.
    pub(crate) fn next_command(&self) -> BenchResult<String> {
        Ok(self.0.recv()?)
    }
}

/// Sends a line to the runner.
pub(crate) fn send_line(line: &str) -> BenchResult<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
