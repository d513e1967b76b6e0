//! Cursor between two pages of a listing.

use std::{fmt, str::FromStr};

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

impl JobCursor {
    /// Returns the start of this shard; `None` after the last one.
    pub(super) fn start_of(shard: u16) -> Option<Self> {
        (shard < SHARD_COUNT).then(|| Self { shard, position: ShardPosition::default() })
    }
}

impl ShardPosition {
    pub(super) fn ended_offset(self) -> u64 {
        match self {
            Self::Ended(from) => from,
            Self::Pending(_) => 0,
        }
    }

    pub(super) fn pending_mark(self) -> PendingCursor {
        match self {
            Self::Ended(_) => PendingCursor::default(),
            Self::Pending(mark) => mark,
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
            ShardPosition::Ended(from) => write!(f, "{}.{from}", self.shard),
            ShardPosition::Pending(PendingCursor {
                in_queues: in_line,
                scan_cursor: scan,
                after_hash: hash,
                after_seq: seq,
            }) => {
                write!(f, "{}.{}.{scan}.{hash:x}.{seq}", self.shard, u8::from(in_line))
            }
        }
    }
}

impl FromStr for JobCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let parts: Vec<_> = text.split('.').collect();
        let (shard, at) = match parts[..] {
            [shard, from] => (shard, ShardPosition::Ended(parse_number(from)?)),
            [shard, part @ ("0" | "1"), scan, hash, seq] => {
                let hash = u64::from_str_radix(hash, 16).map_err(|_| ParseCursorError)?;
                let (in_line, scan, seq) = (part == "1", parse_number(scan)?, parse_number(seq)?);
                (
                    shard,
                    ShardPosition::Pending(PendingCursor {
                        in_queues: in_line,
                        scan_cursor: scan,
                        after_hash: hash,
                        after_seq: seq,
                    }),
                )
            }
            _ => return Err(ParseCursorError),
        };
        let shard = shard.parse().map_err(|_| ParseCursorError)?;
        if shard < SHARD_COUNT { Ok(Self { shard, position: at }) } else { Err(ParseCursorError) }
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
