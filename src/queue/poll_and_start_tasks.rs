//! Task polls of a queue worker: builds their commands, and applies the answers, which start tasks.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    empty_queue_check::{EmptyQueueCheck, IDLE_POLL_INTERVAL, IDLE_REGISTRATION_TTL},
    poll_until_answered::AnsweredPoll,
    queue_worker::QueueWorker,
    queue_worker_loop::QueueWorkerLoop,
    renew_run_leases::renewal_time,
    sealed_payload::open_for_run,
    task::{TaskAttemptInfo, UndecodedTask},
    task_run::{RunningTask, run_handler},
    task_run_span::run_in_span,
};
use crate::{
    instruments::{TaskResult, record_task_start},
    store::{
        MAX_BYTES_PER_STEP, MAX_TASKS_PER_STEP, RunToken, StartedTask, TaskOutcome,
        TaskPollCommand, TaskRecord, TaskSettlement,
    },
};

impl QueueWorkerLoop {
    pub(super) fn build_poll(&mut self) -> TaskPollCommand {
        let QueueWorker { store, queue, lease, limits, dead_letter_limits, .. } = &self.worker;
        self.poll_number += 1;
        let settlements = self
            .pending_settlements
            .drain(..settlements_per_poll(&self.pending_settlements))
            .collect();
        TaskPollCommand {
            queue: queue.clone(),
            node: store.node().clone(),
            worker: Arc::clone(&self.worker_id),
            poll_number: self.poll_number,
            max_runs: self.free_slots().min(MAX_TASKS_PER_STEP),
            lease: *lease,
            limits: *limits,
            idle_timeout: if self.starts_nothing() || self.unreadable_tasks.is_yielding() {
                Duration::ZERO
            } else {
                IDLE_REGISTRATION_TTL
            },
            can_stay_idle: self.is_listed_idle,
            dead_letter_limits: *dead_letter_limits,
            settlements,
        }
    }

    pub(super) fn apply_answer(&mut self, answer: AnsweredPoll) {
        let AnsweredPoll { request, reply, first_sent_at, answered_sent_at } = answer;
        let TaskPollCommand { settlements, poll_number, max_runs, .. } = request;
        let rejected =
            settlements.iter().zip(&reply.settled).filter(|(_, was_accepted)| !**was_accepted);
        for (settlement, _) in rejected {
            tracing::warn!(task = %settlement.run.id.log_prefix(), "settlement rejected: the run had been lost");
        }
        for (result, run_count) in
            [(TaskResult::Lost, reply.lost_runs), (TaskResult::Dead, reply.dead_runs)]
        {
            (0..run_count).for_each(|_| self.count_run(result, None));
        }
        // A wake-up does not tell whether it removed the worker from the idle ones: the timer
        // worker is woken and stays, and an idle poll in flight may have registered it again. The
        // worker thus counts as registered until a reply denies it.
        self.is_listed_idle = reply.is_listed_idle;
        self.empty_queue_check =
            reply.is_queue_idle.then(|| EmptyQueueCheck::new(answered_sent_at));
        let now = Instant::now();
        let started_all = reply.started.len() >= max_runs;
        if !reply.started.is_empty() && now >= answered_sent_at + self.worker.lease {
            self.warn_slow_store_once();
        }
        let run_owner: Arc<str> = format!("{}.{}", self.worker_id, poll_number).into();
        for started in reply.started {
            self.start_run(started, &run_owner, first_sent_at + self.worker.lease);
        }
        if !self.was_woken {
            self.schedule_next_poll(now, reply.next_poll_in, started_all);
        }
    }

    fn warn_slow_store_once(&mut self) {
        if !self.warned_slow_store {
            self.warned_slow_store = true;
            tracing::warn!(queue = %self.worker.log_name(), lease = ?self.worker.lease, "replies \
             of the store take longer than a lease, so tasks are returned without a run; set a \
             longer QueueWorker::lease");
        }
    }

    /// Schedules the poll after an answer that was handled at `now`. `started_all`: as many tasks
    /// as requested have started.
    fn schedule_next_poll(
        &mut self,
        now: Instant,
        next_poll_in: Option<Duration>,
        started_all: bool,
    ) {
        let is_yielding = self.unreadable_tasks.is_yielding();
        let max_wait = self
            .unreadable_tasks
            .next_poll_in()
            .unwrap_or(IDLE_POLL_INTERVAL)
            .min(IDLE_POLL_INTERVAL);
        let wait = next_poll_in.map_or(max_wait, |wait| wait.min(max_wait));
        self.has_due_time = wait < max_wait;
        // All requested tasks have started, so more may wait. While yielding, other workers are to
        // take them.
        self.next_poll_at = Some(if started_all && !is_yielding { now } else { now + wait });
    }

    /// Starts the run of a claimed task, or returns the task if it cannot be opened or started in
    /// time.
    fn start_run(&mut self, started: StartedTask, run_owner: &Arc<str>, lease_until: Instant) {
        let StartedTask { id, attempt, record } = started;
        let token = RunToken { id, owner: Arc::clone(run_owner) };
        let record_bytes = record.len() as u64;
        let TaskRecord {
            retry_after_crash,
            max_attempts,
            pushed_us,
            due_us,
            unique,
            trace,
            payload,
        } = decode_record(record);
        let is_too_late = self.starts_nothing() || Instant::now() >= lease_until;
        let QueueWorker { store, queue, .. } = &self.worker;
        let opened = match is_too_late {
            true => Err(Duration::ZERO),
            false => open_for_run(store, queue, &token.id, &payload, due_us),
        };
        let payload = match opened {
            Ok(payload) => payload,
            Err(delay) => {
                self.unreadable_tasks.add(delay);
                self.pending_settlements.push(TaskSettlement {
                    run: token,
                    record_bytes,
                    unique_key: unique,
                    outcome: TaskOutcome::ReturnToQueue { delay },
                });
                return;
            }
        };
        let start_delay = store.backend().estimated_now_us().saturating_sub(due_us);
        record_task_start(&queue.operator_name(), Duration::from_micros(start_delay));
        let cancellation = store.wakeups().register_run(token.id.as_str());
        let info = TaskAttemptInfo {
            id: token.id.clone(),
            attempt,
            max_attempts,
            pushed_us,
            due_us,
            cancellation: cancellation.clone(),
        };
        let span = self.worker.run_span(&info, trace);
        let handler_run = run_handler(
            Arc::clone(&self.worker.handler),
            UndecodedTask { info, payload },
            self.worker.max_run_time,
        );
        let handler_run = run_in_span(span, handler_run);
        // A lost run of the same task may still be in progress here.
        self.cancel_run(&token);
        let ended_token = token.clone();
        let abort_handle = self.run_tasks.spawn(async move { (ended_token, handler_run.await) });
        let renew_at = renewal_time(lease_until, self.worker.lease);
        self.renew_at =
            if self.running.is_empty() { renew_at } else { self.renew_at.min(renew_at) };
        let running = RunningTask {
            token,
            abort_handle,
            attempt,
            max_attempts,
            record_bytes,
            unique_key: unique,
            retry_after_crash,
            cancellation,
            lease_until,
            started_at: Instant::now(),
        };
        self.running.insert(running.token.id.clone(), running);
        self.busy_slots.store(self.running.len(), Ordering::Relaxed);
    }
}

/// Decodes a task's record. A record of another layout is treated as an unreadable payload.
fn decode_record(record: Bytes) -> TaskRecord {
    TaskRecord::decode(&record).unwrap_or_else(|| TaskRecord {
        pushed_us: 0,
        due_us: 0,
        retry_after_crash: true,
        max_attempts: 1,
        unique: None,
        trace: None,
        payload: record,
    })
}

/// Returns the number of settlements for the next poll. The store reads the record of each task
/// returned without delay, and does nothing else meanwhile, so one poll has at most
/// `MAX_BYTES_PER_STEP` of them, or a single larger one. The poll after it follows at once.
fn settlements_per_poll(pending: &[TaskSettlement]) -> usize {
    let mut total_bytes = 0u64;
    let fits = |settlement: &&TaskSettlement| {
        let is_read = matches!(
            settlement.outcome,
            TaskOutcome::ReturnToQueue { delay } if delay.is_zero()
        );
        let bytes_before = total_bytes;
        total_bytes = total_bytes.saturating_add(if is_read { settlement.record_bytes } else { 0 });
        !is_read || bytes_before == 0 || total_bytes <= MAX_BYTES_PER_STEP
    };
    pending.iter().take(MAX_TASKS_PER_STEP).take_while(fits).count()
}
