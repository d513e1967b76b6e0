//! Checker of recorded histories: finds each guarantee of `lockgate` that a run of a service has broken.
//!
//! Let each process append a [line](line()) to a file of its own for whatever it does and sees; kill, stop and
//! cut off processes as you like; then read the files and ask for [violations](Violation). What is checked is
//! [`Guarantee`]: each finding has the shortest part of the history that shows it.
//!
//! | | |
//! |---|---|
//! | [`locks`] | M1, M2, M3, P1, R1, F1, L1 |
//! | [`deferred`] | D1, D2, D3, D4, M1, M2 and M3 of runs, and L1 of clients |
//! | [`quota`] | RL1, RL2, and L1 of clients |
//! | [`rest`] | N1, N2: what is left when all is quiet, and what it cost |
//!
//! Times are nanoseconds on one clock of all processes of a history. `CLOCK_MONOTONIC` is one for all processes of a
//! host, and the one that `Instant` and the validity of a guard are made of: a history is of one host. Beside it each
//! line has the wall's time in microseconds, for those who compare it with other logs; nothing is judged by it.
//!
//! ```
//! use lockgate_history::{Guarantee, ProcessIncarnation, line, locks::{Event, History, Mode}};
//!
//! let ask = Event::Ask(1, "order:7".to_owned(), Mode::Exclusive);
//! let mut history = History::default();
//! for process in 0..2 {
//!     // Both are told at 20 that they have it, with the fences 5 and 6, and are sure of it until 90.
//!     let got = Event::Got(1, 5 + process, 90);
//!     let text = line(10, 0, &ask) + &line(20, 0, &got) + &line(80, 0, &Event::Letting(1));
//!     history.read(ProcessIncarnation { process: process as usize, number: 0 }, &text);
//! }
//! let (looked, wrong) = history.check();
//! assert_eq!((looked.holds, wrong[0].check), (2, Guarantee::M1));
//! ```

pub mod deferred;
pub mod idle_snapshot;
pub mod locks;
pub mod quota;
mod violation;

use std::fmt;

pub use self::violation::{Guarantee, Violation};

/// One life of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIncarnation {
    /// Which of those that replace each other.
    pub process: usize,
    /// From 0, one more with each replacement.
    pub generation: u32,
}

/// A millisecond in ns.
const NANOS_PER_MILLI: u64 = 1_000_000;

/// A line of a history: the time on the history's clock (ns), the wall's (us since 1970), and what happened.
/// Write it with one call to a file that was opened for appending: then a kill loses nothing that was written,
/// and leaves at most a line without its end.
#[must_use]
pub fn format_line(at: u64, wall: u64, event: &impl fmt::Display) -> String {
    format!("{at} {wall} {event}\n")
}

/// The time and the event of each whole line.
fn parse_lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole.filter_map(|line| {
        let (at, rest) = line.split_once(' ')?;
        let (wall, event) = rest.split_once(' ')?;
        wall.parse::<u64>().ok()?;
        Some((at.parse().ok()?, event))
    })
}
