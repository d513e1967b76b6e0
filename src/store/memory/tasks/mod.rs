//! Task queues of the embedded store: `tasks_*.lua`.

mod dead_letter_index;
mod idle_workers;
mod memory_task_queue;
mod task_admin;
mod task_poll;
mod task_push;
#[cfg(test)]
mod tests;
mod waiting_tasks;

pub(super) use self::memory_task_queue::MemoryTaskQueues;
use self::memory_task_queue::{NextEventPoller, QueueTransaction};
