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
//! - totals over more than fifty jobs of one lock;
//! - the usage of single owners.
//!
//! `redis_key_scan_fsck.rs`, `redis_shard_and_queue_fsck.rs` and `memory_shard_fsck.rs` are
//! submodules of the two stores, because the data that they read are private there.

mod check_finding;
mod check_progress;
mod check_report;
mod fsck_part;
mod store_check;

pub(crate) use self::fsck_part::{FsckPart, FsckPartResult, KeyScanCursor};
pub use self::{
    check_finding::{CheckFinding, FindingKind},
    check_progress::CheckProgress,
    check_report::CheckReport,
    store_check::StoreCheck,
};
