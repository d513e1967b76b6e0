//! Throttle for log records that requests can cause.
//!
//! A client that sends forged headers, meets a full queue or calls a misconfigured route decides
//! the rate of such records. Each kind is logged once per [`THROTTLE_PERIOD`] in a process, with
//! the number of suppressed records. Records about one lost lock, one job or one task are not
//! throttled, since each has a subject of its own.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two records of one kind.
const THROTTLE_PERIOD: Duration = Duration::from_secs(60);

/// Maximum number of distinct kinds; further kinds count as one. A kind is a log statement or a
/// wiring error, so there are few.
const MAX_KINDS: usize = 256;

#[derive(Default)]
struct LogThrottle(HashMap<Box<str>, ThrottledRecord>);

struct ThrottledRecord {
    written_at: Instant,
    suppressed: u64,
}

impl LogThrottle {
    fn admit(&mut self, kind: &str, now: Instant) -> Option<u64> {
        let kind = if self.0.len() < MAX_KINDS || self.0.contains_key(kind) { kind } else { "" };
        let Some(record) = self.0.get_mut(kind) else {
            self.0.insert(kind.into(), ThrottledRecord { written_at: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(record.written_at) < THROTTLE_PERIOD {
            record.suppressed += 1;
            return None;
        }
        record.written_at = now;
        Some(std::mem::take(&mut record.suppressed))
    }
}

/// Returns the number of records of this kind suppressed since the last one, or `None` if this
/// record is to be suppressed.
#[cfg(not(test))]
pub(crate) fn admit(kind: &str) -> Option<u64> {
    static THROTTLE: std::sync::LazyLock<Mutex<LogThrottle>> =
        std::sync::LazyLock::new(Mutex::default);
    THROTTLE.lock().admit(kind, Instant::now())
}

/// Like the function above, for each thread: tests run in parallel, and some expect such a record.
#[cfg(test)]
pub(crate) fn admit(kind: &str) -> Option<u64> {
    thread_local!(static THROTTLE: Mutex<LogThrottle> = Mutex::default());
    THROTTLE.with(|kinds| kinds.lock().admit(kind, Instant::now()))
}

/// Logs like the `tracing` macro of this level, once per [`THROTTLE_PERIOD`].
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
