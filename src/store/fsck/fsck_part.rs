//! Parts into which a check is divided, and the result of one part.

use super::check_finding::CheckFinding;
use crate::key::Key;

/// Subject of one step of a check.
#[derive(Debug, Clone)]
pub(crate) enum FsckPart {
    /// Page of all keys.
    KeyPage(KeyScanCursor),
    /// All indexes of a shard, and the given locks: all locks that have jobs (`are_all_locks`), or
    /// only some.
    Shard { shard: u16, locks: Vec<String>, are_all_locks: bool },
    /// Task queue.
    TaskQueue(Key),
}

/// Start of a page of keys; by default, the first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeyScanCursor {
    /// Shard by which the server to scan is chosen.
    pub(crate) shard: u16,
    pub(crate) cursor: u64,
    /// Version of the shard map at the first page, to detect shards that have moved since.
    pub(crate) topology_version: u64,
}

/// Result of one step.
#[derive(Debug, Default)]
pub(crate) struct FsckPartResult {
    pub(crate) findings: Vec<CheckFinding>,
    /// Number of examined keys, index entries and jobs.
    pub(crate) examined: u64,
    /// Number of those keys, without the one that every connection writes; only of `KeyPage`.
    pub(crate) namespace_keys: u64,
    /// Names of locks with jobs, and task queues; only of `KeyPage`.
    pub(crate) locks_with_jobs: Vec<(u16, String)>,
    pub(crate) task_queues: Vec<Key>,
    /// Start of the next page.
    pub(crate) next_page: Option<KeyScanCursor>,
    /// Estimated part of the keys before the next page, in thousandths; only of `KeyPage`.
    pub(crate) scanned_per_mille: u64,
    /// The totals were not compared, because there was too much data.
    pub(crate) totals_skipped: bool,
    /// True if no key that existed all the time was missed; only of `KeyPage`.
    pub(crate) is_complete_scan: bool,
}
