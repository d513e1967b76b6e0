//! `JobView`: state and history of a job, read in one call.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::job_id::{JobId, JobState},
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
    /// Method and route pattern of the request.
    pub(crate) route: Option<String>,
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
