//! `TaskPushCommand`: push of a task.

use std::time::Duration;

use bytes::Bytes;

use super::TaskId;
use crate::{key::Key, trace::TraceContext};

/// Time in us after which a due task shows that its wake-up was lost, if a worker was idle
/// meanwhile.
pub(crate) const OVERDUE_US: u64 = 50_000;

/// Arguments of `TaskBackend::push_task`. On Redis, one script call carries several pushes.
#[derive(Debug, Clone)]
pub(crate) struct TaskPushCommand {
    pub(crate) queue: Key,
    pub(crate) id: TaskId,
    pub(crate) delay: Duration,
    pub(crate) unique: Option<UniqueKey>,
    /// The task may run again after a crash.
    pub(crate) retry_after_crash: bool,
    pub(crate) max_attempts: u32,
    /// Context of the pushing span.
    pub(crate) trace: Option<TraceContext>,
    pub(crate) payload: Bytes,
    /// Maximum number of waiting tasks, and maximum bytes of waiting and running ones.
    pub(crate) capacity: (u64, u64),
}

/// Key under which a queue stores at most one task.
#[derive(Debug, Clone)]
pub(crate) struct UniqueKey {
    pub(crate) name: Key,
    /// Time from the push for which the key is taken, regardless of the task's state; `None` = as
    /// long as the task waits or runs.
    pub(crate) window: Option<Duration>,
}

/// Outcome of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskPushOutcome {
    Stored,
    /// Task that has the unique key.
    Duplicate(TaskId),
    Full,
}
