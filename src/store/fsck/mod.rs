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
//! is told ([`CheckReport::scanned`]), and sums that may be larger by them are not compared.
//!
//! What it does not see: sums over more than a hundred lines of one shard ([`CheckReport::uncounted`]), or a hundred
//! requests of one line; and what one owner has.
//!
//! `redis.rs` and `memory.rs` are modules of the two stores: what they read is private there.

mod finding;
mod pass;
mod report;

pub use self::{
    finding::{Finding, FindingKind},
    pass::Check,
    report::CheckReport,
};

use crate::key::Key;

/// What one step of a pass is about.
#[derive(Debug, Clone)]
pub(crate) enum FsckPart {
    /// A page of all names there are.
    Names(NamesFrom),
    /// All indexes of a shard, and these lines besides: `all` that have jobs, or only some.
    Shard { shard: u16, lines: Vec<String>, all: bool },
    /// A queue of tasks.
    Queue(Key),
}

/// Where a page of names begins; by default, the first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NamesFrom {
    /// The server that has this shard is asked.
    pub(crate) shard: u16,
    pub(crate) cursor: u64,
    /// What tells whether shards have moved since the first page.
    pub(crate) map: u64,
}

/// What it has found.
#[derive(Debug, Default)]
pub(crate) struct FsckFound {
    pub(crate) findings: Vec<Finding>,
    /// Names, entries and jobs that were looked at.
    pub(crate) looked: u64,
    /// Of those, names that not every connection writes: of `Names` alone.
    pub(crate) owned: u64,
    /// Lines that have jobs, by name, and queues of tasks: of `Names` alone.
    pub(crate) lines: Vec<(u16, String)>,
    pub(crate) queues: Vec<Key>,
    /// Where the next page begins.
    pub(crate) next: Option<NamesFrom>,
    /// There was too much to be summed up.
    pub(crate) uncounted: bool,
    /// No name that is there all the while is passed over: of `Names` alone.
    pub(crate) scans: bool,
}
