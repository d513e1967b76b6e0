//! `TaskView`: state of a task, with pages of dead letters and of purges, and statistics of a
//! queue.

use std::time::Duration;

use serde::Serialize;

use super::{TaskHistory, TaskId};

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TaskState {
    /// The task waits to be run, or for its due time.
    Waiting,
    /// A worker runs the task, or died with it a moment ago.
    Running,
    /// The task was given up, and is kept for inspection.
    Dead,
}

/// View of a task, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskView {
    pub(crate) id: TaskId,
    pub(crate) state: TaskState,
    /// Time until the task is due; zero if it is.
    pub(crate) due_in: Duration,
    pub(crate) pushed_us: u64,
    /// Length of the payload.
    pub(crate) payload_bytes: u64,
    pub(crate) history: TaskHistory,
}

/// Page of dead letters, and the start of the next page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeadLetterPage {
    pub(crate) dead_letters: Vec<TaskView>,
    pub(crate) next: Option<u64>,
}

/// Filter of listed tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskFilter {
    /// Waiting tasks that are due, in the order in which they start.
    Due,
    /// Waiting tasks that are not due yet, by due time.
    Delayed,
    /// Tasks that run, by the end of their leases.
    Running,
}

impl TaskFilter {
    /// Returns the name of the filter, also that of the store's operation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Delayed => "delayed",
            Self::Running => "running",
        }
    }
}

/// Page of tasks that wait or run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TaskListPage {
    pub(crate) tasks: Vec<TaskView>,
    /// Number of tasks before the next page; `None` at the end.
    pub(crate) next: Option<u64>,
    /// Time for which the queue's first task has been due.
    pub(crate) oldest_due: Duration,
}

/// Position of a purge of waiting tasks. The purge visits them by due time, and deletes those that
/// were pushed before it began. Times are in us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PurgeCursor {
    /// Last position in the order of pushes that is deleted.
    pub(crate) last_push: u64,
    /// Due time at which the walk continues.
    pub(crate) from_us: u64,
    /// Due time at which the walk ends: that of the last task when the walk began.
    pub(crate) until_us: u64,
}

/// Number of tasks that one call has deleted, and the position of the next call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PurgePage {
    pub(crate) purged: usize,
    pub(crate) next: Option<PurgeCursor>,
}

/// Statistics of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueStats {
    /// Tasks that wait, including those that are not due yet.
    pub waiting: u64,
    /// Waiting tasks that are due.
    pub due: u64,
    /// Tasks that run.
    pub running: u64,
    /// Dead letters that are kept.
    pub dead_letters: u64,
    /// Bytes of the tasks that wait or run, including the data stored with each payload.
    pub bytes: u64,
    /// Bytes of the dead letters that are kept, counted alike. The history of their failures is not
    /// included; it takes at most 2 KiB each.
    pub dead_bytes: u64,
    /// Tasks that were ever pushed.
    pub pushed: u64,
    /// Tasks that have ended successfully.
    pub done: u64,
    /// Attempts that ended with an error, or with a payload that could not be decoded.
    pub failed: u64,
    /// Attempts that panicked.
    pub panicked: u64,
    /// Attempts that crashed: the worker died, or stalled for longer than its lease.
    pub crashed: u64,
    /// Tasks that became dead letters.
    pub dead: u64,
    /// Dead letters that were deleted: because of their age, their number or their size, or by a
    /// purge.
    pub trimmed: u64,
    /// Tasks that were cancelled, or purged while they waited.
    pub cancelled: u64,
    /// Tasks that could not be run because their record was missing in the store.
    pub lost: u64,
    /// The queue is paused: it starts nothing until it is resumed.
    pub paused: bool,
}
