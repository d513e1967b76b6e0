//! Origins of commands: sent by a client, or called by a script.
//!
//! `INFO commandstats` counts both alike. `MONITOR` tells them apart: it marks calls of scripts
//! with `[0 lua]`. Each contender therefore runs its load once under `MONITOR`, briefly and
//! untimed, which gives the share of each command that clients sent. In the rounds, commands sent =
//! the calls that `commandstats` counts within the window, times that share. The share is 0 or 1
//! for every peer, because none sends a command that its scripts call too.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{Shutdown, TcpStream},
    thread::{self, JoinHandle},
};

use crate::{
    bench_result::BenchResult,
    redis_server::{RUNNER_COMMANDS, ServerCounters},
    stats::to_f64,
};

/// For each command: calls that clients sent, and calls of scripts.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct CommandOrigins(BTreeMap<String, (u64, u64)>);

/// Number of commands within a period.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct CommandCounts {
    /// Sent by clients.
    pub(crate) sent: f64,
    /// Run by the server, inside and outside of scripts.
    pub(crate) executed: f64,
}

impl CommandOrigins {
    pub(crate) fn count_between(
        &self,
        before: &ServerCounters,
        after: &ServerCounters,
    ) -> CommandCounts {
        let mut counts = CommandCounts::default();
        for (name, after) in &after.calls {
            let executed = after.saturating_sub(before.calls.get(name).copied().unwrap_or(0));
            counts.executed += to_f64(executed);
            counts.sent += to_f64(executed) * self.sent_share(name);
        }
        counts
    }

    /// Returns the number of all observed commands.
    pub(crate) fn total(&self) -> CommandCounts {
        let mut counts = CommandCounts::default();
        for (sent, called) in self.0.values() {
            counts.sent += to_f64(*sent);
            counts.executed += to_f64(sent + called);
        }
        counts
    }

    /// Returns the share of a command that clients sent. An unobserved command counts as sent,
    /// which favors no contender.
    fn sent_share(&self, name: &str) -> f64 {
        match self.0.get(name) {
            Some((sent, called)) => to_f64(*sent) / to_f64(sent + called),
            None => 1.0,
        }
    }

    fn record_line(&mut self, line: &str) {
        let Some((is_called_by_script, name)) = parse_monitor_line(line) else {
            return;
        };
        if RUNNER_COMMANDS.contains(&name.as_str()) {
            return;
        }
        let counts = self.0.entry(name).or_default();
        if is_called_by_script {
            counts.1 += 1;
        } else {
            counts.0 += 1;
        }
    }
}

/// Parses a line of `MONITOR`: whether a script called the command, and its name in lower case.
///
/// - client: `+1700000000.1 [0 127.0.0.1:5] "SET" "a"`
/// - script: `+1700000000.1 [0 lua] "GET"`
fn parse_monitor_line(line: &str) -> Option<(bool, String)> {
    let (_, rest) = line.split_once('[')?;
    let (origin, rest) = rest.split_once("] \"")?;
    let (name, _) = rest.split_once('"')?;
    Some((origin.ends_with(" lua"), name.to_lowercase()))
}

/// Connection that receives every command that the server runs.
pub(crate) struct CommandMonitor {
    stream: TcpStream,
    listener: JoinHandle<CommandOrigins>,
}

impl CommandMonitor {
    pub(crate) fn start(port: u16) -> BenchResult<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut reader = BufReader::new(stream.try_clone()?);
        // After `+OK`, the server reports every command.
        reader.read_line(&mut String::new())?;
        let listener = thread::spawn(move || {
            let mut origins = CommandOrigins::default();
            for line in reader.lines().map_while(Result::ok) {
                origins.record_line(&line);
            }
            origins
        });
        Ok(Self { stream, listener })
    }

    pub(crate) fn stop(self) -> BenchResult<CommandOrigins> {
        self.stream.shutdown(Shutdown::Both)?;
        self.listener.join().map_err(|_| "the thread that reads MONITOR panicked".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_counters(pairs: &[(&str, u64)]) -> ServerCounters {
        let calls = pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let mut counters = ServerCounters::default();
        counters.calls = calls;
        counters
    }

    #[test]
    fn monitor_line_tells_client_from_script() {
        let client_line = r#"+1.5 [0 127.0.0.1:5123] "EVALSHA" "abc" "0" "] \"GET\"""#;
        assert_eq!(parse_monitor_line(client_line), Some((false, "evalsha".to_owned())));
        assert_eq!(parse_monitor_line(r#"+1.5 [0 lua] "GET" "a""#), Some((true, "get".to_owned())));
        assert_eq!(parse_monitor_line("+OK"), None);
    }

    #[test]
    fn commands_called_by_scripts_are_not_sent() {
        let mut origins = CommandOrigins::default();
        for line in [
            r#"+1 [0 1:1] "SET" "k""#,
            r#"+1 [0 1:1] "EVALSHA" "a""#,
            r#"+1 [0 lua] "GET" "k""#,
            r#"+1 [0 1:1] "INFO" "k""#,
        ] {
            origins.record_line(line);
        }
        let before = server_counters(&[("set", 10), ("get", 5)]);
        let after = server_counters(&[("set", 13), ("get", 9), ("evalsha", 4), ("hello", 2)]);
        assert_eq!(
            origins.count_between(&before, &after),
            CommandCounts { sent: 9.0, executed: 13.0 }
        );
    }

    #[test]
    fn command_of_both_origins_counts_by_share() {
        let mut origins = CommandOrigins::default();
        origins.record_line(r#"+1 [0 1:1] "GET" "k""#);
        origins.record_line(r#"+1 [0 lua] "GET" "k""#);
        let counts = origins.count_between(&server_counters(&[]), &server_counters(&[("get", 8)]));
        assert_eq!(counts, CommandCounts { sent: 4.0, executed: 8.0 });
    }
}
