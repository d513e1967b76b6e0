//! `TaskBackend` for `MemoryBackend`: each method calls the operation in its own file.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::super::{MemoryBackend, ready_ok};
use crate::{
    durations::saturating_micros,
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        tasks::{
            DeadLetterPage, MAX_TASKS_PER_STEP, PurgeCursor, PurgePage, QueueStats, RunToken,
            TaskBackend, TaskFilter, TaskId, TaskListPage, TaskPollCommand, TaskPollOutcome,
            TaskPushCommand, TaskPushOutcome, TaskState, TaskView,
        },
    },
};

impl TaskBackend for MemoryBackend {
    fn volatile_task_count(&self, queue: &Key) -> u64 {
        self.read_queue(queue, |transaction| {
            (transaction.queue.waiting.len() + transaction.queue.running.len()) as u64
        })
    }

    fn push_task(&self, command: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        ready_ok(self.with_queue(&command.queue, |transaction| transaction.push_task(&command)))
    }

    fn poll_tasks(&self, command: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        ready_ok(self.with_queue(&command.queue, |transaction| transaction.poll(&command)))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        extension: Duration,
    ) -> StoreFuture<'_, bool> {
        ready_ok(
            self.with_queue(&queue, |transaction| transaction.poll_idle(&node, &worker, extension)),
        )
    }

    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>> {
        ready_ok(self.with_queue(&queue, |transaction| {
            let lease_end_us = transaction.now_us.saturating_add(saturating_micros(lease));
            let renew = |run: &RunToken| {
                let is_running = transaction.queue.running.get(run).is_some();
                if is_running {
                    transaction.queue.running.set(run, lease_end_us);
                }
                is_running
            };
            runs.iter().map(renew).collect()
        }))
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        ready_ok(self.read_queue(&queue, |transaction| transaction.task_view(&id)))
    }

    fn list_tasks(
        &self,
        queue: Key,
        filter: TaskFilter,
        offset: u64,
        limit: usize,
    ) -> StoreFuture<'_, TaskListPage> {
        ready_ok(
            self.read_queue(&queue, |transaction| transaction.list_tasks(filter, offset, limit)),
        )
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        ready_ok(
            self.read_queue(&queue, |transaction| transaction.queue.task_records.get(&id).cloned()),
        )
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        ready_ok(self.with_queue(&queue, |transaction| transaction.cancel_task(&id)))
    }

    fn run_task_now(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        ready_ok(self.with_queue(&queue, |transaction| transaction.run_task_now(&id)))
    }

    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        max_letters: usize,
    ) -> StoreFuture<'_, DeadLetterPage> {
        ready_ok(
            self.read_queue(&queue, |transaction| {
                transaction.list_dead_letters(after, max_letters)
            }),
        )
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        ready_ok(self.with_queue(&queue, |transaction| transaction.redrive_dead_letter(&id)))
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        max_letters: usize,
        first_delay: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        ready_ok(self.with_queue(&queue, |transaction| {
            transaction.redrive_dead_letters(max_letters, first_delay, spacing)
        }))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        ready_ok(self.with_queue(&queue, |transaction| transaction.purge_dead_letter(&id)))
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        ready_ok(
            self.with_queue(&queue, |transaction| {
                transaction.purge_dead_letters(MAX_TASKS_PER_STEP)
            }),
        )
    }

    fn purge_waiting(
        &self,
        queue: Key,
        cursor: Option<PurgeCursor>,
        max_tasks: usize,
    ) -> StoreFuture<'_, PurgePage> {
        ready_ok(
            self.with_queue(&queue, |transaction| transaction.purge_waiting(cursor, max_tasks)),
        )
    }

    fn set_tasks_paused(&self, queue: Key, paused: bool) -> StoreFuture<'_, ()> {
        self.with_queue(&queue, |transaction| transaction.set_paused(paused));
        ready_ok(())
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        ready_ok(self.read_queue(&queue, |transaction| transaction.queue_stats()))
    }

    fn unserved_task_count(&self, queue: Key, poll_validity: Duration) -> StoreFuture<'_, u64> {
        ready_ok(self.read_queue(&queue, |transaction| {
            transaction.unserved_task_count(saturating_micros(poll_validity))
        }))
    }
}
