//! The steps.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    DeadLetterPage, PurgeCursor, PurgePage, QueueStats, RunToken, TaskId, TaskPollCommand,
    TaskPollOutcome, TaskPushCommand, TaskPushOutcome, TaskState, TaskView,
};
use crate::{
    key::Key,
    store::backend::{NodeId, StoreFuture},
};

/// Most tasks that one step starts, ends or renews.
pub(crate) const MAX_TASKS_PER_STEP: usize = 100;

/// Most bytes of the records that a turn starts, unless one alone has more: they have to come within a call's deadline. And of
/// those that any step reads for each thing that it does, while the server does nothing else.
pub(crate) const MAX_BYTES_PER_STEP: u64 = 4 << 20;

/// The steps. Those that a lost reply would leave in doubt are idempotent: a turn by its number, renewal by what
/// it does; a push is sent again under a number of its own, but each call is another push, with an id of its own.
pub(crate) trait TaskBackend {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome>;
    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome>;
    /// Whether nothing waits or runs while this worker stands among the idle, where it has its place for so much longer.
    /// It is what a turn would find there, for two commands and not nine. Sent twice, the place is prolonged twice: of
    /// a worker that dies then, it is there for longer, and passed over as ever.
    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        longer: Duration,
    ) -> StoreFuture<'_, bool>;
    /// Whether each run is still its owner's; at most [`MAX_TASKS_PER_STEP`].
    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>>;
    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>>;
    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>>;
    /// Where it was found; it is gone if it waited. NOT idempotent, nor are those below.
    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>>;
    /// The next of them behind this one, the oldest first; no more than [`MAX_BYTES_PER_STEP`] of records, but one in any case.
    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        most: usize,
    ) -> StoreFuture<'_, DeadLetterPage>;
    /// Puts a dead letter at the tail; false if it is none.
    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool>;
    /// Puts the oldest dead letters at the tail, the first one after `first`, each by `spacing` later; how many. They are no
    /// more than [`MAX_BYTES_PER_STEP`], but one in any case.
    fn redrive_dead_letters(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize>;
    /// Throws a dead letter away; false if it is none.
    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool>;
    /// Throws away at most [`MAX_TASKS_PER_STEP`] of the dead letters; how many.
    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize>;
    /// Throws away what waits and was pushed before the walk began, of at most `most` (to [`MAX_TASKS_PER_STEP`]), and [`MAX_BYTES_PER_STEP`], that
    /// it comes by; without one, it begins.
    fn purge_waiting(
        &self,
        queue: Key,
        walk: Option<PurgeCursor>,
        most: usize,
    ) -> StoreFuture<'_, PurgePage>;
    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()>;
    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats>;
}
