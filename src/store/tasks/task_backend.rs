//! `TaskBackend`: operations on task queues.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    DeadLetterPage, PurgeCursor, PurgePage, QueueStats, RunToken, TaskFilter, TaskId, TaskListPage,
    TaskPollCommand, TaskPollOutcome, TaskPushCommand, TaskPushOutcome, TaskState, TaskView,
};
use crate::{
    key::Key,
    store::backend::{NodeId, StoreFuture},
};

/// Maximum number of tasks that one operation starts, settles or renews.
pub(crate) const MAX_TASKS_PER_STEP: usize = 100;

/// Maximum bytes of the records that a poll starts, unless a single one is larger: they have to
/// arrive within the call's deadline. Also the maximum that an operation reads for each of its
/// parts, since the server does nothing else meanwhile.
pub(crate) const MAX_BYTES_PER_STEP: u64 = 4 << 20;

/// Operations on task queues.
///
/// An operation that a lost reply would leave in doubt is idempotent: a poll by its number, a
/// renewal by its effect. A push is sent again under its own number, but each call is another push,
/// with another id.
pub(crate) trait TaskBackend {
    /// Returns the number of tasks of a queue, waiting or running, that are lost when this process
    /// ends, because they are in its memory.
    fn volatile_task_count(&self, queue: &Key) -> u64 {
        let _ = queue;
        0
    }
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome>;
    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome>;
    /// Returns true if no task waits or runs and this worker is listed as idle, and prolongs its
    /// idle time by `extension`. It replaces an idle poll, at two commands instead of nine.
    ///
    /// If it is sent twice, the idle time is prolonged twice: a worker that dies then is listed for
    /// longer, and skipped as usual.
    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        extension: Duration,
    ) -> StoreFuture<'_, bool>;
    /// Renews runs, at most [`MAX_TASKS_PER_STEP`]. Returns, for each, true if its owner still has
    /// it.
    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>>;
    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>>;
    /// Lists at most `limit` tasks after the first `offset` ones: at most [`MAX_BYTES_PER_STEP`] of
    /// records, but at least one.
    fn list_tasks(
        &self,
        queue: Key,
        filter: TaskFilter,
        offset: u64,
        limit: usize,
    ) -> StoreFuture<'_, TaskListPage>;
    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>>;
    /// Cancels a task, which is deleted if it waited. Returns the state in which it was found. NOT
    /// idempotent, nor are the methods below.
    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>>;
    /// Makes a waiting task due now, behind those that are due. Returns the state in which it was
    /// found.
    fn run_task_now(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>>;
    /// Lists at most `limit` dead letters behind `after`, the oldest first: at most
    /// [`MAX_BYTES_PER_STEP`] of records, but at least one.
    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'_, DeadLetterPage>;
    /// Puts a dead letter at the tail of the queue. Returns false if it is not a dead letter.
    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool>;
    /// Puts the oldest dead letters at the tail of the queue, and returns their number. The first
    /// one is delayed by `first_delay`, each following one by `spacing` more. There are at most
    /// `limit` of them with at most [`MAX_BYTES_PER_STEP`] of records, but at least one.
    fn redrive_dead_letters(
        &self,
        queue: Key,
        limit: usize,
        first_delay: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize>;
    /// Deletes a dead letter. Returns false if it is not one.
    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool>;
    /// Deletes at most [`MAX_TASKS_PER_STEP`] dead letters, and returns their number.
    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize>;
    /// Deletes waiting tasks that were pushed before the purge began. One call examines at most
    /// `limit` tasks (up to [`MAX_TASKS_PER_STEP`]) and [`MAX_BYTES_PER_STEP`] of records. Without
    /// `cursor`, a purge begins.
    fn purge_waiting(
        &self,
        queue: Key,
        cursor: Option<PurgeCursor>,
        limit: usize,
    ) -> StoreFuture<'_, PurgePage>;
    fn set_tasks_paused(&self, queue: Key, paused: bool) -> StoreFuture<'_, ()>;
    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats>;
    /// Returns the number of waiting tasks if no worker serves the queue, else 0. A worker serves
    /// it while it is listed as idle or runs a task, and for `poll_validity` after a poll: between
    /// a wake-up and the poll that follows it is not listed. A paused queue counts as served.
    fn unserved_task_count(&self, queue: Key, poll_validity: Duration) -> StoreFuture<'_, u64>;
}
