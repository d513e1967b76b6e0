//! `MemoryTaskQueue`: the data of one task queue, and how an operation locks it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use super::super::{
    MemoryBackend,
    expiring_map::{ExpiringMap, TimeIndex},
    local_pubsub::{LocalPubsub, OutgoingWakeup},
    memory_shard::{SWEEP_LIMIT, ServerTime},
};
use super::{
    dead_letter_index::DeadLetterIndex, settle_and_poll::LastPollReply, waiting_tasks::WaitingTasks,
};
use crate::{
    key::Key,
    store::{
        tasks::{QueueStats, RunToken, TaskHistory, TaskId, TaskState, TaskView},
        wakeup_message::WakeupMessage,
    },
};

/// All queues. Each has a lock of its own.
pub(in super::super) type MemoryTaskQueues = Mutex<HashMap<Key, Arc<Mutex<MemoryTaskQueue>>>>;

/// Data of one task queue.
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
    pub(super) fn with_queue<T>(
        &self,
        name: &Key,
        operation: impl FnOnce(&mut QueueTransaction<'_>) -> T,
    ) -> T {
        let queue = Arc::clone(self.task_queues.lock().entry(name.clone()).or_default());
        self.run_on_queue(&queue, operation)
    }

    /// Like `with_queue`, for an operation that changes nothing: it does not create a missing
    /// queue.
    pub(super) fn read_queue<T>(
        &self,
        name: &Key,
        operation: impl FnOnce(&mut QueueTransaction<'_>) -> T,
    ) -> T {
        let queue = self.task_queues.lock().get(name).cloned().unwrap_or_default();
        self.run_on_queue(&queue, operation)
    }

    fn run_on_queue<T>(
        &self,
        queue: &Mutex<MemoryTaskQueue>,
        operation: impl FnOnce(&mut QueueTransaction<'_>) -> T,
    ) -> T {
        let mut queue = queue.lock();
        let (now_us, outbox) = (self.clock.now_us(), Vec::new());
        let mut transaction =
            QueueTransaction { queue: &mut queue, pubsub: &self.pubsub, outbox, now_us };
        let result = operation(&mut transaction);
        let outbox = transaction.outbox;
        drop(queue);
        self.pubsub.publish(outbox);
        result
    }
}

impl QueueTransaction<'_> {
    /// `wake_idle_worker` of `tasks_wakeups.lua`.
    pub(super) fn wake_idle_worker(&mut self) {
        while let Some((idle_until_us, worker_name)) = self.queue.idle_workers.first() {
            self.queue.idle_workers.remove(&worker_name);
            if idle_until_us > self.now_us && self.send_wakeup(&worker_name) {
                return;
            }
        }
    }

    pub(super) fn timer_worker(&self) -> Option<&NextEventPoller> {
        self.queue.timer_worker.as_ref().filter(|poller| poller.idle_until_us > self.now_us)
    }

    pub(super) fn wake_timer_worker(&mut self) {
        let poller = self.timer_worker().map(|poller| Arc::clone(&poller.worker));
        if !poller.is_some_and(|worker_name| self.send_wakeup(&worker_name)) {
            self.wake_idle_worker();
        }
    }

    /// Returns false if the node has no subscriber.
    fn send_wakeup(&mut self, worker_name: &str) -> bool {
        let (node, worker) = worker_name.split_once(':').unwrap_or((worker_name, ""));
        let is_subscribed = self.pubsub.has_subscriber(node);
        if is_subscribed {
            self.outbox.push(OutgoingWakeup {
                recipient: Some(node.into()),
                message: WakeupMessage::TasksReady(worker.into()),
            });
        }
        is_subscribed
    }

    pub(super) fn release_unique_key(&mut self, unique_key: Option<&Arc<str>>, id: &TaskId) {
        if let Some(unique_key) = unique_key
            && self.queue.unique_keys.get(unique_key) == Some(id)
        {
            self.queue.unique_keys.remove(unique_key);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the index is at most the length")]
    pub(super) fn task_view(&self, id: &TaskId) -> Option<TaskView> {
        let record = self.queue.task_records.get(id)?;
        let head_len = record.iter().position(|b| *b == b'\n').unwrap_or(record.len());
        let head = String::from_utf8_lossy(&record[..head_len]);
        let due_us = self.queue.waiting.due_time(id);
        let state = match due_us {
            Some(_) => TaskState::Waiting,
            None if self.queue.dead_letters.contains(id) => TaskState::Dead,
            None => TaskState::Running,
        };
        Some(TaskView {
            id: id.clone(),
            state,
            due_in: Duration::from_micros(due_us.unwrap_or(0).saturating_sub(self.now_us)),
            pushed_us: head
                .split(' ')
                .next()
                .and_then(|pushed_us| pushed_us.parse().ok())
                .unwrap_or(0),
            payload_bytes: (record.len() - head_len).saturating_sub(1) as u64,
            history: self.queue.task_histories.get(id).cloned().unwrap_or_default(),
        })
    }

    pub(super) fn sweep_expired(&mut self) {
        let ms = ServerTime::from_micros(self.now_us).ms;
        self.queue.unique_windows.sweep(ms, SWEEP_LIMIT);
        self.queue.last_polls.sweep(ms, SWEEP_LIMIT);
    }
}
