//! Checker of recorded histories, which finds violated guarantees of `lockgate` in a test run of a
//! service.
//!
//! 1. Each process appends a [line](format_line) to a file of its own for each event.
//! 2. Processes are killed, stopped and disconnected during the run.
//! 3. The checker reads the files and returns [violations](Violation) of each [`Guarantee`], with
//!    the shortest part of the history that shows it.
//!
//! | module | guarantees |
//! |---|---|
//! | [`locks`] | M1, M2, M3, P1, R1, F1, L1 |
//! | [`deferred`] | D1, D2, D3, D4, M1, M2 and M3 of runs, L1 of clients |
//! | [`quota`] | RL1, RL2, L1 of clients |
//! | [`idle_snapshot`] | N1, N2 |
//!
//! Times are nanoseconds on a clock that all processes of a history share. `CLOCK_MONOTONIC` is the
//! same for all processes of a host, and `Instant` and the validity time of a guard are based on
//! it, so a history comes from one host. Each line also has the wall clock in microseconds, to
//! compare it with other logs; the checks ignore it.
//!
//! ```
//! use lockgate_history::{
//!     Guarantee, ProcessIncarnation, format_line,
//!     locks::{LockEvent, LockHistory, RecordedLockMode},
//! };
//!
//! let acquisition = 1;
//! let mode = RecordedLockMode::Exclusive;
//! let request = LockEvent::Requested { acquisition, lock: "order:7".to_owned(), mode };
//! let mut history = LockHistory::default();
//! for process in 0..2 {
//!     // Both are granted the lock at 20, with the fences 5 and 6, valid until 90.
//!     let grant = LockEvent::Granted { acquisition, fence: 5 + process, valid_until: 90 };
//!     let text = format_line(10, 0, &request)
//!         + &format_line(20, 0, &grant)
//!         + &format_line(80, 0, &LockEvent::Releasing { acquisition });
//!     let incarnation = ProcessIncarnation { process: process as usize, generation: 0 };
//!     history.add_log(incarnation, &text);
//! }
//! let (stats, violations) = history.check();
//! assert_eq!((stats.hold_count, violations[0].guarantee), (2, Guarantee::M1));
//! ```

pub mod deferred;
pub mod idle_snapshot;
pub mod locks;
pub mod quota;
mod violation;

use std::fmt;

pub use self::violation::{Guarantee, Violation};

/// One incarnation of a process; a replacement is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIncarnation {
    /// Number of the process, which its replacements keep.
    pub process: usize,
    /// Counts the replacements, from 0.
    pub generation: u32,
}

/// Nanoseconds of a millisecond.
const NANOS_PER_MILLI: u64 = 1_000_000;

/// Formats a line of a history: the time on the history's clock in ns, the wall clock in us since
/// 1970, and the event.
///
/// Write it by one call to a file that is open for appending. Then a kill loses no written line,
/// and leaves at most one incomplete line.
#[must_use]
pub fn format_line(at: u64, wall: u64, event: &impl fmt::Display) -> String {
    format!("{at} {wall} {event}\n")
}

/// Parses the time and the event of each complete line.
fn parse_lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let complete_lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    complete_lines.filter_map(|line| {
        let (at, wall_and_event) = line.split_once(' ')?;
        let (wall, event) = wall_and_event.split_once(' ')?;
        wall.parse::<u64>().ok()?;
        Some((at.parse().ok()?, event))
    })
}
