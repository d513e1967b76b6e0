//! [`CheckProgress`]: how far a store check has come.

use crate::key::SHARD_COUNT;

/// Part of a check that the scan of the keys counts for; the shards and queues follow.
const SCAN_PER_MILLE: u64 = 500;

/// How far a check has come; see [`StoreCheck::on_progress`](super::StoreCheck::on_progress).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Number of keys, index entries and jobs that were examined so far.
    pub examined: u64,
    /// Part of the check that is done, in thousandths: an estimate from the position in the scan of
    /// the keys, and from the number of shards and queues afterwards. It does not fall.
    pub done_per_mille: u64,
}

impl CheckProgress {
    pub(super) fn of_scan(examined: u64, scanned_per_mille: u64) -> Self {
        Self { examined, done_per_mille: scanned_per_mille * SCAN_PER_MILLE / 1_000 }
    }

    /// After so many shards and queues.
    pub(super) fn of_indexes(examined: u64, done: u64, queue_count: usize) -> Self {
        let total = u64::from(SHARD_COUNT) + queue_count as u64;
        let done_per_mille = SCAN_PER_MILLE + (1_000 - SCAN_PER_MILLE) * done / total;
        Self { examined, done_per_mille }
    }
}
