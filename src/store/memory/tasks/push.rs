//! `tasks_push.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::{At, Now};
use crate::{
    clock::micros,
    store::tasks::{OVERDUE_US, TaskPushCommand, TaskPushOutcome, TaskRecord, TaskId, UniqueKey},
};

impl At<'_> {
    pub(super) fn push(&mut self, call: &TaskPushCommand) -> TaskPushOutcome {
        self.sweep();
        let rest = TaskRecord::encode_tail(call);
        let length = rest.len() as u64 + 16;
        let (tasks, room) = call.capacity;
        let waiting = self.queue.waiting.len() as u64;
        // A full queue has those that it has: whoever pushes one of them is told so.
        let fits = waiting < tasks && self.queue.numbers.bytes + length <= room;
        if let Some(unique) = &call.unique
            && let Some(other) = self.other(unique, &call.id, fits)
        {
            return TaskPushOutcome::Duplicate(other);
        }
        if !fits {
            return TaskPushOutcome::Full;
        }
        let pushed = self.now.max(self.queue.next_push);
        let mut record = format!("{pushed:016}").into_bytes();
        record.extend_from_slice(&rest);
        self.queue.records.insert(call.id.clone(), Bytes::from(record));
        self.queue.numbers.bytes += length;
        self.queue.numbers.pushed += 1;
        self.queue.waiting.set(&call.id, self.now.saturating_add(micros(call.delay)));
        self.announce(&call.id);
        TaskPushOutcome::Stored
    }

    /// The task that has what is this one's alone, if it is another; if none has, this one has it, where there is room.
    fn other(&mut self, unique: &UniqueKey, id: &TaskId, fits: bool) -> Option<TaskId> {
        let now = Now::of(self.now);
        if let Some(window) = unique.window {
            let end = Some(now.after(window.max(Duration::from_millis(1))));
            let known = self.queue.windows.get(&unique.name, now.ms).cloned();
            if fits && known.is_none() {
                self.queue.windows.put(&unique.name, id.clone(), end);
            }
            return known.filter(|known| known != id);
        }
        let name = unique.name.as_str();
        let known = self.queue.uniques.get(name).filter(|known| *known != id);
        if let Some(known) = known.filter(|known| self.queue.records.contains_key(*known)) {
            return Some(known.clone());
        }
        if fits {
            self.queue.uniques.insert(name.into(), id.clone());
        }
        None
    }

    fn announce(&mut self, id: &TaskId) {
        let Some((due, head)) = self.queue.waiting.first() else {
            return;
        };
        let first = head == *id;
        let long_ago = |at: u64| at + OVERDUE_US < self.now;
        let late = long_ago(due) && long_ago(self.queue.woke);
        if first || late {
            self.queue.woke = self.now;
        }
        if first && due > self.now {
            self.tell_sooner();
        } else if first || late {
            self.wake();
        }
    }
}
