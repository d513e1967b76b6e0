//! [`JobGroup`]: jobs in one state, for a search.

/// Group of jobs. Cancelled and expired jobs are in no listing, and so in no group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobGroup {
    /// Waiting, delayed and running jobs.
    Pending,
    /// Queued jobs that wait for their lock or for a worker.
    Waiting,
    /// Queued jobs that wait for a time: delayed, or before a retry.
    Delayed,
    /// Running jobs. A run counts as running after the death of its worker, until a claim finds it.
    Running,
    /// Jobs with a stored response.
    Done,
    /// Dead letters.
    Dead,
}
