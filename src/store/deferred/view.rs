//! What can be told of jobs, of what is due, and of workers.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::Node,
        job::{JobId, JobState},
    },
};

/// What can be told of a job: `job.lua`, one call, reads only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobView {
    pub(crate) state: JobState,
    pub(crate) attempts: u32,
    /// From 1; `None` once it has left the line, and while it is late.
    pub(crate) position: Option<u64>,
    pub(crate) reason: Option<String>,
    pub(crate) owner: String,
    /// Whether any worker watches the job's shard.
    pub(crate) watched: bool,
    pub(crate) response: Option<Bytes>,
    /// It was evicted or purged: state, owner, times and reason are all that is left.
    pub(crate) tombstone: bool,
    pub(crate) past: Past,
}

/// What has happened to a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) lock: Option<Key>,
    pub(crate) bytes: u64,
    pub(crate) accepted_us: u64,
    /// 0 = not yet; the last run.
    pub(crate) began_us: u64,
    pub(crate) ended_us: u64,
    /// Runs whose worker died, and runs that met another busy lock.
    pub(crate) crashes: u32,
    pub(crate) busy: u32,
    /// Until it may run (delay, backoff), if that is to come.
    pub(crate) due_in: Option<Duration>,
    /// The last runs, at most 20: `<attempt> <began us> <ended us> <outcome>`, oldest first.
    pub(crate) runs: Vec<String>,
    /// The job that has superseded it.
    pub(crate) by: Option<JobId>,
    /// Of a call: the end of another job that it tells of, `<state> <attempts> <ended us> <status or 0> <reason>`. In no
    /// list.
    pub(crate) tells: Option<String>,
}

/// One row of `due.lua`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Locks that are due, each with its first job.
    pub(crate) names: Vec<(Key, Option<JobId>)>,
    pub(crate) next: Option<Duration>,
}

/// What a sign of life is answered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    /// The shards this node watches now.
    pub(crate) mine: Vec<u16>,
    /// Those of them that have something due, or to come.
    pub(crate) busy: Vec<u16>,
    /// Other live workers, at most 100 of them.
    pub(crate) others: Vec<Node>,
    /// The queue is paused: nobody watches.
    pub(crate) paused: bool,
    /// How soon the lease of one of the others ends, if it does not live: the one after this node, in a ring of all.
    pub(crate) lapse: Option<Duration>,
}

/// Which jobs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    Dead,
    Done,
}

/// One page of `list.lua` or `pending.lua`: ids and facts, never bodies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listed<M = u64> {
    pub(crate) jobs: Vec<(JobId, JobView)>,
    /// Where the next page begins; `None` = that was all of this shard.
    pub(crate) next: Option<M>,
}

/// Behind what a page of `pending.lua` begins. The default is the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingMark {
    /// Among the lines; before, among those that wait outside of them.
    pub(crate) in_line: bool,
    /// Where the store's scan of them stands.
    pub(crate) scan: u64,
    /// Of what it finds there, by the hash of a line's name or of a job's id: behind this one.
    pub(crate) hash: u64,
    /// Or in this one, behind this sequence.
    pub(crate) seq: u64,
}

/// What a shard has counted: `tally.lua`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Queued, late and running.
    pub(crate) pending: u64,
    pub(crate) bytes: u64,
    pub(crate) late: u64,
    /// Kept at this moment.
    pub(crate) done: u64,
    pub(crate) dead: u64,
    /// Since the beginning: ended as such, and no longer kept.
    pub(crate) trimmed_done: u64,
    pub(crate) trimmed_dead: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}
