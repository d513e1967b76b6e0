//! `tasks_admin.lua` and `tasks_inspect.lua`.

use std::time::Duration;

use super::QueueTransaction;
use crate::{
    clock::saturating_micros,
    store::tasks::{
        DeadLetterPage, MAX_BYTES_PER_STEP, PurgeCursor, PurgePage, QueueStats, TaskId, TaskRecord,
        TaskState,
    },
};

impl QueueTransaction<'_> {
    pub(super) fn cancel_task(&mut self, id: &TaskId) -> Option<TaskState> {
        let state = self.task_view(id)?.state;
        if state == TaskState::Waiting {
            self.discard_waiting_task(id);
        }
        Some(state)
    }

    /// Removes a waiting task that is not to run.
    fn discard_waiting_task(&mut self, id: &TaskId) {
        self.queue.waiting.remove(id);
        let record = self.queue.task_records.remove(id).unwrap_or_default();
        let unique = TaskRecord::decode(&record).and_then(|record| record.unique);
        self.release_unique_key(unique.as_ref(), id);
        self.queue.task_histories.remove(id);
        let numbers = &mut self.queue.stats;
        numbers.bytes = numbers.bytes.saturating_sub(record.len() as u64);
        numbers.cancelled += 1;
    }

    pub(super) fn list_dead_letters(&self, after: u64, most: usize) -> DeadLetterPage {
        let mut rows: Vec<_> = self.queue.dead_letters.iter_after(after).take(most).collect();
        let (fit, full) =
            (self.count_within_byte_limit(rows.iter().map(|(_, id)| *id)), rows.len() == most);
        let leads_on = full || fit < rows.len();
        rows.truncate(fit);
        let next = rows.last().filter(|_| leads_on).map(|(at, _)| *at);
        DeadLetterPage {
            letters: rows.iter().filter_map(|(_, id)| self.task_view(id)).collect(),
            next,
        }
    }

    fn requeue_dead_letter(&mut self, id: &TaskId, delay: u64) {
        self.queue.dead_letters.remove(id);
        let Some(record) = self.queue.task_records.get(id) else {
            self.queue.task_histories.remove(id);
            return;
        };
        let length = record.len() as u64;
        // Takes back its unique key, unless another task has it now.
        if let Some(unique) = TaskRecord::decode(record).and_then(|record| record.unique) {
            self.queue.unique_keys.entry(unique).or_insert_with(|| id.clone());
        }
        let at = self.now_us.saturating_add(delay);
        self.queue.stats.bytes += length;
        self.queue.stats.dead_bytes = self.queue.stats.dead_bytes.saturating_sub(length);
        self.queue.waiting.insert(id, at);
        if let Some(meta) = self.queue.task_histories.get_mut(id) {
            (meta.attempts, meta.crashes) = (0, 0);
        }
    }

    pub(super) fn redrive_dead_letter(&mut self, id: &TaskId) -> bool {
        let dead = self.queue.dead_letters.contains(id);
        if dead {
            self.requeue_dead_letter(id, 0);
            self.wake_timer_worker();
        }
        dead
    }

    pub(super) fn redrive_dead_letters(
        &mut self,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> usize {
        let fit = self
            .count_within_byte_limit(self.queue.dead_letters.iter().take(most).map(|(_, id)| id));
        let ids: Vec<_> =
            self.queue.dead_letters.iter().take(fit).map(|(_, id)| id.clone()).collect();
        let mut delay = saturating_micros(first);
        for id in &ids {
            self.requeue_dead_letter(id, delay);
            delay = delay.saturating_add(saturating_micros(spacing));
        }
        if !ids.is_empty() {
            self.wake_timer_worker();
        }
        ids.len()
    }

    pub(super) fn purge_dead_letter(&mut self, id: &TaskId) -> bool {
        let dead = self.queue.dead_letters.contains(id);
        if dead {
            self.delete_dead_letters(std::slice::from_ref(id));
        }
        dead
    }

    pub(super) fn purge_dead_letters(&mut self, most: usize) -> usize {
        let ids: Vec<_> =
            self.queue.dead_letters.iter().take(most).map(|(_, id)| id.clone()).collect();
        self.delete_dead_letters(&ids);
        ids.len()
    }

    pub(super) fn purge_waiting(&mut self, walk: Option<PurgeCursor>, most: usize) -> PurgePage {
        let Some(walk) = walk.or_else(|| self.start_purge()) else { return PurgePage::default() };
        let waiting = self.queue.waiting.iter().skip_while(|(at, _)| *at < walk.from_us);
        let page = waiting.take_while(|(at, _)| *at <= walk.until_us).take(most);
        let page: Vec<_> = page.map(|(at, id)| (at, id.clone())).collect();
        let (mut gone, mut bytes, mut cut, mut last) = (0, 0, false, None);
        for (at, id) in &page {
            bytes += self.record_len(id);
            // A page that ends here must have removed a task or advanced; otherwise the next page
            // would be the same.
            let may_end = last.is_some_and(|last| gone > 0 || last > walk.from_us);
            cut = bytes > MAX_BYTES_PER_STEP && may_end;
            if cut {
                break;
            }
            let record = self.queue.task_records.get(id).and_then(TaskRecord::decode);
            if record.is_none_or(|record| record.pushed_us <= walk.last_push) {
                self.discard_waiting_task(id);
                gone += 1;
            }
            last = Some(*at);
        }
        let last = last.filter(|_| cut || page.len() == most);
        // Others may be due at the same time. If all tasks of a page are due then and stay, the
        // next page would be the same.
        let stays = |at: u64| at == walk.from_us && gone == 0;
        let from = last.map(|at| at.saturating_add(u64::from(stays(at))));
        let next = from
            .filter(|from| *from <= walk.until_us)
            .map(|from| PurgeCursor { from_us: from, ..walk });
        PurgePage { purged: gone, next }
    }

    /// Starts a purge that ignores tasks pushed from now on. Returns `None` if no task waits.
    fn start_purge(&mut self) -> Option<PurgeCursor> {
        let til = self.queue.waiting.last_due()?;
        let pushed = self.now_us.max(self.queue.next_push_us);
        self.queue.next_push_us = pushed.saturating_add(1);
        Some(PurgeCursor { last_push: pushed, from_us: 0, until_us: til })
    }

    pub(super) fn set_paused(&mut self, pause: bool) {
        self.queue.stats.paused = pause;
        if !pause {
            self.wake_idle_worker();
        }
    }

    pub(super) fn queue_stats(&self) -> QueueStats {
        let queue = &*self.queue;
        QueueStats {
            waiting: queue.waiting.len() as u64,
            due: queue.waiting.iter().take_while(|(at, _)| *at <= self.now_us).count() as u64,
            running: queue.running.len() as u64,
            dead_letters: queue.dead_letters.len() as u64,
            ..queue.stats
        }
    }

    pub(super) fn record_len(&self, id: &TaskId) -> u64 {
        self.queue.task_records.get(id).map_or(0, |record| record.len() as u64)
    }

    /// Returns the number of leading tasks with at most `MAX_BYTES_PER_STEP` bytes of records, at
    /// least one.
    pub(super) fn count_within_byte_limit<'a>(
        &self,
        ids: impl Iterator<Item = &'a TaskId>,
    ) -> usize {
        let mut bytes = 0;
        let fits = |(place, id): &(usize, &TaskId)| {
            bytes += self.record_len(id);
            *place == 0 || bytes <= MAX_BYTES_PER_STEP
        };
        ids.enumerate().take_while(fits).count()
    }
}
