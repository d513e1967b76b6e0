//! `JobCursor`: the position between two pages of a listing.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::{error::ParseCursorError, key::SHARD_COUNT, store::PendingCursor};

/// Start of a page. The default is the first page.
///
/// A cursor has a text form for URLs, which reveals no name and no id. It is valid for the listing
/// that returned it; another listing starts at the beginning of its shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobCursor {
    pub(super) shard: u16,
    pub(super) position: ShardPosition,
}

/// Position within a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardPosition {
    /// Ended jobs: offset of the first one, 0 for all.
    Ended(u64),
    /// Queued and running jobs.
    Pending(PendingCursor),
}

impl Serialize for JobCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JobCursor {
    /// Returns the start of this shard; `None` after the last one.
    pub(super) fn start_of(shard: u16) -> Option<Self> {
        (shard < SHARD_COUNT).then(|| Self { shard, position: ShardPosition::default() })
    }
}

impl ShardPosition {
    pub(super) fn ended_offset(self) -> u64 {
        match self {
            Self::Ended(offset) => offset,
            Self::Pending(_) => 0,
        }
    }

    pub(super) fn pending_cursor(self) -> PendingCursor {
        match self {
            Self::Ended(_) => PendingCursor::default(),
            Self::Pending(cursor) => cursor,
        }
    }
}

impl Default for ShardPosition {
    fn default() -> Self {
        Self::Ended(0)
    }
}

impl fmt::Display for JobCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            ShardPosition::Ended(offset) => write!(f, "{}.{offset}", self.shard),
            ShardPosition::Pending(PendingCursor {
                in_queues,
                scan_cursor,
                after_hash,
                after_seq,
            }) => {
                let (shard, in_queues) = (self.shard, u8::from(in_queues));
                write!(f, "{shard}.{in_queues}.{scan_cursor}.{after_hash:x}.{after_seq}")
            }
        }
    }
}

impl FromStr for JobCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let parts: Vec<_> = text.split('.').collect();
        let (shard, position) = match parts[..] {
            [shard, offset] => (shard, ShardPosition::Ended(parse_number(offset)?)),
            [shard, in_queues @ ("0" | "1"), scan_cursor, hash, seq] => {
                let after_hash = u64::from_str_radix(hash, 16).map_err(|_| ParseCursorError)?;
                let cursor = PendingCursor {
                    in_queues: in_queues == "1",
                    scan_cursor: parse_number(scan_cursor)?,
                    after_hash,
                    after_seq: parse_number(seq)?,
                };
                (shard, ShardPosition::Pending(cursor))
            }
            _ => return Err(ParseCursorError),
        };
        let shard = shard.parse().map_err(|_| ParseCursorError)?;
        if shard < SHARD_COUNT { Ok(Self { shard, position }) } else { Err(ParseCursorError) }
    }
}

fn parse_number(text: &str) -> Result<u64, ParseCursorError> {
    text.parse().map_err(|_| ParseCursorError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_through_its_text() {
        let pending = PendingCursor {
            in_queues: true,
            scan_cursor: u64::MAX,
            after_hash: 0xab,
            after_seq: 17,
        };
        for at in [
            ShardPosition::Ended(17),
            ShardPosition::Pending(pending),
            ShardPosition::Pending(PendingCursor::default()),
        ] {
            let cursor = JobCursor { shard: 63, position: at };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for none in
            ["", "64.0", "1", "a.b", "1.-1", "1.2.3", "1.2.0.0.0", "1.1.0.g.0", "64.1.0.0.0"]
        {
            assert_eq!(none.parse::<JobCursor>(), Err(ParseCursorError), "{none}");
        }
    }
}
