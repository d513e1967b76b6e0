//! Task queues of the embedded store: `tasks_*.lua`.

mod dead_letter_index;
mod dead_letter_insertion_and_eviction;
mod idle_workers;
mod memory_task_queue;
mod push_task;
mod settle_and_poll;
mod settled_and_expired_runs;
mod task_admin;
mod task_backend_impl;
#[cfg(test)]
mod tests;
mod waiting_tasks;

pub(super) use self::memory_task_queue::MemoryTaskQueues;
use self::memory_task_queue::{NextEventPoller, QueueTransaction};
