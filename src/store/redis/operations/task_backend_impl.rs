//! Implementation of [`TaskBackend`]: delegates each operation to the method that calls its script.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        redis::RedisBackend,
        tasks::{
            DeadLetterPage, PurgeCursor, PurgePage, QueueStats, RunToken, TaskBackend, TaskFilter,
            TaskId, TaskListPage, TaskPollCommand, TaskPollOutcome, TaskPushCommand,
            TaskPushOutcome, TaskState, TaskView,
        },
    },
};

impl TaskBackend for RedisBackend {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        Box::pin(self.push_in_batch(call))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        Box::pin(self.call_task_poll(call))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        extension: Duration,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.call_idle_poll(queue, node, worker, extension))
    }

    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(self.renew_task_runs(queue, runs, lease))
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        Box::pin(self.read_task_view(queue, id))
    }

    fn list_tasks(
        &self,
        queue: Key,
        filter: TaskFilter,
        offset: u64,
        limit: usize,
    ) -> StoreFuture<'_, TaskListPage> {
        Box::pin(self.read_task_list(queue, filter, offset, limit))
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(self.read_task_payload(queue, id))
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        Box::pin(self.edit_waiting_task(queue, "cancel", id))
    }

    fn run_task_now(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        Box::pin(self.edit_waiting_task(queue, "run_now", id))
    }

    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        max_letters: usize,
    ) -> StoreFuture<'_, DeadLetterPage> {
        Box::pin(self.read_dead_letters(queue, after, max_letters))
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(self.edit_one(queue, "redrive", id))
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        max_letters: usize,
        first_delay: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        Box::pin(self.redrive_letters(queue, max_letters, first_delay, spacing))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        Box::pin(self.edit_one(queue, "purge_one", id))
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        Box::pin(self.purge_letters(queue))
    }

    fn purge_waiting(
        &self,
        queue: Key,
        cursor: Option<PurgeCursor>,
        max_tasks: usize,
    ) -> StoreFuture<'_, PurgePage> {
        Box::pin(self.purge_waiting_tasks(queue, cursor, max_tasks))
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        Box::pin(self.pause_or_resume_tasks(queue, pause))
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        Box::pin(self.read_queue_stats(queue))
    }

    fn unserved_task_count(&self, queue: Key, poll_validity: Duration) -> StoreFuture<'_, u64> {
        Box::pin(self.count_unserved_tasks(queue, poll_validity))
    }
}
