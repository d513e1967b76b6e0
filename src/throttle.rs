//! Throttle of log lines that requests can cause.
//!
//! A client that sends forged headers, meets a full queue or hits a route that is wired wrongly decides how often
//! that is logged. Such a line is written once in [`PERIOD`] and process, with the number of those suppressed since. Lines
//! about one lock that was lost, one job or one task are not throttled: each is about something of its own.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two lines of one kind.
const PERIOD: Duration = Duration::from_secs(60);

/// Most kinds that are told apart. Kinds are places in the sources and faults of wiring, so there are few; what comes
/// after that counts as one.
const KINDS: usize = 256;

#[derive(Default)]
struct Kinds(HashMap<Box<str>, Line>);

struct Line {
    written: Instant,
    suppressed: u64,
}

impl Kinds {
    fn pass(&mut self, kind: &str, now: Instant) -> Option<u64> {
        let kind = if self.0.len() < KINDS || self.0.contains_key(kind) { kind } else { "" };
        let Some(line) = self.0.get_mut(kind) else {
            self.0.insert(kind.into(), Line { written: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(line.written) < PERIOD {
            line.suppressed += 1;
            return None;
        }
        line.written = now;
        Some(std::mem::take(&mut line.suppressed))
    }
}

/// Returns how many lines of this kind were suppressed since the last one, or `None` if this one is to be.
#[cfg(not(test))]
pub(crate) fn pass(kind: &str) -> Option<u64> {
    static KINDS: std::sync::LazyLock<Mutex<Kinds>> = std::sync::LazyLock::new(Mutex::default);
    KINDS.lock().pass(kind, Instant::now())
}

/// The same for each thread: tests run beside each other, and some look for such a line.
#[cfg(test)]
pub(crate) fn pass(kind: &str) -> Option<u64> {
    thread_local!(static KINDS: Mutex<Kinds> = Mutex::default());
    KINDS.with(|kinds| kinds.lock().pass(kind, Instant::now()))
}

/// As the macro of `tracing` of this name, once in [`PERIOD`].
macro_rules! throttled {
    ($level:ident, $($line:tt)+) => {
        if let Some(suppressed) =
            $crate::throttle::pass(concat!(module_path!(), ":", line!()))
        {
            tracing::$level!(suppressed, $($line)+);
        }
    };
}

pub(crate) use throttled;

#[cfg(test)]
mod tests;
