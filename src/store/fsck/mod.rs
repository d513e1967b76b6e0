//! Store check: examines all data of a namespace for consistency
//! ([`Store::check`](crate::Store::check)).
//!
//! The check is one bounded pass. It proves that each deferred request is in exactly one state,
//! that each key has an owner or an expiry, and that the counts are right. On request it repairs
//! the problems that it understands.
//!
//! - **It may run beside live processes.** Each step is one operation of the store and compares
//!   only data read in that operation. So a job that moves between two steps is never reported as
//!   lost.
//! - **It is bounded.** A step reads at most a hundred names, and the number of steps follows from
//!   the number of names. Nothing is locked between two steps.
//! - **It loses nothing.** A job that can still run returns to its queue. A job without its record
//!   or its envelope becomes a dead letter, as a worker's claim would make it. Unknown keys, and
//!   keys of another type, are reported and left to an operator.
//!
//! In a cluster, each cluster node that owns shards is asked for its keys. If shards move
//! meanwhile, some keys may be missed. The report says so ([`CheckReport::is_complete_scan`]), and
//! totals that might include them are not compared.
//!
//! The check does not cover
//!
//! - totals over more than a hundred locks of one shard ([`CheckReport::unsummed_shards`]);
//! - totals over more than a hundred jobs of one lock;
//! - the usage of single owners.
//!
//! `redis_shard_fsck.rs` and `memory_shard_fsck.rs` are submodules of the two stores, because the
//! data that they read are private there.

mod check_finding;
mod check_report;
mod store_check;

pub use self::{
    check_finding::{CheckFinding, FindingKind},
    check_report::CheckReport,
    store_check::StoreCheck,
};

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
    /// The totals were not compared, because there was too much data.
    pub(crate) sums_skipped: bool,
    /// True if no key that existed all the time was missed; only of `KeyPage`.
    pub(crate) is_complete_scan: bool,
}
