//! Which commands a client sends, and which are called inside its scripts.
//!
//! `INFO commandstats` counts both alike. So before its rounds each contender bears the load once more,
//! briefly and not timed, under `MONITOR`, which tells them apart (`[0 lua]`). That gives, for each
//! command's name, the share that was sent from outside; for every peer it is all or nothing, since none
//! sends by itself what its scripts call too. In the rounds proper, commands sent = the calls that
//! `commandstats` counts between the two ends of the window, times that share.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{Shutdown, TcpStream},
    thread::{self, JoinHandle},
};

use crate::{
    outcome::Outcome,
    redis::{Counts, OURS},
    stats::float,
};

/// For each command: how often it was sent, and how often a script called it.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Senders(BTreeMap<String, (u64, u64)>);

/// Calls between two moments.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct Calls {
    /// What the client sent.
    pub(crate) sent: f64,
    /// What the server ran, in scripts and outside.
    pub(crate) run: f64,
}

impl Senders {
    pub(crate) fn count(&self, before: &Counts, after: &Counts) -> Calls {
        let mut calls = Calls::default();
        for (name, after) in &after.calls {
            let run = after.saturating_sub(before.calls.get(name).copied().unwrap_or(0));
            calls.run += float(run);
            calls.sent += float(run) * self.share(name);
        }
        calls
    }

    /// All that was seen.
    pub(crate) fn total(&self) -> Calls {
        let mut calls = Calls::default();
        for (sent, inside) in self.0.values() {
            calls.sent += float(*sent);
            calls.run += float(sent + inside);
        }
        calls
    }

    /// A command that was not seen counts as sent: nobody is flattered by what is not known.
    fn share(&self, name: &str) -> f64 {
        match self.0.get(name) {
            Some((sent, inside)) => float(*sent) / float(sent + inside),
            None => 1.0,
        }
    }

    fn note(&mut self, line: &str) {
        let Some((inside, name)) = read(line) else {
            return;
        };
        if OURS.contains(&name.as_str()) {
            return;
        }
        let counts = self.0.entry(name).or_default();
        if inside {
            counts.1 += 1;
        } else {
            counts.0 += 1;
        }
    }
}

/// `+1700000000.1 [0 127.0.0.1:5] "SET" "a"` is sent, `[0 lua] "GET"` is called inside a script.
fn read(line: &str) -> Option<(bool, String)> {
    let (_, rest) = line.split_once('[')?;
    let (from, rest) = rest.split_once("] \"")?;
    let (name, _) = rest.split_once('"')?;
    Some((from.ends_with(" lua"), name.to_lowercase()))
}

/// Listens to everything the server runs.
pub(crate) struct Monitor {
    stream: TcpStream,
    listener: JoinHandle<Senders>,
}

impl Monitor {
    pub(crate) fn start(port: u16) -> Outcome<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(stream.try_clone()?);
        // The `+OK`: from here on nothing is missed.
        lines.read_line(&mut String::new())?;
        let listener = thread::spawn(move || {
            let mut senders = Senders::default();
            for line in lines.lines().map_while(Result::ok) {
                senders.note(&line);
            }
            senders
        });
        Ok(Self { stream, listener })
    }

    pub(crate) fn stop(self) -> Outcome<Senders> {
        self.stream.shutdown(Shutdown::Both)?;
        self.listener.join().map_err(|_| "the monitor's listener panicked".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> Counts {
        let calls = pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let mut counts = Counts::default();
        counts.calls = calls;
        counts
    }

    #[test]
    fn tells_who_called() {
        let outside = r#"+1.5 [0 127.0.0.1:5123] "EVALSHA" "abc" "0" "] \"GET\"""#;
        assert_eq!(read(outside), Some((false, "evalsha".to_owned())));
        assert_eq!(read(r#"+1.5 [0 lua] "GET" "a""#), Some((true, "get".to_owned())));
        assert_eq!(read("+OK"), None);
    }

    #[test]
    fn counts_what_was_sent() {
        let mut senders = Senders::default();
        for line in [
            r#"+1 [0 1:1] "SET" "k""#,
            r#"+1 [0 1:1] "EVALSHA" "a""#,
            r#"+1 [0 lua] "GET" "k""#,
            r#"+1 [0 1:1] "INFO" "k""#,
        ] {
            senders.note(line);
        }
        let before = counts(&[("set", 10), ("get", 5)]);
        let after = counts(&[("set", 13), ("get", 9), ("evalsha", 4), ("hello", 2)]);
        assert_eq!(senders.count(&before, &after), Calls { sent: 9.0, run: 13.0 });
    }

    #[test]
    fn a_command_of_both_kinds_counts_by_its_share() {
        let mut senders = Senders::default();
        senders.note(r#"+1 [0 1:1] "GET" "k""#);
        senders.note(r#"+1 [0 lua] "GET" "k""#);
        let calls = senders.count(&counts(&[]), &counts(&[("get", 8)]));
        assert_eq!(calls, Calls { sent: 4.0, run: 8.0 });
    }
}
