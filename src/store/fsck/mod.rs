//! Whether all that the store keeps belongs to something: [`Store::check`](crate::Store::check).
//!
//! One bounded pass over a namespace. It proves that each deferred request is in exactly one state, that each key
//! has an owner or an end, and that what is counted is what is there; on request it mends what it understands.
//!
//! - **It may run while the fleet works.** Each look is one step of the store and compares only what it has read in
//!   that step, so a request that moves between two looks is never taken for one that is lost.
//! - **It is bounded.** A look reads at most a hundred names; a pass is as many looks as there are names. Nothing is
//!   held between two of them.
//! - **It loses nothing.** A request that can still run is put back into its line; one that can't (its facts or its
//!   envelope are gone) is a dead letter, as a worker's visit would make it. Keys it does not know, and those of
//!   another type, are told of and left to a person.
//!
//! On a cluster each node that has shards is asked for its names. If shards move meanwhile, some may be passed over: that
//! is told ([`CheckReport::is_complete_scan`]), and sums that may be larger by them are not compared.
//!
//! What it does not see: sums over more than a hundred lines of one shard ([`CheckReport::unsummed_shards`]), or a hundred
//! requests of one line; and what one owner has.
//!
//! `redis.rs` and `memory.rs` are modules of the two stores: what they read is private there.

mod check_finding;
mod check_report;
mod store_check;

pub use self::{
    check_finding::{CheckFinding, FindingKind},
    check_report::CheckReport,
    store_check::StoreCheck,
};

use crate::key::Key;

/// What one step of a pass is about.
#[derive(Debug, Clone)]
pub(crate) enum FsckPart {
    /// A page of all names there are.
    KeyPage(KeyScanCursor),
    /// All indexes of a shard, and these lines besides: `are_all_locks` that have jobs, or only some.
    Shard { shard: u16, locks: Vec<String>, are_all_locks: bool },
    /// A queue of tasks.
    TaskQueue(Key),
}

/// Where a page of names begins; by default, the first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeyScanCursor {
    /// The server that has this shard is asked.
    pub(crate) shard: u16,
    pub(crate) cursor: u64,
    /// What tells whether shards have moved since the first page.
    pub(crate) topology_version: u64,
}

/// What it has found.
#[derive(Debug, Default)]
pub(crate) struct FsckPartResult {
    pub(crate) findings: Vec<CheckFinding>,
    /// Names, entries and jobs that were looked at.
    pub(crate) examined: u64,
    /// Of those, names that not every connection writes: of `Names` alone.
    pub(crate) namespace_keys: u64,
    /// Lines that have jobs, by name, and queues of tasks: of `Names` alone.
    pub(crate) locks_with_jobs: Vec<(u16, String)>,
    pub(crate) task_queues: Vec<Key>,
    /// Where the next page begins.
    pub(crate) next_page: Option<KeyScanCursor>,
    /// There was too much to be summed up.
    pub(crate) sums_skipped: bool,
    /// No name that is there all the while is passed over: of `Names` alone.
    pub(crate) is_complete_scan: bool,
}
