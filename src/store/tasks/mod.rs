//! Tasks of a queue that stands by itself, seen from its worker: the steps, and what they carry.
//!
//! Each method of [`Tasks`] is one atomic step, as those of `Backend` are; `lua/tasks_*.lua` has them for
//! Redis. Everything of a queue is in one shard, that of its name.

mod task_id;
mod task_push_command;
mod task_record;
mod task_backend;
mod task_poll_command;
mod task_view;

pub use self::{
    task_id::TaskId,
    task_record::TaskFault,
    task_view::{QueueStats, TaskState},
};
pub(crate) use self::{
    task_push_command::{OVERDUE_US, TaskPushCommand, TaskPushOutcome, UniqueKey},
    task_record::{MAX_HISTORY, TaskHistory, AttemptFailure, MAX_REASON_BYTES, TaskRecord},
    task_backend::{MAX_TASKS_PER_STEP, MAX_BYTES_PER_STEP, TaskBackend},
    task_poll_command::{TaskSettlement, TaskOutcome, DeadLetterLimits, TaskRunLimits, RunToken, StartedTask, TaskPollCommand, TaskPollOutcome},
    task_view::{DeadLetterPage, TaskView, PurgeCursor, PurgePage},
};
