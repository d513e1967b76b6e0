//! `tasks_poll.lua`.

use std::{sync::Arc, time::Duration};

use super::{QueueTransaction, idle_workers::polling_worker};
use crate::store::memory::memory_shard::ServerTime;
use crate::{
    clock::saturating_micros,
    store::tasks::{
        AttemptFailure, MAX_BYTES_PER_STEP, MAX_HISTORY, MAX_TASKS_PER_STEP, RunToken, StartedTask,
        TaskFault, TaskId, TaskOutcome, TaskPollCommand, TaskPollOutcome, TaskRecord,
        TaskSettlement,
    },
};

/// Reply to a worker's last poll.
pub(super) struct LastPollReply {
    poll_number: u64,
    settled: Vec<bool>,
    started: Vec<TaskId>,
}

/// Poll in progress.
struct PollState<'a> {
    command: &'a TaskPollCommand,
    run_owner: Arc<str>,
    /// Earliest time of a task that was scheduled again.
    earliest_retry_us: Option<u64>,
    /// Number of dead letters that may still be evicted because of their number or size.
    trims_left: usize,
    /// More dead letters may have to be deleted.
    has_more_to_trim: bool,
}

/// Tasks that can be started.
pub(super) struct DueTasks {
    ids: Vec<TaskId>,
    /// Due time of the next task.
    pub(super) next_event_us: Option<u64>,
    /// More tasks are due than may be started now.
    pub(super) has_more_due: bool,
    pub(super) is_at_limit: bool,
    /// More tasks could be started but exceed the bytes of one reply, or more leases have expired.
    pub(super) is_truncated: bool,
}

impl QueueTransaction<'_> {
    pub(super) fn poll(&mut self, call: &TaskPollCommand) -> TaskPollOutcome {
        let token: Arc<str> = format!("{}.{}", call.worker, call.poll_number).into();
        if let Some(answer) = self.repeated_reply(call, &token) {
            return answer;
        }
        let mut step = PollState {
            command: call,
            run_owner: token,
            earliest_retry_us: None,
            trims_left: MAX_TASKS_PER_STEP,
            has_more_to_trim: false,
        };
        let stood: Vec<bool> =
            call.settlements.iter().map(|end| self.settle_task(end, &mut step)).collect();
        let more = self.reap_expired_runs(&mut step);
        let mut due = self.collect_due(call);
        if more {
            (due.has_more_due, due.is_at_limit, due.is_truncated, due.next_event_us) =
                (true, false, true, Some(self.now_us));
        }
        let runs: Vec<_> = due.ids.iter().filter_map(|id| self.start_task(id, &step)).collect();
        self.sweep_expired();
        self.sweep_dead_letters(&mut step);
        let begun = runs.iter().map(|run| run.id.clone()).collect();
        let life = Some(
            ServerTime::from_micros(self.now_us)
                .deadline_after(call.lease + Duration::from_secs(600)),
        );
        let last =
            LastPollReply { poll_number: call.poll_number, settled: stood.clone(), started: begun };
        self.queue.last_polls.insert(&call.worker, last, life);
        let (wait, listed) =
            self.update_idle_worker(call, &due, runs.len(), step.earliest_retry_us);
        let quiet =
            listed && self.is_drained() && !self.queue.stats.paused && !step.has_more_to_trim;
        TaskPollOutcome {
            settled: stood,
            started: runs,
            next_poll_in: wait,
            is_listed_idle: listed,
            is_queue_idle: quiet,
        }
    }

    /// Returns the reply to an earlier copy of this poll. A poll older than the last one gets an
    /// empty reply.
    fn repeated_reply(
        &mut self,
        call: &TaskPollCommand,
        token: &Arc<str>,
    ) -> Option<TaskPollOutcome> {
        let last =
            self.queue.last_polls.get(&call.worker, ServerTime::from_micros(self.now_us).ms)?;
        if last.poll_number > call.poll_number {
            return Some(TaskPollOutcome {
                settled: vec![false; call.settlements.len()],
                ..TaskPollOutcome::default()
            });
        }
        if last.poll_number < call.poll_number {
            return None;
        }
        let run = |id: &TaskId| {
            let run = RunToken { id: id.clone(), owner: Arc::clone(token) };
            self.queue.running.get(&run)?;
            self.started_task(id)
        };
        let runs = last.started.iter().filter_map(run).collect();
        let listed = self.queue.idle_workers.get(&polling_worker(call)).is_some();
        Some(TaskPollOutcome {
            settled: last.settled.clone(),
            started: runs,
            next_poll_in: Some(Duration::ZERO),
            is_listed_idle: listed,
            is_queue_idle: false,
        })
    }

    fn started_task(&self, id: &TaskId) -> Option<StartedTask> {
        let attempt = self.queue.task_histories.get(id).map_or(0, |meta| meta.attempts) + 1;
        let record = self.queue.task_records.get(id)?.clone();
        Some(StartedTask { id: id.clone(), attempt, record })
    }

    fn settle_task(&mut self, end: &TaskSettlement, step: &mut PollState<'_>) -> bool {
        let (id, unique) = (&end.run.id, end.unique_key.as_ref());
        if self.queue.running.get(&end.run).is_none() {
            return false;
        }
        self.queue.running.remove(&end.run);
        match &end.outcome {
            TaskOutcome::Done => {
                self.release_unique_key(unique, id);
                self.queue.task_histories.remove(id);
                self.queue.task_records.remove(id);
                self.queue.stats.bytes = self.queue.stats.bytes.saturating_sub(end.record_bytes);
                self.queue.stats.done += 1;
            }
            TaskOutcome::Retry { delay, fault, reason } => {
                self.record_failure(id, *fault, reason);
                let at = self.now_us.saturating_add(saturating_micros(*delay));
                self.schedule_retry(id, at, step);
            }
            TaskOutcome::Dead { fault, reason } => {
                self.record_failure(id, *fault, reason);
                self.move_to_dead_letters(id, end.record_bytes, unique, step);
            }
            TaskOutcome::ReturnToQueue { delay } => {
                let pushed = self.queue.task_records.get(id).and_then(TaskRecord::decode);
                let first = pushed.map_or(self.now_us, |record| record.pushed_us.min(self.now_us));
                if delay.is_zero() {
                    self.queue.waiting.insert_first(id, first);
                    step.earliest_retry_us =
                        Some(step.earliest_retry_us.map_or(first, |sooner| sooner.min(first)));
                } else {
                    self.schedule_retry(id, self.now_us + saturating_micros(*delay), step);
                }
            }
        }
        true
    }

    fn schedule_retry(&mut self, id: &TaskId, at: u64, step: &mut PollState<'_>) {
        self.queue.waiting.insert(id, at);
        step.earliest_retry_us = Some(step.earliest_retry_us.map_or(at, |sooner| sooner.min(at)));
    }

    /// Records a failed attempt.
    fn record_failure(&mut self, id: &TaskId, fault: TaskFault, reason: &str) {
        let numbers = &mut self.queue.stats;
        match fault {
            TaskFault::Failed | TaskFault::Undecodable => numbers.failed += 1,
            TaskFault::Panicked => numbers.panicked += 1,
            TaskFault::Crashed => numbers.crashed += 1,
        }
        let meta = self.queue.task_histories.entry(id.clone()).or_default();
        meta.attempts += 1;
        meta.crashes += u32::from(fault == TaskFault::Crashed);
        meta.failures.push(AttemptFailure { at_us: self.now_us, fault, reason: reason.to_owned() });
        let over = meta.failures.len().saturating_sub(MAX_HISTORY);
        meta.failures.drain(..over);
    }

    fn move_to_dead_letters(
        &mut self,
        id: &TaskId,
        bytes: u64,
        unique: Option<&Arc<str>>,
        step: &mut PollState<'_>,
    ) {
        self.release_unique_key(unique, id);
        let graves = step.command.dead_letter_limits;
        self.queue
            .dead_letters
            .insert(id, self.now_us.saturating_add(saturating_micros(graves.retention)));
        self.queue.stats.dead += 1;
        self.queue.stats.bytes = self.queue.stats.bytes.saturating_sub(bytes);
        self.queue.stats.dead_bytes += self.record_len(id);
        self.evict_dead_letters(Some(id), step);
    }

    /// Evicts the oldest letters while there are too many or too large ones; the newest stays if
    /// there is another.
    fn evict_dead_letters(&mut self, newest: Option<&TaskId>, step: &mut PollState<'_>) {
        let graves = step.command.dead_letter_limits;
        while step.trims_left > 0
            && (self.queue.dead_letters.len() as u64 > graves.max_count
                || self.queue.stats.dead_bytes > graves.max_bytes)
        {
            let oldest = self.queue.dead_letters.oldest_except(newest).cloned();
            step.trims_left -= 1;
            self.delete_dead_letters(oldest.as_slice());
        }
    }

    pub(super) fn delete_dead_letters(&mut self, ids: &[TaskId]) {
        for id in ids {
            let numbers = &self.queue.stats;
            self.queue.stats.dead_bytes = numbers.dead_bytes.saturating_sub(self.record_len(id));
            self.queue.dead_letters.remove(id);
            self.queue.task_records.remove(id);
            self.queue.task_histories.remove(id);
            self.queue.stats.trimmed += 1;
        }
    }

    /// Takes back runs with an expired lease. Returns true if there may be more.
    fn reap_expired_runs(&mut self, step: &mut PollState<'_>) -> bool {
        let over = self.queue.running.iter().take_while(|(end, _)| *end <= self.now_us);
        let mut over: Vec<_> = over.take(MAX_TASKS_PER_STEP).map(|(_, run)| run.clone()).collect();
        let fit = self.count_within_byte_limit(over.iter().map(|run| &run.id));
        let more = fit < over.len() || over.len() == MAX_TASKS_PER_STEP;
        over.truncate(fit);
        for run in over {
            self.queue.running.remove(&run);
            let record = self.queue.task_records.get(&run.id);
            let Some((length, record)) = record.map(|r| (r.len() as u64, TaskRecord::decode(r)))
            else {
                self.queue.task_histories.remove(&run.id);
                self.queue.stats.lost += 1;
                continue;
            };
            self.record_failure(&run.id, TaskFault::Crashed, "crashed, may have run");
            let meta = self.queue.task_histories.get(&run.id).cloned().unwrap_or_default();
            let (again, most, unique) = record.map_or((true, 0, None), |record| {
                (record.retry_after_crash, record.max_attempts, record.unique)
            });
            if !again
                || meta.attempts >= most
                || meta.crashes >= step.command.dead_letter_limits.max_crashes
            {
                self.move_to_dead_letters(&run.id, length, unique.as_ref(), step);
            } else {
                self.schedule_retry(&run.id, self.now_us, step);
            }
        }
        more
    }

    /// Returns the number of tasks that may be started now, and the time of the next start if a
    /// limit of starts applies.
    fn start_capacity(&mut self, call: &TaskPollCommand) -> (usize, Option<u64>) {
        if self.queue.stats.paused {
            return (0, None);
        }
        let (limits, mut room, mut later) = (call.limits, call.max_runs as u64, None);
        if limits.max_running > 0 {
            room = room.min(limits.max_running.saturating_sub(self.queue.running.len() as u64));
        }
        if limits.start_interval_us > 0 {
            let most = self
                .now_us
                .saturating_add(limits.start_burst.saturating_mul(limits.start_interval_us));
            self.queue.start_tat_us = self.queue.start_tat_us.max(self.now_us).min(most);
            let free = (most - self.queue.start_tat_us) / limits.start_interval_us;
            if free < room {
                room = free;
                let others =
                    limits.start_burst.saturating_sub(1).saturating_mul(limits.start_interval_us);
                later = Some(self.queue.start_tat_us.saturating_sub(others));
            }
        }
        (usize::try_from(room).unwrap_or(usize::MAX), later)
    }

    fn collect_due(&mut self, call: &TaskPollCommand) -> DueTasks {
        let (free, later) = self.start_capacity(call);
        let (mut ids, mut bytes) = (Vec::new(), 0);
        let (mut event, mut cut) = (None, false);
        for (due, id) in self.queue.waiting.iter() {
            let (taken, length) = (bytes, self.record_len(id));
            bytes += length;
            let over = due > self.now_us || ids.len() == free;
            cut = !over && taken > 0 && bytes > MAX_BYTES_PER_STEP;
            if over || cut {
                event = Some(due);
                break;
            }
            ids.push(id.clone());
        }
        let paused = self.queue.stats.paused;
        let left = event.is_some_and(|due| due <= self.now_us);
        let held = left && !cut && (paused || (ids.len() >= free && free < call.max_runs));
        let event = if held { later } else { event.filter(|_| !paused) };
        DueTasks {
            ids,
            next_event_us: event,
            has_more_due: left,
            is_at_limit: held,
            is_truncated: cut,
        }
    }

    fn start_task(&mut self, id: &TaskId, step: &PollState<'_>) -> Option<StartedTask> {
        self.queue.waiting.remove(id);
        let Some(run) = self.started_task(id) else {
            self.queue.task_histories.remove(id);
            self.queue.stats.lost += 1;
            return None;
        };
        let token = RunToken { id: id.clone(), owner: Arc::clone(&step.run_owner) };
        self.queue
            .running
            .set(&token, self.now_us.saturating_add(saturating_micros(step.command.lease)));
        self.queue.start_tat_us =
            self.queue.start_tat_us.saturating_add(step.command.limits.start_interval_us);
        Some(run)
    }

    fn sweep_dead_letters(&mut self, step: &mut PollState<'_>) {
        let since = self.now_us.checked_sub(self.queue.last_sweep_us);
        if since.is_some_and(|since| since < 1_000_000) {
            return;
        }
        self.queue.last_sweep_us = self.now_us;
        let over = self.queue.dead_letters.iter().take_while(|(end, _)| *end <= self.now_us);
        let over: Vec<_> = over.take(MAX_TASKS_PER_STEP).map(|(_, id)| id.clone()).collect();
        self.delete_dead_letters(&over);
        self.evict_dead_letters(None, step);
        step.has_more_to_trim = over.len() == MAX_TASKS_PER_STEP || step.trims_left == 0;
    }
}
