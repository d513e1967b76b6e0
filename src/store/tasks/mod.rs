//! Tasks of a queue that stands by itself, seen from its worker: the steps, and what they carry.
//!
//! Each method of [`Tasks`] is one atomic step, as those of `Backend` are; `lua/tasks_*.lua` has them for
//! Redis. Everything of a queue is in one shard, that of its name.

mod id;
mod push;
mod record;
mod steps;
mod turn;
mod view;

pub use self::{
    id::TaskId,
    record::TaskFault,
    view::{QueueStats, TaskState},
};
pub(crate) use self::{
    push::{OVERDUE_US, Push, PushedAs, Unique},
    record::{HISTORY, Meta, Past, REASON, Record},
    steps::{MOST, MOST_BYTES, Tasks},
    turn::{End, EndAs, Graves, Limits, RunToken, Started, Turn, Turned},
    view::{DeadPage, TaskView, Walk, Walked},
};
