//! `tasks_push.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::QueueTransaction;
use crate::store::memory::memory_shard::ServerTime;
use crate::{
    clock::saturating_micros,
    store::tasks::{OVERDUE_US, TaskId, TaskPushCommand, TaskPushOutcome, TaskRecord, UniqueKey},
};

impl QueueTransaction<'_> {
    pub(super) fn push_task(&mut self, call: &TaskPushCommand) -> TaskPushOutcome {
        self.sweep_expired();
        let rest = TaskRecord::encode_tail(call);
        let length = rest.len() as u64 + 16;
        let (tasks, room) = call.capacity;
        let waiting = self.queue.waiting.len() as u64;
        // A full queue still reports duplicates of the tasks that it has.
        let fits = waiting < tasks && self.queue.stats.bytes + length <= room;
        if let Some(unique) = &call.unique
            && let Some(other) = self.claim_unique_key(unique, &call.id, fits)
        {
            return TaskPushOutcome::Duplicate(other);
        }
        if !fits {
            return TaskPushOutcome::Full;
        }
        let pushed = self.now_us.max(self.queue.next_push_us);
        let mut record = format!("{pushed:016}").into_bytes();
        record.extend_from_slice(&rest);
        self.queue.task_records.insert(call.id.clone(), Bytes::from(record));
        self.queue.stats.bytes += length;
        self.queue.stats.pushed += 1;
        self.queue
            .waiting
            .insert(&call.id, self.now_us.saturating_add(saturating_micros(call.delay)));
        self.wake_for_push(&call.id);
        TaskPushOutcome::Stored
    }

    /// Returns the other task that has the unique key. If there is none, this task takes the key,
    /// provided that it fits.
    fn claim_unique_key(&mut self, unique: &UniqueKey, id: &TaskId, fits: bool) -> Option<TaskId> {
        let now = ServerTime::from_micros(self.now_us);
        if let Some(window) = unique.window {
            let end = Some(now.deadline_after(window.max(Duration::from_millis(1))));
            let known = self.queue.unique_windows.get(&unique.name, now.ms).cloned();
            if fits && known.is_none() {
                self.queue.unique_windows.insert(&unique.name, id.clone(), end);
            }
            return known.filter(|known| known != id);
        }
        let name = unique.name.as_str();
        let known = self.queue.unique_keys.get(name).filter(|known| *known != id);
        if let Some(known) = known.filter(|known| self.queue.task_records.contains_key(*known)) {
            return Some(known.clone());
        }
        if fits {
            self.queue.unique_keys.insert(name.into(), id.clone());
        }
        None
    }

    fn wake_for_push(&mut self, id: &TaskId) {
        let Some((due, head)) = self.queue.waiting.first() else {
            return;
        };
        let first = head == *id;
        let long_ago = |at: u64| at + OVERDUE_US < self.now_us;
        let late = long_ago(due) && long_ago(self.queue.last_wakeup_us);
        if first || late {
            self.queue.last_wakeup_us = self.now_us;
        }
        if first && due > self.now_us {
            self.wake_timer_worker();
        } else if first || late {
            self.wake_idle_worker();
        }
    }
}
