//! Tasks of a queue that stands by itself, seen from its worker: the steps, and what they carry.
//!
//! Each method of [`TaskBackend`] is one atomic step, as those of `Backend` are; `lua/tasks_*.lua` has them for
//! Redis. Everything of a queue is in one shard, that of its name.

mod task_backend;
mod task_id;
mod task_poll_command;
mod task_push_command;
mod task_record;
mod task_view;

pub(crate) use self::{
    task_backend::{MAX_BYTES_PER_STEP, MAX_TASKS_PER_STEP, TaskBackend},
    task_poll_command::{
        DeadLetterLimits, RunToken, StartedTask, TaskOutcome, TaskPollCommand, TaskPollOutcome,
        TaskRunLimits, TaskSettlement,
    },
    task_push_command::{OVERDUE_US, TaskPushCommand, TaskPushOutcome, UniqueKey},
    task_record::{AttemptFailure, MAX_HISTORY, MAX_REASON_BYTES, TaskHistory, TaskRecord},
    task_view::{DeadLetterPage, PurgeCursor, PurgePage, TaskView},
};
pub use self::{
    task_id::TaskId,
    task_record::TaskFault,
    task_view::{QueueStats, TaskState},
};
