//! Cancel, redrive, purge, pause and statistics of tasks and dead letters:
//! `tasks_cancel_redrive_purge_pause.lua` and `tasks_inspect.lua`.

use std::time::Duration;

use super::QueueTransaction;
use crate::{
    durations::saturating_micros,
    store::tasks::{
        DeadLetterPage, MAX_BYTES_PER_STEP, PurgeCursor, PurgePage, QueueStats, TaskFilter, TaskId,
        TaskListPage, TaskRecord, TaskState,
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

    pub(super) fn run_task_now(&mut self, id: &TaskId) -> Option<TaskState> {
        let state = self.task_view(id)?.state;
        if self.queue.waiting.due_time(id).is_some_and(|due_us| due_us > self.now_us) {
            self.queue.waiting.insert(id, self.now_us);
            self.wake_timer_worker();
        }
        Some(state)
    }

    /// Removes a waiting task that is not to run.
    fn discard_waiting_task(&mut self, id: &TaskId) {
        self.queue.waiting.remove(id);
        let record = self.queue.task_records.remove(id).unwrap_or_default();
        let unique_key = TaskRecord::decode(&record).and_then(|record| record.unique);
        self.release_unique_key(unique_key.as_ref(), id);
        self.queue.task_histories.remove(id);
        let stats = &mut self.queue.stats;
        stats.bytes = stats.bytes.saturating_sub(record.len() as u64);
        stats.cancelled += 1;
    }

    pub(super) fn list_dead_letters(&self, after_us: u64, max_letters: usize) -> DeadLetterPage {
        let mut page: Vec<_> =
            self.queue.dead_letters.iter_after(after_us).take(max_letters).collect();
        let fit_count = self.count_within_byte_limit(page.iter().map(|(_, id)| *id));
        let has_more = page.len() == max_letters || fit_count < page.len();
        page.truncate(fit_count);
        let next = page.last().filter(|_| has_more).map(|(expires_us, _)| *expires_us);
        DeadLetterPage {
            dead_letters: page.iter().filter_map(|(_, id)| self.task_view(id)).collect(),
            next,
        }
    }

    pub(super) fn list_tasks(
        &self,
        filter: TaskFilter,
        offset: u64,
        max_tasks: usize,
    ) -> TaskListPage {
        let waiting = self.queue.waiting.iter();
        let members: Vec<&TaskId> = match filter {
            TaskFilter::Due => {
                waiting.take_while(|(due_us, _)| *due_us <= self.now_us).map(|(_, id)| id).collect()
            }
            TaskFilter::Delayed => {
                waiting.skip_while(|(due_us, _)| *due_us <= self.now_us).map(|(_, id)| id).collect()
            }
            TaskFilter::Running => self.queue.running.iter().map(|(_, run)| &run.id).collect(),
        };
        let offset_len = usize::try_from(offset).unwrap_or(usize::MAX);
        let page: Vec<&TaskId> = members.into_iter().skip(offset_len).take(max_tasks).collect();
        let fit_count = self.count_within_byte_limit(page.iter().copied());
        let has_more = page.len() == max_tasks || fit_count < page.len();
        let first_due_us = self.queue.waiting.first().map_or(self.now_us, |(due_us, _)| due_us);
        TaskListPage {
            tasks: page.iter().take(fit_count).filter_map(|id| self.task_view(id)).collect(),
            next: has_more.then_some(offset + fit_count as u64),
            oldest_due: Duration::from_micros(self.now_us.saturating_sub(first_due_us)),
        }
    }

    fn requeue_dead_letter(&mut self, id: &TaskId, delay_us: u64) {
        self.queue.dead_letters.remove(id);
        let Some(record) = self.queue.task_records.get(id) else {
            self.queue.task_histories.remove(id);
            return;
        };
        let record_bytes = record.len() as u64;
        // Takes back its unique key, unless another task has it now.
        if let Some(unique_key) = TaskRecord::decode(record).and_then(|record| record.unique) {
            self.queue.unique_keys.entry(unique_key).or_insert_with(|| id.clone());
        }
        let due_us = self.now_us.saturating_add(delay_us);
        self.queue.stats.bytes += record_bytes;
        self.queue.stats.dead_bytes = self.queue.stats.dead_bytes.saturating_sub(record_bytes);
        self.queue.waiting.insert(id, due_us);
        if let Some(history) = self.queue.task_histories.get_mut(id) {
            (history.attempts, history.crashes) = (0, 0);
        }
    }

    pub(super) fn redrive_dead_letter(&mut self, id: &TaskId) -> bool {
        let is_dead = self.queue.dead_letters.contains(id);
        if is_dead {
            self.requeue_dead_letter(id, 0);
            self.wake_timer_worker();
        }
        is_dead
    }

    pub(super) fn redrive_dead_letters(
        &mut self,
        max_letters: usize,
        first_delay: Duration,
        spacing: Duration,
    ) -> usize {
        let fit_count = self.count_within_byte_limit(
            self.queue.dead_letters.iter().take(max_letters).map(|(_, id)| id),
        );
        let ids: Vec<_> =
            self.queue.dead_letters.iter().take(fit_count).map(|(_, id)| id.clone()).collect();
        let mut delay_us = saturating_micros(first_delay);
        for id in &ids {
            self.requeue_dead_letter(id, delay_us);
            delay_us = delay_us.saturating_add(saturating_micros(spacing));
        }
        if !ids.is_empty() {
            self.wake_timer_worker();
        }
        ids.len()
    }

    pub(super) fn purge_dead_letter(&mut self, id: &TaskId) -> bool {
        let is_dead = self.queue.dead_letters.contains(id);
        if is_dead {
            self.delete_dead_letters(std::slice::from_ref(id));
        }
        is_dead
    }

    pub(super) fn purge_dead_letters(&mut self, max_letters: usize) -> usize {
        let ids: Vec<_> =
            self.queue.dead_letters.iter().take(max_letters).map(|(_, id)| id.clone()).collect();
        self.delete_dead_letters(&ids);
        ids.len()
    }

    pub(super) fn purge_waiting(
        &mut self,
        cursor: Option<PurgeCursor>,
        max_tasks: usize,
    ) -> PurgePage {
        let Some(cursor) = cursor.or_else(|| self.start_purge()) else {
            return PurgePage::default();
        };
        let waiting = self.queue.waiting.iter().skip_while(|(due_us, _)| *due_us < cursor.from_us);
        let page = waiting.take_while(|(due_us, _)| *due_us <= cursor.until_us).take(max_tasks);
        let page: Vec<_> = page.map(|(due_us, id)| (due_us, id.clone())).collect();
        let (mut purged, mut bytes, mut is_truncated, mut last_due_us) = (0, 0, false, None);
        for (due_us, id) in &page {
            bytes += self.record_len(id);
            // A page that ends here must have removed a task or advanced; otherwise the next page
            // would be the same.
            let may_end =
                last_due_us.is_some_and(|last_due_us| purged > 0 || last_due_us > cursor.from_us);
            is_truncated = bytes > MAX_BYTES_PER_STEP && may_end;
            if is_truncated {
                break;
            }
            let record = self.queue.task_records.get(id).and_then(TaskRecord::decode);
            if record.is_none_or(|record| record.pushed_us <= cursor.last_push) {
                self.discard_waiting_task(id);
                purged += 1;
            }
            last_due_us = Some(*due_us);
        }
        let last_due_us = last_due_us.filter(|_| is_truncated || page.len() == max_tasks);
        // More tasks may be due at the same time. If all tasks of a page are due then and stay, the
        // next page would be the same.
        let is_stuck = |due_us: u64| due_us == cursor.from_us && purged == 0;
        let next_from_us =
            last_due_us.map(|due_us| due_us.saturating_add(u64::from(is_stuck(due_us))));
        let next = next_from_us
            .filter(|next_from_us| *next_from_us <= cursor.until_us)
            .map(|next_from_us| PurgeCursor { from_us: next_from_us, ..cursor });
        PurgePage { purged, next }
    }

    /// Starts a purge that ignores tasks pushed from now on. Returns `None` if no task waits.
    fn start_purge(&mut self) -> Option<PurgeCursor> {
        let until_us = self.queue.waiting.last_due()?;
        let last_push_us = self.now_us.max(self.queue.next_push_us);
        self.queue.next_push_us = last_push_us.saturating_add(1);
        Some(PurgeCursor { last_push: last_push_us, from_us: 0, until_us })
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        self.queue.stats.paused = paused;
        if !paused {
            self.wake_idle_worker();
        }
    }

    pub(super) fn queue_stats(&self) -> QueueStats {
        let queue = &*self.queue;
        QueueStats {
            waiting: queue.waiting.len() as u64,
            due: queue.waiting.iter().take_while(|(due_us, _)| *due_us <= self.now_us).count()
                as u64,
            running: queue.running.len() as u64,
            dead_letters: queue.dead_letters.len() as u64,
            ..queue.stats
        }
    }

    pub(super) fn unserved_task_count(&self, poll_validity_us: u64) -> u64 {
        let (queue, now_us) = (&*self.queue, self.now_us);
        let is_served = queue.stats.paused
            || queue.last_sweep_us > now_us.saturating_sub(poll_validity_us)
            || queue.idle_workers.last().is_some_and(|until_us| until_us > now_us)
            || queue.running.last().is_some_and(|until_us| until_us > now_us);
        if is_served { 0 } else { queue.waiting.len() as u64 }
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
        let fits = |(index, id): &(usize, &TaskId)| {
            bytes += self.record_len(id);
            *index == 0 || bytes <= MAX_BYTES_PER_STEP
        };
        ids.enumerate().take_while(fits).count()
    }
}
