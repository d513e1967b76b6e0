//! Events of locks that processes log, one line each, so that a kill loses no written event.

use std::{fmt, str::FromStr};

use crate::parse_lines;

/// Requested mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedLockMode {
    /// One holder.
    Exclusive,
    /// Any number of readers.
    Shared,
    /// This number of holders.
    Permits(u32),
}

impl fmt::Display for RecordedLockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("x"),
            Self::Shared => f.write_str("s"),
            Self::Permits(most) => write!(f, "p{most}"),
        }
    }
}

impl FromStr for RecordedLockMode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match (text, text.strip_prefix('p').map(str::parse)) {
            ("x", _) => Ok(Self::Exclusive),
            ("s", _) => Ok(Self::Shared),
            (_, Some(Ok(most))) => Ok(Self::Permits(most)),
            _ => Err(()),
        }
    }
}

/// Event of one process, written and parsed as one line of words. The first number identifies the
/// acquisition within its process; times are those of the history's clock in ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEvent {
    /// About to acquire: lock, mode.
    Requested(u64, String, RecordedLockMode),
    /// Granted: fence, end of the validity time.
    Granted(u64, u64, u64),
    /// Refused, because the lock is busy or the wait has timed out.
    Refused(u64),
    /// The store was unavailable.
    Failed(u64),
    /// The future was dropped.
    Cancelled(u64),
    /// Renewed: end of the validity time.
    Renewed(u64, u64),
    /// The loss was reported to the holder.
    LossReported(u64),
    /// The fenced register took this value.
    Written(u64, u64),
    /// About to release or drop the lock.
    Releasing(u64),
    /// Released, with this outcome.
    Released(u64, String),
    /// The process was stalled since this time.
    Stalled(u64),
}

impl fmt::Display for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(op, lock, mode) => write!(f, "ask {op} {lock} {mode}"),
            Self::Granted(op, fence, valid) => write!(f, "got {op} {fence} {valid}"),
            Self::Refused(op) => write!(f, "busy {op}"),
            Self::Failed(op) => write!(f, "fault {op}"),
            Self::Cancelled(op) => write!(f, "gone {op}"),
            Self::Renewed(op, valid) => write!(f, "holds {op} {valid}"),
            Self::LossReported(op) => write!(f, "lost {op}"),
            Self::Written(op, value) => write!(f, "wrote {op} {value}"),
            Self::Releasing(op) => write!(f, "letting {op}"),
            Self::Released(op, outcome) => write!(f, "let {op} {outcome}"),
            Self::Stalled(since) => write!(f, "stall {since}"),
        }
    }
}

impl FromStr for LockEvent {
    type Err = ();

    #[expect(clippy::indexing_slicing, reason = "what is split has at least one part")]
    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<_> = text.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).ok_or(());
        let word = |at: usize| words.get(at).map(|word| (*word).to_owned()).ok_or(());
        let op = number(1)?;
        Ok(match words[0] {
            "ask" => Self::Requested(op, word(2)?, word(3)?.parse()?),
            "got" => Self::Granted(op, number(2)?, number(3)?),
            "busy" => Self::Refused(op),
            "fault" => Self::Failed(op),
            "gone" => Self::Cancelled(op),
            "holds" => Self::Renewed(op, number(2)?),
            "lost" => Self::LossReported(op),
            "wrote" => Self::Written(op, number(2)?),
            "letting" => Self::Releasing(op),
            "let" => Self::Released(op, word(2)?),
            "stall" => Self::Stalled(op),
            _ => return Err(()),
        })
    }
}

/// Parses the events of a log; a line that a kill has cut off is ignored.
pub(super) fn parse_events(text: &str) -> Vec<(u64, LockEvent)> {
    parse_lines(text).filter_map(|(at, event)| Some((at, event.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_line;

    #[test]
    fn lock_events_round_trip_through_a_log() {
        let events = [
            LockEvent::Requested(1, "hot".into(), RecordedLockMode::Permits(3)),
            LockEvent::Granted(1, 17, 99),
            LockEvent::Refused(2),
            LockEvent::Failed(3),
            LockEvent::Cancelled(4),
            LockEvent::Renewed(1, 100),
            LockEvent::LossReported(1),
            LockEvent::Written(1, 5),
            LockEvent::Releasing(1),
            LockEvent::Released(1, "Released".into()),
            LockEvent::Stalled(7),
        ];
        let text: String = events.iter().map(|event| format_line(8, 70, event)).collect();
        let read: Vec<_> =
            parse_events(&format!("{text}9 70 got 5 1")).into_iter().map(|(_, e)| e).collect();
        assert_eq!(read, events);
    }
}
