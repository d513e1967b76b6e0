//! `LockEvent`: events of locks that processes log, one line each, so that a kill loses no written
//! event.

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
            Self::Permits(max_holders) => write!(f, "p{max_holders}"),
        }
    }
}

impl FromStr for RecordedLockMode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match (text, text.strip_prefix('p').map(str::parse)) {
            ("x", _) => Ok(Self::Exclusive),
            ("s", _) => Ok(Self::Shared),
            (_, Some(Ok(max_holders))) => Ok(Self::Permits(max_holders)),
            _ => Err(()),
        }
    }
}

/// Event of one process, written and parsed as one line of space-separated parts. `acquisition`
/// identifies the acquisition within its process; times are those of the history's clock in ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEvent {
    /// About to acquire.
    Requested {
        /// Number of the acquisition.
        acquisition: u64,
        /// Name of the lock.
        lock: String,
        /// Requested mode.
        mode: RecordedLockMode,
    },
    /// The lock was granted.
    Granted {
        /// Number of the acquisition.
        acquisition: u64,
        /// Fence of the grant.
        fence: u64,
        /// End of the validity time in ns.
        valid_until: u64,
    },
    /// Refused, because the lock is busy or the wait has timed out.
    Refused {
        /// Number of the acquisition.
        acquisition: u64,
    },
    /// The store was unavailable.
    Failed {
        /// Number of the acquisition.
        acquisition: u64,
    },
    /// The future was dropped.
    Cancelled {
        /// Number of the acquisition.
        acquisition: u64,
    },
    /// The lease was renewed.
    Renewed {
        /// Number of the acquisition.
        acquisition: u64,
        /// End of the validity time in ns.
        valid_until: u64,
    },
    /// The loss was reported to the holder.
    LossReported {
        /// Number of the acquisition.
        acquisition: u64,
    },
    /// The fenced register took a value.
    Written {
        /// Number of the acquisition.
        acquisition: u64,
        /// The value.
        value: u64,
    },
    /// About to release or drop the lock.
    Releasing {
        /// Number of the acquisition.
        acquisition: u64,
    },
    /// The lock was released.
    Released {
        /// Number of the acquisition.
        acquisition: u64,
        /// Release status, one word.
        outcome: String,
    },
    /// The process was stalled.
    Stalled {
        /// Start of the stall in ns.
        since: u64,
    },
}

impl fmt::Display for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested { acquisition, lock, mode } => {
                write!(f, "ask {acquisition} {lock} {mode}")
            }
            Self::Granted { acquisition, fence, valid_until } => {
                write!(f, "got {acquisition} {fence} {valid_until}")
            }
            Self::Refused { acquisition } => write!(f, "busy {acquisition}"),
            Self::Failed { acquisition } => write!(f, "fault {acquisition}"),
            Self::Cancelled { acquisition } => write!(f, "gone {acquisition}"),
            Self::Renewed { acquisition, valid_until } => {
                write!(f, "holds {acquisition} {valid_until}")
            }
            Self::LossReported { acquisition } => write!(f, "lost {acquisition}"),
            Self::Written { acquisition, value } => write!(f, "wrote {acquisition} {value}"),
            Self::Releasing { acquisition } => write!(f, "letting {acquisition}"),
            Self::Released { acquisition, outcome } => write!(f, "let {acquisition} {outcome}"),
            Self::Stalled { since } => write!(f, "stall {since}"),
        }
    }
}

impl FromStr for LockEvent {
    type Err = ();

    #[expect(clippy::indexing_slicing, reason = "a split text has at least one part")]
    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<_> = text.split(' ').collect();
        let number = |index: usize| parts.get(index).and_then(|part| part.parse().ok()).ok_or(());
        let string = |index: usize| parts.get(index).map(|part| (*part).to_owned()).ok_or(());
        let acquisition = number(1)?;
        Ok(match parts[0] {
            "ask" => Self::Requested { acquisition, lock: string(2)?, mode: string(3)?.parse()? },
            "got" => Self::Granted { acquisition, fence: number(2)?, valid_until: number(3)? },
            "busy" => Self::Refused { acquisition },
            "fault" => Self::Failed { acquisition },
            "gone" => Self::Cancelled { acquisition },
            "holds" => Self::Renewed { acquisition, valid_until: number(2)? },
            "lost" => Self::LossReported { acquisition },
            "wrote" => Self::Written { acquisition, value: number(2)? },
            "letting" => Self::Releasing { acquisition },
            "let" => Self::Released { acquisition, outcome: string(2)? },
            "stall" => Self::Stalled { since: acquisition },
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
        let acquisition = 1;
        let events = [
            LockEvent::Requested {
                acquisition,
                lock: "hot".into(),
                mode: RecordedLockMode::Permits(3),
            },
            LockEvent::Granted { acquisition, fence: 17, valid_until: 99 },
            LockEvent::Refused { acquisition: 2 },
            LockEvent::Failed { acquisition: 3 },
            LockEvent::Cancelled { acquisition: 4 },
            LockEvent::Renewed { acquisition, valid_until: 100 },
            LockEvent::LossReported { acquisition },
            LockEvent::Written { acquisition, value: 5 },
            LockEvent::Releasing { acquisition },
            LockEvent::Released { acquisition, outcome: "Released".into() },
            LockEvent::Stalled { since: 7 },
        ];
        let text: String = events.iter().map(|event| format_line(8, 70, event)).collect();
        let parsed: Vec<_> = parse_events(&format!("{text}9 70 got 5 1"))
            .into_iter()
            .map(|(_, event)| event)
            .collect();
        assert_eq!(parsed, events);
    }
}
