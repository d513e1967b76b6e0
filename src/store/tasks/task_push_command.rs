//! Pushing.

use std::time::Duration;

use bytes::Bytes;

use super::TaskId;
use crate::key::Key;

/// A task that has been due for so long, in us, while somebody was idle: its message must have been lost.
pub(crate) const OVERDUE_US: u64 = 50_000;

/// `tasks_push.lua`, one of several.
#[derive(Debug, Clone)]
pub(crate) struct TaskPushCommand {
    pub(crate) queue: Key,
    pub(crate) id: TaskId,
    pub(crate) delay: Duration,
    pub(crate) unique: Option<UniqueKey>,
    /// May run again after a crash.
    pub(crate) retry_after_crash: bool,
    pub(crate) max_attempts: u32,
    pub(crate) payload: Bytes,
    /// Most tasks that wait, and most bytes of those that wait or run.
    pub(crate) capacity: (u64, u64),
}

/// What no two tasks may have in common.
#[derive(Debug, Clone)]
pub(crate) struct UniqueKey {
    pub(crate) name: Key,
    /// For so long from the push, whatever becomes of the task; `None` = as long as the task waits or runs.
    pub(crate) window: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskPushOutcome {
    Stored,
    /// This one has the unique key.
    Duplicate(TaskId),
    Full,
}
