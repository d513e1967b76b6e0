//! What can be told of jobs, of what is due, and of workers.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::NodeId,
        job_id::{JobId, JobState},
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
    pub(crate) is_watched: bool,
    pub(crate) response: Option<Bytes>,
    /// It was evicted or purged: state, owner, times and reason are all that is left.
    pub(crate) is_tombstone: bool,
    pub(crate) history: JobHistory,
}

/// What has happened to a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JobHistory {
    pub(crate) lock: Option<Key>,
    pub(crate) bytes: u64,
    pub(crate) accepted_us: u64,
    /// 0 = not yet; the last run.
    pub(crate) started_us: u64,
    pub(crate) ended_us: u64,
    /// Runs whose worker died, and runs that met another busy lock.
    pub(crate) crash_count: u32,
    pub(crate) busy_count: u32,
    /// Until it may run (delay, backoff), if that is to come.
    pub(crate) due_in: Option<Duration>,
    /// The last runs, at most 20: `<attempt> <began us> <ended us> <outcome>`, oldest first.
    pub(crate) recent_runs: Vec<String>,
    /// The job that has superseded it.
    pub(crate) superseded_by: Option<JobId>,
    /// Of a call: the end of another job that it tells of, `<state> <attempts> <ended us> <status or 0> <reason>`. In no
    /// list.
    pub(crate) webhook_event: Option<String>,
}

/// One row of `due.lua`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DueLocks {
    /// Locks that are due, each with its first job.
    pub(crate) locks: Vec<(Key, Option<JobId>)>,
    pub(crate) next_due_in: Option<Duration>,
}

/// What a sign of life is answered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    /// The shards this node watches now.
    pub(crate) own_shards: Vec<u16>,
    /// Those of them that have something due, or to come.
    pub(crate) busy_shards: Vec<u16>,
    /// Other live workers, at most 100 of them.
    pub(crate) peers: Vec<NodeId>,
    /// The queue is paused: nobody watches.
    pub(crate) is_paused: bool,
    /// How soon the lease of one of the others ends, if it does not live: the one after this node, in a ring of all.
    pub(crate) peer_expires_in: Option<Duration>,
}

/// Which jobs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedFilter {
    Dead,
    Done,
}

/// One page of `list.lua` or `pending.lua`: ids and facts, never bodies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JobListPage<M = u64> {
    pub(crate) jobs: Vec<(JobId, JobView)>,
    /// Where the next page begins; `None` = that was all of this shard.
    pub(crate) next_mark: Option<M>,
}

/// Behind what a page of `pending.lua` begins. The default is the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingCursor {
    /// Among the lines; before, among those that wait outside of them.
    pub(crate) in_queues: bool,
    /// Where the store's scan of them stands.
    pub(crate) scan_cursor: u64,
    /// Of what it finds there, by the hash of a line's name or of a job's id: behind this one.
    pub(crate) after_hash: u64,
    /// Or in this one, behind this sequence.
    pub(crate) after_seq: u64,
}

/// What a shard has counted: `tally.lua`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShardStats {
    /// Queued, late and running.
    pub(crate) pending: u64,
    pub(crate) bytes: u64,
    pub(crate) delayed: u64,
    /// Kept at this moment.
    pub(crate) done: u64,
    pub(crate) dead: u64,
    /// Since the beginning: ended as such, and no longer kept.
    pub(crate) trimmed_done: u64,
    pub(crate) trimmed_dead: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}
