//! Views of jobs, of due locks, and of workers.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::NodeId,
        job_id::{JobId, JobState},
    },
};

/// State of a job, read in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobView {
    pub(crate) state: JobState,
    pub(crate) attempts: u32,
    /// Counts from 1. `None` once the job has left the queue, and while it is delayed.
    pub(crate) position: Option<u64>,
    pub(crate) reason: Option<String>,
    pub(crate) owner: String,
    /// A worker watches the job's shard.
    pub(crate) is_watched: bool,
    pub(crate) response: Option<Bytes>,
    /// The job was evicted or purged: only its state, owner, times and reason are left.
    pub(crate) is_tombstone: bool,
    pub(crate) history: JobHistory,
}

/// Events of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JobHistory {
    pub(crate) lock: Option<Key>,
    pub(crate) bytes: u64,
    pub(crate) accepted_us: u64,
    /// Start of the last run; 0 = none yet.
    pub(crate) started_us: u64,
    pub(crate) ended_us: u64,
    /// Runs that ended with a crash of their worker.
    pub(crate) crash_count: u32,
    /// Runs that met another busy lock.
    pub(crate) busy_count: u32,
    /// Time until the job may run, after a delay or a backoff.
    pub(crate) due_in: Option<Duration>,
    /// The last runs, at most 20, oldest first: `<attempt> <began us> <ended us> <outcome>`.
    pub(crate) recent_runs: Vec<String>,
    /// Job that superseded this one.
    pub(crate) superseded_by: Option<JobId>,
    /// In a webhook job, the end that it reports: `<state> <attempts> <ended us> <status or 0>
    /// <reason>`. Not set in lists.
    pub(crate) webhook_event: Option<String>,
}

/// Due locks of one shard, returned by `JobBackend::poll_due`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DueLocks {
    /// Locks that are due, each with its first job.
    pub(crate) locks: Vec<(Key, Option<JobId>)>,
    pub(crate) next_due_in: Option<Duration>,
}

/// Reply to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    /// Shards that this node watches now.
    pub(crate) own_shards: Vec<u16>,
    /// Those of `own_shards` with a job that is due, or will be.
    pub(crate) busy_shards: Vec<u16>,
    /// Other live workers, at most 100.
    pub(crate) peers: Vec<NodeId>,
    /// The queue is paused, and no worker watches a shard.
    pub(crate) is_paused: bool,
    /// Time until the lease of the next worker in the ring of all workers ends, if it is not
    /// renewed.
    pub(crate) peer_expires_in: Option<Duration>,
}

/// Filter of listed jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedFilter {
    Dead,
    Done,
}

/// Page of a list of jobs. It contains no requests and no responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JobListPage<M = u64> {
    pub(crate) jobs: Vec<(JobId, JobView)>,
    /// Start of the next page; `None` = this was the last of the shard.
    pub(crate) next_mark: Option<M>,
}

/// Position behind which a page of pending jobs begins; the default is the beginning. Jobs outside
/// of queues come first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingCursor {
    /// The position is in the queues, and no longer among the delayed jobs.
    pub(crate) in_queues: bool,
    /// Cursor of the store's scan.
    pub(crate) scan_cursor: u64,
    /// Position in the result of that scan step, by the hash of a queue's name or of a job's id:
    /// behind this one.
    pub(crate) after_hash: u64,
    /// Or in the queue with this hash, behind this sequence.
    pub(crate) after_seq: u64,
}

/// Counters of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShardStats {
    /// Jobs that are queued, delayed or running.
    pub(crate) pending: u64,
    pub(crate) bytes: u64,
    pub(crate) delayed: u64,
    /// Done jobs that are kept at present.
    pub(crate) done: u64,
    /// Dead jobs that are kept at present.
    pub(crate) dead: u64,
    /// Done jobs that are not kept any more, since the start of the data.
    pub(crate) trimmed_done: u64,
    /// Dead jobs that are not kept any more, since the start of the data.
    pub(crate) trimmed_dead: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}
