//! `QueueWorkerLoop`: the loop of a queue worker with its polls, runs and renewals.
//!
//! One task poll is in flight at a time. Runs that end meanwhile are settled by the next one, so a
//! busier worker settles more runs with each poll. A poll without a reply is sent again unchanged,
//! under its number, until there is a reply: so the worker learns of every run that it may have
//! claimed, and every settlement arrives. Runs and renewals continue meanwhile. A run is cancelled
//! when its lease ends by this process's clock, counted from before the call that granted it.

use std::{collections::HashMap, future::Future, pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::{
    idle_poll::{
        IDLE_POLL_INTERVAL, IDLE_REGISTRATION_TTL, IdlePoll, IdlePollOutcome, poll_unless_idle,
    },
    pending_settlements::settlements_per_poll,
    poll::{AnsweredPoll, NotExecutedFlag},
    queue_worker::QueueWorker,
    renewal::{TaskRenewals, renewal_time},
    returned_task_schedule::ReturnedTaskSchedule,
    sealed_payload::open_for_run,
    task::{TaskAttemptInfo, UndecodedTask},
    task_run::{RunningTask, TaskRunResult, run_handler},
};
use crate::{
    clock::PreciseTimer,
    store::{
        MAX_TASKS_PER_STEP, RunToken, StartedTask, TaskId, TaskOutcome, TaskPollCommand,
        TaskRecord, TaskSettlement, random_hex_id,
    },
};

pub(super) struct QueueWorkerLoop {
    pub(super) worker: QueueWorker,
    pub(super) worker_id: Arc<str>,
    pub(super) wakeup: Arc<Notify>,
    pub(super) run_tasks: JoinSet<(RunToken, TaskRunResult)>,
    pub(super) running: HashMap<TaskId, RunningTask>,
    pub(super) pending_settlements: Vec<TaskSettlement>,
    /// Number of the last poll.
    pub(super) poll_number: u64,
    /// The worker may be registered as idle.
    pub(super) is_listed_idle: bool,
    pub(super) is_draining: bool,
    /// Number of settlements in the poll in flight.
    pub(super) settlements_in_flight: usize,
    /// Flag of the poll in flight.
    pub(super) not_executed: NotExecutedFlag,
    /// Time of the next poll; `None`: not before the poll in flight is answered, or a run ends.
    pub(super) next_poll_at: Option<Instant>,
    /// `next_poll_at` was given by the store: a task is due then.
    pub(super) has_due_time: bool,
    due_timer: PreciseTimer,
    /// The last poll found the queue empty.
    pub(super) idle_poll: Option<IdlePoll>,
    /// A wake-up has arrived since the last poll was sent.
    pub(super) was_woken: bool,
    /// A reply arrived after the leases it granted had ended; logged once.
    warned_slow_store: bool,
    pub(super) returned_tasks: ReturnedTaskSchedule,
    /// Time of the next check of the leases.
    pub(super) renew_at: Instant,
    pub(super) pending_poll: Option<BoxFuture<'static, IdlePollOutcome>>,
    pub(super) pending_renewal: Option<BoxFuture<'static, TaskRenewals>>,
}

impl QueueWorkerLoop {
    pub(super) fn new(worker: QueueWorker) -> Self {
        let id = random_hex_id();
        let bell = worker.store.wakeups().subscribe_tasks(&id);
        Self {
            worker_id: id,
            wakeup: bell,
            run_tasks: JoinSet::new(),
            running: HashMap::new(),
            pending_settlements: Vec::new(),
            poll_number: 0,
            is_listed_idle: false,
            is_draining: false,
            settlements_in_flight: 0,
            not_executed: NotExecutedFlag::default(),
            next_poll_at: Some(Instant::now()),
            has_due_time: false,
            due_timer: PreciseTimer::default(),
            idle_poll: None,
            was_woken: false,
            warned_slow_store: false,
            returned_tasks: ReturnedTaskSchedule::default(),
            renew_at: Instant::now(),
            pending_poll: None,
            pending_renewal: None,
            worker,
        }
    }

    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        tracing::info!(queue = %self.worker.queue.log_hash(), "queue worker started");
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = self.step() => {}
            }
        }
        self.drain().await;
        tracing::info!(queue = %self.worker.queue.log_hash(), "queue worker stopped");
    }

    /// Handles the next event. Cancel safe: everything it waits for is stored in `self`.
    pub(super) async fn step(&mut self) {
        self.start_poll();
        let bell = Arc::clone(&self.wakeup);
        let (look, tend) = (self.poll_timer(), self.renewal_timer());
        tokio::select! {
            looked = await_optional(&mut self.pending_poll) => {
                self.pending_poll = None;
                self.apply_outcome(looked);
                // The embedded store replies at once, so polls that only return tasks would never
                // yield.
                tokio::task::consume_budget().await;
            }
            Some(ended) = self.run_tasks.join_next() => self.collect_ended_runs(ended).await,
            renewed = await_optional(&mut self.pending_renewal) => {
                self.pending_renewal = None;
                self.apply_renewals(renewed);
            }
            () = bell.notified() => {
                self.was_woken = true;
                self.next_poll_at = Some(Instant::now());
            }
            () = self.due_timer.wait_until(look.filter(|_| self.has_due_time)) => self.next_poll_at = Some(Instant::now()),
            () = sleep_until_optional(look) => self.next_poll_at = Some(Instant::now()),
            () = sleep_until_optional(tend) => self.renew_leases(),
        }
    }

    fn free_slots(&self) -> usize {
        if self.is_draining {
            0
        } else {
            self.worker.concurrency.saturating_sub(self.running.len())
        }
    }

    /// `None` while no slot is free or a poll is in flight: a task could not be started.
    fn poll_timer(&self) -> Option<Instant> {
        let free = self.pending_poll.is_none() && self.free_slots() > 0;
        self.next_poll_at.filter(|at| free && *at > Instant::now())
    }

    /// While a renewal is in flight, which may hang, leases still end in time.
    fn renewal_timer(&self) -> Option<Instant> {
        match self.pending_renewal {
            Some(_) => self.running.values().map(|run| run.lease_until).min(),
            None => (!self.running.is_empty()).then_some(self.renew_at),
        }
    }

    fn start_poll(&mut self) {
        let due = self.next_poll_at.is_some_and(|at| at <= Instant::now()) && self.free_slots() > 0;
        if self.pending_poll.is_some() || (self.pending_settlements.is_empty() && !due) {
            return;
        }
        // Restarts the subscriber if it has ended with its runtime.
        self.worker.store.wakeups();
        let (quiet, mut turn, store) =
            (self.take_idle_poll(), self.build_poll(), self.worker.store.clone());
        if !due && self.returned_tasks.is_yielding() {
            // This poll only returns tasks, and must not claim others.
            turn.max_runs = 0;
        }
        (self.next_poll_at, self.was_woken, self.settlements_in_flight) =
            (None, false, turn.settlements.len());
        self.not_executed = NotExecutedFlag::default();
        self.pending_poll =
            Some(Box::pin(poll_unless_idle(store, quiet, turn, Arc::clone(&self.not_executed))));
    }

    pub(super) fn build_poll(&mut self) -> TaskPollCommand {
        let QueueWorker { store, queue, lease, limits, dead_letter_policy: graves, .. } =
            &self.worker;
        self.poll_number += 1;
        let ends = self
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
            idle_timeout: if self.is_draining || self.returned_tasks.is_yielding() {
                Duration::ZERO
            } else {
                IDLE_REGISTRATION_TTL
            },
            can_stay_idle: self.is_listed_idle,
            dead_letter_limits: *graves,
            settlements: ends,
        }
    }

    pub(super) fn apply_answer(&mut self, answer: AnsweredPoll) {
        let AnsweredPoll {
            request: turn,
            reply: answer,
            first_sent_at: since,
            answered_sent_at: asked,
        } = answer;
        let TaskPollCommand { settlements: ends, poll_number: number, max_runs: want, .. } = turn;
        for (end, _) in ends.iter().zip(&answer.settled).filter(|(_, stood)| !**stood) {
            tracing::warn!(task = ?end.run.id, "settlement rejected: the run had been lost");
        }
        // A wake-up does not tell whether it removed the worker from the idle ones: the timer
        // worker is woken and stays, and an idle poll in flight may have registered it again. The
        // worker thus counts as registered until a reply denies it.
        self.is_listed_idle = answer.is_listed_idle;
        self.idle_poll = answer.is_queue_idle.then(|| IdlePoll::new(asked));
        let (now, full) = (Instant::now(), answer.started.len() >= want);
        if !answer.started.is_empty() && now >= asked + self.worker.lease && !self.warned_slow_store
        {
            self.warned_slow_store = true;
            tracing::warn!(queue = %self.worker.queue.log_hash(), lease = ?self.worker.lease, "replies \
             of the store take longer than a lease, so tasks are returned without a run; set a \
             longer QueueWorker::lease");
        }
        let by: Arc<str> = format!("{}.{}", self.worker_id, number).into();
        for run in answer.started {
            self.start_run(run, &by, since + self.worker.lease);
        }
        if !self.was_woken {
            let strange = self.returned_tasks.is_yielding();
            let most = self
                .returned_tasks
                .next_poll_in()
                .unwrap_or(IDLE_POLL_INTERVAL)
                .min(IDLE_POLL_INTERVAL);
            let wait = answer.next_poll_in.map_or(most, |wait| wait.min(most));
            self.has_due_time = wait < most;
            // All requested tasks have started, so more may wait. While yielding, other workers are
            // to take them.
            self.next_poll_at = Some(if full && !strange { now } else { now + wait });
        }
    }

    fn start_run(&mut self, run: StartedTask, by: &Arc<str>, until: Instant) {
        let StartedTask { id, attempt, record } = run;
        let (token, bytes) = (RunToken { id, owner: Arc::clone(by) }, record.len() as u64);
        // A record of another layout is treated as an unreadable payload.
        let record = TaskRecord::decode(&record).unwrap_or_else(|| TaskRecord {
            pushed_us: 0,
            due_us: 0,
            retry_after_crash: true,
            max_attempts: 1,
            unique: None,
            payload: record,
        });
        let late = self.is_draining || Instant::now() >= until;
        let TaskRecord {
            retry_after_crash: again,
            max_attempts,
            pushed_us,
            due_us,
            unique,
            payload,
        } = record;
        let QueueWorker { store, queue, .. } = &self.worker;
        let payload = match late {
            true => Err(Duration::ZERO),
            false => open_for_run(store, queue, &token.id, &payload, due_us),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(delay) => {
                self.returned_tasks.add(delay);
                let verdict = TaskOutcome::ReturnToQueue { delay };
                self.pending_settlements.push(TaskSettlement {
                    run: token,
                    record_bytes: bytes,
                    unique_key: unique,
                    outcome: verdict,
                });
                return;
            }
        };
        let facts =
            TaskAttemptInfo { id: token.id.clone(), attempt, max_attempts, pushed_us, due_us };
        let work = run_handler(
            Arc::clone(&self.worker.handler),
            UndecodedTask { info: facts, payload },
            self.worker.max_run,
        );
        // A lost run of the same task may still be in progress here.
        self.cancel_run(&token);
        let run = token.clone();
        let abort = self.run_tasks.spawn(async move { (run, work.await) });
        let first = renewal_time(until, self.worker.lease);
        self.renew_at = if self.running.is_empty() { first } else { self.renew_at.min(first) };
        let running = RunningTask {
            token,
            abort_handle: abort,
            attempt,
            max_attempts,
            record_bytes: bytes,
            unique_key: unique,
            retry_after_crash: again,
            lease_until: until,
        };
        self.running.insert(running.token.id.clone(), running);
    }
}

pub(super) async fn await_optional<T>(work: &mut Option<BoxFuture<'static, T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until_optional(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
