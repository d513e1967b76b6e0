//! Operations on task queues: their commands and outcomes, and the trait [`TaskBackend`].
//!
//! Each method of [`TaskBackend`] is one atomic operation, like those of `Backend`; on Redis they
//! are scripts `lua/tasks_*.lua`. All data of a queue is in one shard, that of its name.

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
    task_view::{DeadLetterPage, PurgeCursor, PurgePage, TaskListPage, TaskView},
};
pub use self::{
    task_id::TaskId,
    task_record::TaskFault,
    task_view::{QueueStats, TaskFilter, TaskState},
};
