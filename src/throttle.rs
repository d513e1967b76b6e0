//! Throttle of log lines that requests can cause.
//!
//! A client that sends forged headers, meets a full queue or hits a route that is wired wrongly decides how often
//! that is logged. Such a line is written once in [`THROTTLE_PERIOD`] and process, with the number of those suppressed since. Lines
//! about one lock that was lost, one job or one task are not throttled: each is about something of its own.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two lines of one kind.
const THROTTLE_PERIOD: Duration = Duration::from_secs(60);

/// Most kinds that are told apart. Kinds are places in the sources and faults of wiring, so there are few; what comes
/// after that counts as one.
const MAX_KINDS: usize = 256;

#[derive(Default)]
struct LogThrottle(HashMap<Box<str>, ThrottledLine>);

struct ThrottledLine {
    written_at: Instant,
    suppressed: u64,
}

impl LogThrottle {
    fn admit(&mut self, kind: &str, now: Instant) -> Option<u64> {
        let kind = if self.0.len() < MAX_KINDS || self.0.contains_key(kind) { kind } else { "" };
        let Some(line) = self.0.get_mut(kind) else {
            self.0.insert(kind.into(), ThrottledLine { written_at: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(line.written_at) < THROTTLE_PERIOD {
            line.suppressed += 1;
            return None;
        }
        line.written_at = now;
        Some(std::mem::take(&mut line.suppressed))
    }
}

/// Returns how many lines of this kind were suppressed since the last one, or `None` if this one is to be.
#[cfg(not(test))]
pub(crate) fn admit(kind: &str) -> Option<u64> {
    static THROTTLE: std::sync::LazyLock<Mutex<LogThrottle>> =
        std::sync::LazyLock::new(Mutex::default);
    THROTTLE.lock().admit(kind, Instant::now())
}

/// The same for each thread: tests run beside each other, and some look for such a line.
#[cfg(test)]
pub(crate) fn admit(kind: &str) -> Option<u64> {
    thread_local!(static THROTTLE: Mutex<LogThrottle> = Mutex::default());
    THROTTLE.with(|kinds| kinds.lock().admit(kind, Instant::now()))
}

/// As the macro of `tracing` of this name, once in [`THROTTLE_PERIOD`].
macro_rules! throttled {
    ($level:ident, $($line:tt)+) => {
        if let Some(suppressed) =
            $crate::throttle::admit(concat!(module_path!(), ":", line!()))
        {
            tracing::$level!(suppressed, $($line)+);
        }
    };
}

pub(crate) use throttled;

#[cfg(test)]
mod tests;
