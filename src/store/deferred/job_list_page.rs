//! `JobListPage`: page of a shard's ended or pending jobs, with its filter and its cursor.

use super::job_view::JobView;
use crate::store::job_id::JobId;

/// Filter of listed jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedJobFilter {
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
