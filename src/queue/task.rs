//! `Task`: a task as its handler sees it.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;

use crate::store::{RunCancellation, TaskId};

/// Task of the current run.
///
/// ```
/// use lockgate::{
///     Store,
///     queue::{Queue, Task, TaskFailure},
/// };
///
/// # async fn deliver(_: &str, _: &str) -> Result<(), std::io::Error> { Ok(()) }
/// async fn send(task: Task<String>) -> Result<(), TaskFailure> {
///     if !task.payload.contains('@') {
///         // A retry would not help: the task becomes a dead letter.
///         return Err(TaskFailure::dead_letter("not an address"));
///     }
///     // Any error is a failed attempt, and is retried. The id is the same in all attempts.
///     deliver(&task.payload, task.id().as_str()).await?;
///     Ok(())
/// }
///
/// let emails: Queue<String> = Store::memory().queue("emails");
/// let worker = emails.worker(send);
/// ```
pub struct Task<T> {
    /// The payload that was pushed.
    pub payload: T,
    info: TaskAttemptInfo,
}

/// Data of a task and its attempt, without the payload.
#[derive(Debug, Clone)]
pub(super) struct TaskAttemptInfo {
    pub(super) id: TaskId,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) pushed_us: u64,
    /// Time at which the task was first due.
    pub(super) due_us: u64,
    pub(super) cancellation: RunCancellation,
}

/// Claimed task with its encoded payload.
pub(super) struct UndecodedTask {
    pub(super) info: TaskAttemptInfo,
    pub(super) payload: Bytes,
}

impl<T> Task<T> {
    pub(super) fn new(payload: T, info: TaskAttemptInfo) -> Self {
        Self { payload, info }
    }

    /// Returns the task's id, the same for all attempts: use it as idempotency key for other
    /// services.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.info.id
    }

    /// Returns the number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.info.attempt
    }

    /// Returns true if the task becomes a dead letter should this attempt fail.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.info.attempt >= self.info.max_attempts
    }

    /// Returns what tells the handler that an operator cancels the run. A cancelled run that fails
    /// is not repeated, and its task is deleted.
    #[must_use]
    pub fn cancellation(&self) -> &RunCancellation {
        &self.info.cancellation
    }

    /// Returns the time of the push, by the store's clock, to the microsecond.
    #[must_use]
    pub fn pushed_at(&self) -> SystemTime {
        system_time(self.info.pushed_us)
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the payload, which may be confidential.
        let TaskAttemptInfo { id, attempt, .. } = &self.info;
        f.debug_struct("Task").field("id", id).field("attempt", attempt).finish_non_exhaustive()
    }
}

/// Converts a time of the store's clock.
pub(super) fn system_time(us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us)
}
