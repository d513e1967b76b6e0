//! Push of a task, with its unique key: `tasks_push.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::QueueTransaction;
use crate::store::memory::memory_shard::ServerTime;
use crate::{
    durations::saturating_micros,
    store::tasks::{OVERDUE_US, TaskId, TaskPushCommand, TaskPushOutcome, TaskRecord, UniqueKey},
};

impl QueueTransaction<'_> {
    pub(super) fn push_task(&mut self, command: &TaskPushCommand) -> TaskPushOutcome {
        self.sweep_expired();
        let record_tail = TaskRecord::encode_tail(command);
        let record_bytes = record_tail.len() as u64 + 16;
        let (max_tasks, max_bytes) = command.capacity;
        let waiting = self.queue.waiting.len() as u64;
        // A full queue still reports duplicates of the tasks that it has.
        let fits = waiting < max_tasks && self.queue.stats.bytes + record_bytes <= max_bytes;
        if let Some(unique_key) = &command.unique
            && let Some(existing_id) = self.claim_unique_key(unique_key, &command.id, fits)
        {
            return TaskPushOutcome::Duplicate(existing_id);
        }
        if !fits {
            return TaskPushOutcome::Full;
        }
        let pushed_us = self.now_us.max(self.queue.next_push_us);
        let mut record = format!("{pushed_us:016}").into_bytes();
        record.extend_from_slice(&record_tail);
        self.queue.task_records.insert(command.id.clone(), Bytes::from(record));
        self.queue.stats.bytes += record_bytes;
        self.queue.stats.pushed += 1;
        self.queue
            .waiting
            .insert(&command.id, self.now_us.saturating_add(saturating_micros(command.delay)));
        self.wake_for_push(&command.id);
        TaskPushOutcome::Stored
    }

    /// Returns the other task that has the unique key. If there is none, this task takes the key,
    /// provided that it fits.
    fn claim_unique_key(
        &mut self,
        unique_key: &UniqueKey,
        id: &TaskId,
        fits: bool,
    ) -> Option<TaskId> {
        let now = ServerTime::from_micros(self.now_us);
        if let Some(window) = unique_key.window {
            let window_end = Some(now.deadline_after(window.max(Duration::from_millis(1))));
            let holder = self.queue.unique_windows.get(&unique_key.name, now.ms).cloned();
            if fits && holder.is_none() {
                self.queue.unique_windows.insert(&unique_key.name, id.clone(), window_end);
            }
            return holder.filter(|holder| holder != id);
        }
        let name = unique_key.name.as_str();
        let holder = self.queue.unique_keys.get(name).filter(|holder| *holder != id);
        if let Some(holder) = holder.filter(|holder| self.queue.task_records.contains_key(*holder))
        {
            return Some(holder.clone());
        }
        if fits {
            self.queue.unique_keys.insert(name.into(), id.clone());
        }
        None
    }

    fn wake_for_push(&mut self, id: &TaskId) {
        let Some((due_us, first_id)) = self.queue.waiting.first() else {
            return;
        };
        let is_first = first_id == *id;
        let is_long_past = |at_us: u64| at_us + OVERDUE_US < self.now_us;
        let is_overdue = is_long_past(due_us) && is_long_past(self.queue.last_wakeup_us);
        if is_first || is_overdue {
            self.queue.last_wakeup_us = self.now_us;
        }
        if is_first && due_us > self.now_us {
            self.wake_timer_worker();
        } else if is_first || is_overdue {
            self.wake_idle_worker();
        }
    }
}
