//! What is told of tasks and queues.

use std::time::Duration;

use super::{TaskHistory, TaskId};

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskState {
    /// It waits to be run, or for its time.
    Waiting,
    /// A worker runs it, or has died with it a moment ago.
    Running,
    /// It was given up, and is kept for somebody to look at.
    Dead,
}

/// What is told of a task; never its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskView {
    pub(crate) id: TaskId,
    pub(crate) state: TaskState,
    /// Until it is due; zero if it is.
    pub(crate) due_in: Duration,
    pub(crate) pushed_us: u64,
    /// Of the payload.
    pub(crate) payload_bytes: u64,
    pub(crate) history: TaskHistory,
}

/// A page of dead letters, and where the next one starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeadLetterPage {
    pub(crate) letters: Vec<TaskView>,
    pub(crate) next: Option<u64>,
}

/// A walk along those that wait, by the time at which they are due, for what was pushed before it began. Times are in us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PurgeCursor {
    /// The last place in the order of pushing that is thrown away.
    pub(crate) last_push: u64,
    /// Where it goes on.
    pub(crate) from_us: u64,
    /// Where it ends: when the last of them was due as it began.
    pub(crate) until_us: u64,
}

/// One page of it: how many are gone, and where the next one begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PurgePage {
    pub(crate) purged: usize,
    pub(crate) next: Option<PurgeCursor>,
}

/// Numbers of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Tasks that wait, those included that are not due yet.
    pub waiting: u64,
    /// Of those, the ones that are due.
    pub due: u64,
    /// Tasks that run.
    pub running: u64,
    /// Dead letters that are kept.
    pub dead_letters: u64,
    /// Bytes of the tasks that wait or run, with what is kept beside each payload.
    pub bytes: u64,
    /// The same of the dead letters that are kept, but for what is told of their failures: at most 2 KiB of each.
    pub dead_bytes: u64,
    /// Tasks that were ever pushed.
    pub pushed: u64,
    /// Tasks that have ended well.
    pub done: u64,
    /// Attempts that ended with an error, or could not be read.
    pub failed: u64,
    /// Attempts that panicked.
    pub panicked: u64,
    /// Attempts whose worker died, or stood still for longer than its lease.
    pub crashed: u64,
    /// Tasks that became dead letters.
    pub dead: u64,
    /// Dead letters that were thrown away: for their age, because there were too many or too large ones, or by a purge.
    pub trimmed: u64,
    /// Tasks that were cancelled, or purged while they waited.
    pub cancelled: u64,
    /// Tasks whose record had vanished from the store when they were to be run.
    pub lost: u64,
    /// It starts nothing until it is resumed.
    pub paused: bool,
}
