//! Poll of a worker: it settles ended runs, takes back expired ones and starts due tasks, once for
//! each poll number (`tasks_settle_and_poll.lua`).

use std::{sync::Arc, time::Duration};

use super::{QueueTransaction, idle_workers::polling_worker};
use crate::store::memory::memory_shard::ServerTime;
use crate::{
    durations::saturating_micros,
    store::tasks::{
        MAX_BYTES_PER_STEP, MAX_TASKS_PER_STEP, RunToken, StartedTask, TaskId, TaskPollCommand,
        TaskPollOutcome,
    },
};

/// Reply to a worker's last poll.
pub(super) struct LastPollReply {
    poll_number: u64,
    settled: Vec<bool>,
    started: Vec<TaskId>,
    lost_runs: u32,
    dead_runs: u32,
}

/// Poll in progress.
pub(super) struct PollState<'a> {
    pub(super) command: &'a TaskPollCommand,
    run_owner: Arc<str>,
    /// Earliest time of a task that was scheduled again.
    pub(super) earliest_retry_us: Option<u64>,
    /// Number of dead letters that may still be evicted because of their number or size.
    pub(super) trims_left: usize,
    /// More dead letters may have to be deleted.
    pub(super) has_more_to_trim: bool,
    /// Runs that were taken back and did not make their tasks dead letters.
    pub(super) lost_runs: u32,
    /// Runs that were taken back and made their tasks dead letters.
    pub(super) dead_runs: u32,
}

impl PollState<'_> {
    /// Remembers a task that is scheduled again.
    pub(super) fn note_retry(&mut self, retry_us: u64) {
        let earliest = self.earliest_retry_us.map_or(retry_us, |earliest| earliest.min(retry_us));
        self.earliest_retry_us = Some(earliest);
    }
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

/// Tasks that the limits allow to start now.
struct StartCapacity {
    max_started: usize,
    /// Time of the next start, if the limit of starts applies.
    next_start_us: Option<u64>,
}

impl QueueTransaction<'_> {
    pub(super) fn poll(&mut self, command: &TaskPollCommand) -> TaskPollOutcome {
        let token: Arc<str> = format!("{}.{}", command.worker, command.poll_number).into();
        if let Some(reply) = self.repeated_reply(command, &token) {
            return reply;
        }
        let mut poll = PollState {
            command,
            run_owner: token,
            earliest_retry_us: None,
            trims_left: MAX_TASKS_PER_STEP,
            has_more_to_trim: false,
            lost_runs: 0,
            dead_runs: 0,
        };
        let settled: Vec<bool> = command
            .settlements
            .iter()
            .map(|settlement| self.settle_task(settlement, &mut poll))
            .collect();
        let has_more_expired = self.reap_expired_runs(&mut poll);
        let mut due = self.collect_due(command);
        if has_more_expired {
            (due.has_more_due, due.is_at_limit, due.is_truncated, due.next_event_us) =
                (true, false, true, Some(self.now_us));
        }
        let started: Vec<_> = due.ids.iter().filter_map(|id| self.start_task(id, &poll)).collect();
        self.sweep_expired();
        self.sweep_dead_letters(&mut poll);
        self.store_last_poll(&poll, settled.clone(), &started);
        let idle = self.update_idle_worker(command, &due, started.len(), poll.earliest_retry_us);
        let is_queue_idle = idle.is_listed_idle
            && self.is_drained()
            && !self.queue.stats.paused
            && !poll.has_more_to_trim;
        TaskPollOutcome {
            settled,
            started,
            next_poll_in: idle.next_poll_in,
            is_listed_idle: idle.is_listed_idle,
            is_queue_idle,
            lost_runs: poll.lost_runs,
            dead_runs: poll.dead_runs,
        }
    }

    /// Remembers the reply for a repeated call of this poll.
    fn store_last_poll(
        &mut self,
        poll: &PollState<'_>,
        settled: Vec<bool>,
        started: &[StartedTask],
    ) {
        let command = poll.command;
        let expires_ms = ServerTime::from_micros(self.now_us)
            .deadline_after(command.lease + Duration::from_secs(600));
        let last_poll = LastPollReply {
            poll_number: command.poll_number,
            settled,
            started: started.iter().map(|task| task.id.clone()).collect(),
            lost_runs: poll.lost_runs,
            dead_runs: poll.dead_runs,
        };
        self.queue.last_polls.insert(&command.worker, last_poll, Some(expires_ms));
    }

    /// Returns the reply to an earlier copy of this poll. A poll older than the last one gets an
    /// empty reply.
    fn repeated_reply(
        &mut self,
        command: &TaskPollCommand,
        token: &Arc<str>,
    ) -> Option<TaskPollOutcome> {
        let last_poll =
            self.queue.last_polls.get(&command.worker, ServerTime::from_micros(self.now_us).ms)?;
        if last_poll.poll_number > command.poll_number {
            return Some(TaskPollOutcome {
                settled: vec![false; command.settlements.len()],
                ..TaskPollOutcome::default()
            });
        }
        if last_poll.poll_number < command.poll_number {
            return None;
        }
        let started_task = |id: &TaskId| {
            let run = RunToken { id: id.clone(), owner: Arc::clone(token) };
            self.queue.running.get(&run)?;
            self.started_task(id)
        };
        let started = last_poll.started.iter().filter_map(started_task).collect();
        let is_listed_idle = self.queue.idle_workers.get(&polling_worker(command)).is_some();
        Some(TaskPollOutcome {
            settled: last_poll.settled.clone(),
            started,
            next_poll_in: Some(Duration::ZERO),
            is_listed_idle,
            is_queue_idle: false,
            lost_runs: last_poll.lost_runs,
            dead_runs: last_poll.dead_runs,
        })
    }

    fn started_task(&self, id: &TaskId) -> Option<StartedTask> {
        let attempt = self.queue.task_histories.get(id).map_or(0, |history| history.attempts) + 1;
        let record = self.queue.task_records.get(id)?.clone();
        Some(StartedTask { id: id.clone(), attempt, record })
    }

    /// Returns the number of tasks that the pause and the limits of the queue allow to start now.
    fn start_capacity(&mut self, command: &TaskPollCommand) -> StartCapacity {
        if self.queue.stats.paused {
            return StartCapacity { max_started: 0, next_start_us: None };
        }
        let (limits, mut max_started) = (command.limits, command.max_runs as u64);
        let mut next_start_us = None;
        if limits.max_running > 0 {
            let running = self.queue.running.len() as u64;
            max_started = max_started.min(limits.max_running.saturating_sub(running));
        }
        if limits.start_interval_us > 0 {
            let max_tat_us = self
                .now_us
                .saturating_add(limits.start_burst.saturating_mul(limits.start_interval_us));
            self.queue.start_tat_us = self.queue.start_tat_us.max(self.now_us).min(max_tat_us);
            let free_starts = (max_tat_us - self.queue.start_tat_us) / limits.start_interval_us;
            if free_starts < max_started {
                max_started = free_starts;
                let burst_tolerance_us =
                    limits.start_burst.saturating_sub(1).saturating_mul(limits.start_interval_us);
                next_start_us = Some(self.queue.start_tat_us.saturating_sub(burst_tolerance_us));
            }
        }
        let max_started = usize::try_from(max_started).unwrap_or(usize::MAX);
        StartCapacity { max_started, next_start_us }
    }

    fn collect_due(&mut self, command: &TaskPollCommand) -> DueTasks {
        let StartCapacity { max_started, next_start_us } = self.start_capacity(command);
        let (mut ids, mut bytes) = (Vec::new(), 0);
        let (mut next_due_us, mut is_truncated) = (None, false);
        for (due_us, id) in self.queue.waiting.iter() {
            let bytes_before = bytes;
            bytes += self.record_len(id);
            let is_last = due_us > self.now_us || ids.len() == max_started;
            is_truncated = !is_last && bytes_before > 0 && bytes > MAX_BYTES_PER_STEP;
            if is_last || is_truncated {
                next_due_us = Some(due_us);
                break;
            }
            ids.push(id.clone());
        }
        let is_paused = self.queue.stats.paused;
        let has_more_due = next_due_us.is_some_and(|due_us| due_us <= self.now_us);
        let is_limit_reached = ids.len() >= max_started && max_started < command.max_runs;
        let is_at_limit = has_more_due && !is_truncated && (is_paused || is_limit_reached);
        let next_event_us =
            if is_at_limit { next_start_us } else { next_due_us.filter(|_| !is_paused) };
        DueTasks { ids, next_event_us, has_more_due, is_at_limit, is_truncated }
    }

    fn start_task(&mut self, id: &TaskId, poll: &PollState<'_>) -> Option<StartedTask> {
        self.queue.waiting.remove(id);
        let Some(started) = self.started_task(id) else {
            self.queue.task_histories.remove(id);
            self.queue.stats.lost += 1;
            return None;
        };
        let token = RunToken { id: id.clone(), owner: Arc::clone(&poll.run_owner) };
        self.queue
            .running
            .set(&token, self.now_us.saturating_add(saturating_micros(poll.command.lease)));
        self.queue.start_tat_us =
            self.queue.start_tat_us.saturating_add(poll.command.limits.start_interval_us);
        Some(started)
    }
}
