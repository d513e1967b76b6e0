//! `tasks_turn.lua`.

use std::{sync::Arc, time::Duration};

use super::{At, Now, idle::me};
use crate::{
    clock::micros,
    store::tasks::{
        TaskSettlement, TaskOutcome, MAX_HISTORY, MAX_TASKS_PER_STEP, MAX_BYTES_PER_STEP, AttemptFailure, TaskRecord, RunToken, StartedTask, TaskFault, TaskId,
        TaskPollCommand, TaskPollOutcome,
    },
};

/// What was told of a worker's last turn.
pub(super) struct Last {
    number: u64,
    stood: Vec<bool>,
    begun: Vec<TaskId>,
}

/// A turn under way.
struct Step<'a> {
    call: &'a TaskPollCommand,
    token: Arc<str>,
    /// The soonest of the times at which something is to be tried again.
    sooner: Option<u64>,
    /// Dead letters that may still be thrown away for being too many, or too large.
    trims: usize,
    /// There may be more to throw away.
    more: bool,
}

/// What there is to be started.
pub(super) struct Due {
    ids: Vec<TaskId>,
    /// When the next one is due.
    pub(super) event: Option<u64>,
    /// More is due than may be started now.
    pub(super) left: bool,
    pub(super) held: bool,
    /// More could be started, and are too many bytes for one answer; or more leases are over.
    pub(super) cut: bool,
}

impl At<'_> {
    pub(super) fn turn(&mut self, call: &TaskPollCommand) -> TaskPollOutcome {
        let token: Arc<str> = format!("{}.{}", call.worker, call.poll_number).into();
        if let Some(answer) = self.answered(call, &token) {
            return answer;
        }
        let mut step = Step { call, token, sooner: None, trims: MAX_TASKS_PER_STEP, more: false };
        let stood: Vec<bool> = call.settlements.iter().map(|end| self.end(end, &mut step)).collect();
        let more = self.take_back(&mut step);
        let mut due = self.due(call);
        if more {
            (due.left, due.held, due.cut, due.event) = (true, false, true, Some(self.now));
        }
        let runs: Vec<_> = due.ids.iter().filter_map(|id| self.start(id, &step)).collect();
        self.sweep();
        self.sweep_dead(&mut step);
        let begun = runs.iter().map(|run| run.id.clone()).collect();
        let life = Some(Now::of(self.now).after(call.lease + Duration::from_secs(600)));
        let last = Last { number: call.poll_number, stood: stood.clone(), begun };
        self.queue.turns.put(&call.worker, last, life);
        let (wait, listed) = self.rest(call, &due, runs.len(), step.sooner);
        let quiet = listed && self.quiet() && !self.queue.numbers.paused && !step.more;
        TaskPollOutcome { settled: stood, started: runs, next_poll_in: wait, is_listed_idle: listed, is_queue_idle: quiet }
    }

    /// The answer that this turn, or its successor, had before.
    fn answered(&mut self, call: &TaskPollCommand, token: &Arc<str>) -> Option<TaskPollOutcome> {
        let last = self.queue.turns.get(&call.worker, Now::of(self.now).ms)?;
        if last.number > call.poll_number {
            return Some(TaskPollOutcome { settled: vec![false; call.settlements.len()], ..TaskPollOutcome::default() });
        }
        if last.number < call.poll_number {
            return None;
        }
        let run = |id: &TaskId| {
            let run = RunToken { id: id.clone(), owner: Arc::clone(token) };
            self.queue.running.get(&run)?;
            self.started(id)
        };
        let runs = last.begun.iter().filter_map(run).collect();
        let listed = self.queue.idle.get(&me(call)).is_some();
        Some(TaskPollOutcome {
            settled: last.stood.clone(),
            started: runs,
            next_poll_in: Some(Duration::ZERO),
            is_listed_idle: listed,
            is_queue_idle: false,
        })
    }

    fn started(&self, id: &TaskId) -> Option<StartedTask> {
        let attempt = self.queue.metas.get(id).map_or(0, |meta| meta.attempts) + 1;
        let record = self.queue.records.get(id)?.clone();
        Some(StartedTask { id: id.clone(), attempt, record })
    }

    fn end(&mut self, end: &TaskSettlement, step: &mut Step<'_>) -> bool {
        let (id, unique) = (&end.run.id, end.unique_key.as_ref());
        if self.queue.running.get(&end.run).is_none() {
            return false;
        }
        self.queue.running.remove(&end.run);
        match &end.outcome {
            TaskOutcome::Done => {
                self.give_up(unique, id);
                self.queue.metas.remove(id);
                self.queue.records.remove(id);
                self.queue.numbers.bytes = self.queue.numbers.bytes.saturating_sub(end.record_bytes);
                self.queue.numbers.done += 1;
            }
            TaskOutcome::Retry { delay, fault, reason } => {
                self.note(id, *fault, reason);
                let at = self.now.saturating_add(micros(*delay));
                self.wait_again(id, at, step);
            }
            TaskOutcome::Dead { fault, reason } => {
                self.note(id, *fault, reason);
                self.bury(id, end.record_bytes, unique, step);
            }
            TaskOutcome::ReturnToQueue { delay } => {
                let pushed = self.queue.records.get(id).and_then(TaskRecord::decode);
                let first = pushed.map_or(self.now, |record| record.pushed_us.min(self.now));
                if delay.is_zero() {
                    self.queue.waiting.set_first(id, first);
                    step.sooner = Some(step.sooner.map_or(first, |sooner| sooner.min(first)));
                } else {
                    self.wait_again(id, self.now + micros(*delay), step);
                }
            }
        }
        true
    }

    fn wait_again(&mut self, id: &TaskId, at: u64, step: &mut Step<'_>) {
        self.queue.waiting.set(id, at);
        step.sooner = Some(step.sooner.map_or(at, |sooner| sooner.min(at)));
    }

    /// Notes what went wrong.
    fn note(&mut self, id: &TaskId, fault: TaskFault, reason: &str) {
        let numbers = &mut self.queue.numbers;
        match fault {
            TaskFault::Failed | TaskFault::Undecodable => numbers.failed += 1,
            TaskFault::Panicked => numbers.panicked += 1,
            TaskFault::Crashed => numbers.crashed += 1,
        }
        let meta = self.queue.metas.entry(id.clone()).or_default();
        meta.attempts += 1;
        meta.crashes += u32::from(fault == TaskFault::Crashed);
        meta.failures.push(AttemptFailure { at_us: self.now, fault, reason: reason.to_owned() });
        let over = meta.failures.len().saturating_sub(MAX_HISTORY);
        meta.failures.drain(..over);
    }

    fn bury(&mut self, id: &TaskId, bytes: u64, unique: Option<&Arc<str>>, step: &mut Step<'_>) {
        self.give_up(unique, id);
        let graves = step.call.dead_letter_limits;
        self.queue.dead.bury(id, self.now.saturating_add(micros(graves.retention)));
        self.queue.numbers.dead += 1;
        self.queue.numbers.bytes = self.queue.numbers.bytes.saturating_sub(bytes);
        self.queue.numbers.dead_bytes += self.length(id);
        self.make_room(Some(id), step);
    }

    /// The oldest go while there are too many, or too large ones; the newest stays where there is another one.
    fn make_room(&mut self, newest: Option<&TaskId>, step: &mut Step<'_>) {
        let graves = step.call.dead_letter_limits;
        while step.trims > 0
            && (self.queue.dead.len() as u64 > graves.max_count
                || self.queue.numbers.dead_bytes > graves.max_bytes)
        {
            let oldest = self.queue.dead.first_but(newest).cloned();
            step.trims -= 1;
            self.trim(oldest.as_slice());
        }
    }

    pub(super) fn trim(&mut self, ids: &[TaskId]) {
        for id in ids {
            let numbers = &self.queue.numbers;
            self.queue.numbers.dead_bytes = numbers.dead_bytes.saturating_sub(self.length(id));
            self.queue.dead.remove(id);
            self.queue.records.remove(id);
            self.queue.metas.remove(id);
            self.queue.numbers.trimmed += 1;
        }
    }

    /// True if there may be more of them.
    fn take_back(&mut self, step: &mut Step<'_>) -> bool {
        let over = self.queue.running.iter().take_while(|(end, _)| *end <= self.now);
        let mut over: Vec<_> = over.take(MAX_TASKS_PER_STEP).map(|(_, run)| run.clone()).collect();
        let fit = self.that_fit(over.iter().map(|run| &run.id));
        let more = fit < over.len() || over.len() == MAX_TASKS_PER_STEP;
        over.truncate(fit);
        for run in over {
            self.queue.running.remove(&run);
            let record = self.queue.records.get(&run.id);
            let Some((length, record)) = record.map(|r| (r.len() as u64, TaskRecord::decode(r))) else {
                self.queue.metas.remove(&run.id);
                self.queue.numbers.lost += 1;
                continue;
            };
            self.note(&run.id, TaskFault::Crashed, "crashed, may have run");
            let meta = self.queue.metas.get(&run.id).cloned().unwrap_or_default();
            let (again, most, unique) = record.map_or((true, 0, None), |record| {
                (record.retry_after_crash, record.max_attempts, record.unique)
            });
            if !again || meta.attempts >= most || meta.crashes >= step.call.dead_letter_limits.max_crashes {
                self.bury(&run.id, length, unique.as_ref(), step);
            } else {
                self.wait_again(&run.id, self.now, step);
            }
        }
        more
    }

    /// How many may be started now, and when there may be more if that is known.
    fn room(&mut self, call: &TaskPollCommand) -> (usize, Option<u64>) {
        if self.queue.numbers.paused {
            return (0, None);
        }
        let (limits, mut room, mut later) = (call.limits, call.max_runs as u64, None);
        if limits.max_running > 0 {
            room = room.min(limits.max_running.saturating_sub(self.queue.running.len() as u64));
        }
        if limits.start_interval_us > 0 {
            let most = self.now.saturating_add(limits.start_burst.saturating_mul(limits.start_interval_us));
            self.queue.tat = self.queue.tat.max(self.now).min(most);
            let free = (most - self.queue.tat) / limits.start_interval_us;
            if free < room {
                room = free;
                let others = limits.start_burst.saturating_sub(1).saturating_mul(limits.start_interval_us);
                later = Some(self.queue.tat.saturating_sub(others));
            }
        }
        (usize::try_from(room).unwrap_or(usize::MAX), later)
    }

    fn due(&mut self, call: &TaskPollCommand) -> Due {
        let (free, later) = self.room(call);
        let (mut ids, mut bytes) = (Vec::new(), 0);
        let (mut event, mut cut) = (None, false);
        for (due, id) in self.queue.waiting.iter() {
            let (taken, length) = (bytes, self.length(id));
            bytes += length;
            let over = due > self.now || ids.len() == free;
            cut = !over && taken > 0 && bytes > MAX_BYTES_PER_STEP;
            if over || cut {
                event = Some(due);
                break;
            }
            ids.push(id.clone());
        }
        let paused = self.queue.numbers.paused;
        let left = event.is_some_and(|due| due <= self.now);
        let held = left && !cut && (paused || (ids.len() >= free && free < call.max_runs));
        let event = if held { later } else { event.filter(|_| !paused) };
        Due { ids, event, left, held, cut }
    }

    fn start(&mut self, id: &TaskId, step: &Step<'_>) -> Option<StartedTask> {
        self.queue.waiting.remove(id);
        let Some(run) = self.started(id) else {
            self.queue.metas.remove(id);
            self.queue.numbers.lost += 1;
            return None;
        };
        let token = RunToken { id: id.clone(), owner: Arc::clone(&step.token) };
        self.queue.running.set(&token, self.now.saturating_add(micros(step.call.lease)));
        self.queue.tat = self.queue.tat.saturating_add(step.call.limits.start_interval_us);
        Some(run)
    }

    fn sweep_dead(&mut self, step: &mut Step<'_>) {
        let since = self.now.checked_sub(self.queue.swept);
        if since.is_some_and(|since| since < 1_000_000) {
            return;
        }
        self.queue.swept = self.now;
        let over = self.queue.dead.iter().take_while(|(end, _)| *end <= self.now);
        let over: Vec<_> = over.take(MAX_TASKS_PER_STEP).map(|(_, id)| id.clone()).collect();
        self.trim(&over);
        self.make_room(None, step);
        step.more = over.len() == MAX_TASKS_PER_STEP || step.trims == 0;
    }
}
