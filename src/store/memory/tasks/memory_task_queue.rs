//! One task queue of the embedded store, and the operations on it under its lock.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::{
    MemoryBackend,
    expiring_map::{ExpiringMap, TimeIndex},
    local_pubsub::{LocalPubsub, OutgoingWakeup},
    memory_shard::{SWEEP_LIMIT, ServerTime},
    ready_ok,
};
use super::{
    dead_letter_index::DeadLetterIndex, task_poll::LastPollReply, waiting_tasks::WaitingTasks,
};
use crate::{
    key::Key,
    store::{
        backend::{NodeId, StoreFuture},
        tasks::{
            DeadLetterPage, MAX_TASKS_PER_STEP, PurgeCursor, PurgePage, QueueStats, RunToken,
            TaskBackend, TaskHistory, TaskId, TaskPollCommand, TaskPollOutcome, TaskPushCommand,
            TaskPushOutcome, TaskState, TaskView,
        },
        wakeups::WakeupMessage,
    },
};

/// All queues. Each has a lock of its own.
pub(in super::super) type MemoryTaskQueues = Mutex<HashMap<Key, Arc<Mutex<MemoryTaskQueue>>>>;

#[derive(Default)]
pub(in super::super) struct MemoryTaskQueue {
    pub(super) waiting: WaitingTasks,
    pub(super) running: TimeIndex<RunToken>,
    pub(super) task_records: HashMap<TaskId, Bytes>,
    pub(super) task_histories: HashMap<TaskId, TaskHistory>,
    pub(super) unique_keys: HashMap<Arc<str>, TaskId>,
    pub(super) unique_windows: ExpiringMap<Key, TaskId>,
    pub(super) dead_letters: DeadLetterIndex,
    /// Workers as `<node>:<worker>`.
    pub(super) idle_workers: TimeIndex<Arc<str>>,
    pub(super) timer_worker: Option<NextEventPoller>,
    pub(super) last_polls: ExpiringMap<Arc<str>, LastPollReply>,
    pub(super) stats: QueueStats,
    pub(super) last_wakeup_us: u64,
    /// Earliest push time of new tasks: earlier ones belong to the last purge.
    pub(super) next_push_us: u64,
    /// Debt of the limit of starts, as the theoretical arrival time of GCRA.
    pub(super) start_tat_us: u64,
    pub(super) last_sweep_us: u64,
}

/// Worker that polls at the next event of the queue.
pub(super) struct NextEventPoller {
    pub(super) idle_until_us: u64,
    pub(super) next_event_us: u64,
    pub(super) worker: Arc<str>,
}

/// Operation on one queue.
pub(super) struct QueueTransaction<'a> {
    pub(super) queue: &'a mut MemoryTaskQueue,
    pubsub: &'a LocalPubsub,
    outbox: Vec<OutgoingWakeup>,
    pub(super) now_us: u64,
}

impl MemoryBackend {
    fn with_queue<T>(&self, name: &Key, step: impl FnOnce(&mut QueueTransaction<'_>) -> T) -> T {
        let queue = Arc::clone(self.task_queues.lock().entry(name.clone()).or_default());
        self.run_on_queue(&queue, step)
    }

    /// Like `with_queue`, for an operation that changes nothing: it does not create a missing
    /// queue.
    fn read_queue<T>(&self, name: &Key, step: impl FnOnce(&mut QueueTransaction<'_>) -> T) -> T {
        let queue = self.task_queues.lock().get(name).cloned().unwrap_or_default();
        self.run_on_queue(&queue, step)
    }

    fn run_on_queue<T>(
        &self,
        queue: &Mutex<MemoryTaskQueue>,
        step: impl FnOnce(&mut QueueTransaction<'_>) -> T,
    ) -> T {
        let mut queue = queue.lock();
        let (now, post) = (self.clock.now_us(), Vec::new());
        let mut at =
            QueueTransaction { queue: &mut queue, pubsub: &self.pubsub, outbox: post, now_us: now };
        let answer = step(&mut at);
        let post = at.outbox;
        drop(queue);
        self.pubsub.publish(post);
        answer
    }
}

impl QueueTransaction<'_> {
    /// `wake_idle_worker` of `tasks_wakeups.lua`.
    pub(super) fn wake_idle_worker(&mut self) {
        while let Some((until, who)) = self.queue.idle_workers.first() {
            self.queue.idle_workers.remove(&who);
            if until > self.now_us && self.send_wakeup(&who) {
                return;
            }
        }
    }

    pub(super) fn timer_worker(&self) -> Option<&NextEventPoller> {
        self.queue.timer_worker.as_ref().filter(|guard| guard.idle_until_us > self.now_us)
    }

    pub(super) fn wake_timer_worker(&mut self) {
        let guard = self.timer_worker().map(|guard| Arc::clone(&guard.worker));
        if !guard.is_some_and(|who| self.send_wakeup(&who)) {
            self.wake_idle_worker();
        }
    }

    /// Returns false if the node has no subscriber.
    fn send_wakeup(&mut self, who: &str) -> bool {
        let (node, worker) = who.split_once(':').unwrap_or((who, ""));
        let heard = self.pubsub.has_subscriber(node);
        if heard {
            self.outbox.push(OutgoingWakeup {
                recipient: Some(node.into()),
                message: WakeupMessage::TasksReady(worker.into()),
            });
        }
        heard
    }

    pub(super) fn release_unique_key(&mut self, unique: Option<&Arc<str>>, id: &TaskId) {
        if let Some(unique) = unique
            && self.queue.unique_keys.get(unique) == Some(id)
        {
            self.queue.unique_keys.remove(unique);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the index is at most the length")]
    pub(super) fn task_view(&self, id: &TaskId) -> Option<TaskView> {
        let record = self.queue.task_records.get(id)?;
        let line = record.iter().position(|b| *b == b'\n').unwrap_or(record.len());
        let head = String::from_utf8_lossy(&record[..line]);
        let at = self.queue.waiting.due_time(id);
        let state = match at {
            Some(_) => TaskState::Waiting,
            None if self.queue.dead_letters.contains(id) => TaskState::Dead,
            None => TaskState::Running,
        };
        Some(TaskView {
            id: id.clone(),
            state,
            due_in: Duration::from_micros(at.unwrap_or(0).saturating_sub(self.now_us)),
            pushed_us: head.split(' ').next().and_then(|at| at.parse().ok()).unwrap_or(0),
            payload_bytes: (record.len() - line).saturating_sub(1) as u64,
            history: self.queue.task_histories.get(id).cloned().unwrap_or_default(),
        })
    }

    pub(super) fn sweep_expired(&mut self) {
        let ms = ServerTime::from_micros(self.now_us).ms;
        self.queue.unique_windows.sweep(ms, SWEEP_LIMIT);
        self.queue.last_polls.sweep(ms, SWEEP_LIMIT);
    }
}

impl TaskBackend for MemoryBackend {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        ready_ok(self.with_queue(&call.queue, |at| at.push_task(&call)))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        ready_ok(self.with_queue(&call.queue, |at| at.poll(&call)))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        longer: Duration,
    ) -> StoreFuture<'_, bool> {
        ready_ok(self.with_queue(&queue, |at| at.poll_idle(&node, &worker, longer)))
    }

    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>> {
        ready_ok(self.with_queue(&queue, |at| {
            let until = at.now_us.saturating_add(crate::clock::saturating_micros(lease));
            let renew = |run: &RunToken| {
                let held = at.queue.running.get(run).is_some();
                if held {
                    at.queue.running.set(run, until);
                }
                held
            };
            runs.iter().map(renew).collect()
        }))
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        ready_ok(self.read_queue(&queue, |at| at.task_view(&id)))
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        ready_ok(self.read_queue(&queue, |at| at.queue.task_records.get(&id).cloned()))
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        ready_ok(self.with_queue(&queue, |at| at.cancel_task(&id)))
    }

    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        most: usize,
    ) -> StoreFuture<'_, DeadLetterPage> {
        ready_ok(self.read_queue(&queue, |at| at.list_dead_letters(after, most)))
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        ready_ok(self.with_queue(&queue, |at| at.redrive_dead_letter(&id)))
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        ready_ok(self.with_queue(&queue, |at| at.redrive_dead_letters(most, first, spacing)))
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        ready_ok(self.with_queue(&queue, |at| at.purge_dead_letter(&id)))
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        ready_ok(self.with_queue(&queue, |at| at.purge_dead_letters(MAX_TASKS_PER_STEP)))
    }

    fn purge_waiting(
        &self,
        queue: Key,
        walk: Option<PurgeCursor>,
        most: usize,
    ) -> StoreFuture<'_, PurgePage> {
        ready_ok(self.with_queue(&queue, |at| at.purge_waiting(walk, most)))
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        self.with_queue(&queue, |at| at.set_paused(pause));
        ready_ok(())
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        ready_ok(self.read_queue(&queue, |at| at.queue_stats()))
    }
}
