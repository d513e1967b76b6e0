//! `QueueWorkerLoop`: the loop of a queue worker with its polls, runs and renewals.
//!
//! One task poll is in flight at a time. Runs that end meanwhile are settled by the next one, so a
//! busier worker settles more runs with each poll. A poll without a reply is sent again unchanged,
//! under its number, until there is a reply: so the worker learns of every run that it may have
//! claimed, and every settlement arrives. Runs and renewals continue meanwhile. A run is cancelled
//! when its lease ends by this process's clock, counted from before the call that granted it.

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    empty_queue_check::{EmptyQueueCheck, PollOrEmptyCheck, poll_unless_still_empty},
    poll_until_answered::NotExecutedFlag,
    queue_registration::RegisteredQueues,
    queue_worker::QueueWorker,
    renew_run_leases::RunRenewals,
    task_run::{RunningTask, TaskRunResult},
    unreadable_task_yield::UnreadableTaskYield,
};
use crate::{
    clock::PreciseTimer,
    instruments::WorkerSlots,
    store::{RunToken, TaskId, TaskSettlement, random_hex_id},
};

pub(super) struct QueueWorkerLoop {
    pub(super) worker: QueueWorker,
    pub(super) worker_id: Arc<str>,
    pub(super) wakeup: Arc<Notify>,
    pub(super) run_tasks: JoinSet<(RunToken, TaskRunResult)>,
    pub(super) running: HashMap<TaskId, RunningTask>,
    /// Length of `running`, for operators.
    pub(super) busy_slots: Arc<AtomicUsize>,
    /// Entry of this worker in the list for operators, until it has stopped.
    pub(super) registration: Option<Arc<WorkerSlots>>,
    pub(super) pending_settlements: Vec<TaskSettlement>,
    /// Number of the last poll.
    pub(super) poll_number: u64,
    /// The worker may be registered as idle.
    pub(super) is_listed_idle: bool,
    pub(super) is_draining: bool,
    /// Changes when an operator drains this process, or resumes it.
    pub(super) process_drain: watch::Receiver<bool>,
    /// Number of settlements in the poll in flight.
    pub(super) settlements_in_flight: usize,
    /// Flag of the poll in flight.
    pub(super) not_executed: NotExecutedFlag,
    /// Time of the next poll; `None`: not before the poll in flight is answered, or a run ends.
    pub(super) next_poll_at: Option<Instant>,
    /// `next_poll_at` was given by the store: a task is due then.
    pub(super) has_due_time: bool,
    due_timer: PreciseTimer,
    /// Set if the last poll found the queue empty.
    pub(super) empty_queue_check: Option<EmptyQueueCheck>,
    /// A wake-up has arrived since the last poll was sent.
    pub(super) was_woken: bool,
    /// A reply arrived after the leases it granted had ended; logged once.
    pub(super) warned_slow_store: bool,
    pub(super) unreadable_tasks: UnreadableTaskYield,
    /// Time of the next check of the leases.
    pub(super) renew_at: Instant,
    pub(super) pending_poll: Option<BoxFuture<'static, PollOrEmptyCheck>>,
    pub(super) pending_renewal: Option<BoxFuture<'static, RunRenewals>>,
}

impl QueueWorkerLoop {
    pub(super) fn new(worker: QueueWorker) -> Self {
        let worker_id = random_hex_id();
        RegisteredQueues::register_once(&worker.store, &worker.queue);
        let busy_slots = Arc::new(AtomicUsize::new(0));
        let registration = worker.store.counters().add_worker(
            Some(worker.queue.operator_name().into_owned()),
            worker.concurrency,
            {
                let busy_slots = Arc::clone(&busy_slots);
                move || busy_slots.load(Ordering::Relaxed)
            },
        );
        let wakeup = worker.store.wakeups().subscribe_tasks(&worker_id);
        Self {
            worker_id,
            wakeup,
            run_tasks: JoinSet::new(),
            running: HashMap::new(),
            busy_slots,
            registration: Some(registration),
            pending_settlements: Vec::new(),
            poll_number: 0,
            is_listed_idle: false,
            is_draining: false,
            process_drain: worker.store.wakeups().process_drain(),
            settlements_in_flight: 0,
            not_executed: NotExecutedFlag::default(),
            next_poll_at: Some(Instant::now()),
            has_due_time: false,
            due_timer: PreciseTimer::default(),
            empty_queue_check: None,
            was_woken: false,
            warned_slow_store: false,
            unreadable_tasks: UnreadableTaskYield::default(),
            renew_at: Instant::now(),
            pending_poll: None,
            pending_renewal: None,
            worker,
        }
    }

    /// Runs until `shutdown` resolves, then drains until `cut_off` resolves at the latest.
    pub(super) async fn run(
        mut self,
        shutdown: impl Future<Output = ()>,
        cut_off: impl Future<Output = ()>,
    ) {
        let mut shutdown = pin!(shutdown);
        tracing::info!(queue = %self.worker.log_name(), "queue worker started");
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = self.step() => {}
            }
        }
        self.drain(cut_off).await;
        self.log_stop();
    }

    /// Handles the next event. Cancel safe: everything it waits for is stored in `self`.
    pub(super) async fn step(&mut self) {
        self.start_poll();
        let wakeup = Arc::clone(&self.wakeup);
        let (poll_at, renew_at) = (self.poll_timer(), self.renewal_timer());
        tokio::select! {
            outcome = await_optional(&mut self.pending_poll) => {
                self.pending_poll = None;
                self.apply_outcome(outcome);
                // The embedded store replies at once, so polls that only return tasks would never
                // yield.
                tokio::task::consume_budget().await;
            }
            Some(ended) = self.run_tasks.join_next() => self.collect_ended_runs(ended).await,
            renewals = await_optional(&mut self.pending_renewal) => {
                self.pending_renewal = None;
                self.apply_renewals(renewals);
            }
            Ok(()) = self.process_drain.changed() => self.apply_process_drain(),
            () = wakeup.notified() => {
                self.was_woken = true;
                self.next_poll_at = Some(Instant::now());
            }
            () = self.due_timer.wait_until(poll_at.filter(|_| self.has_due_time)) => self.next_poll_at = Some(Instant::now()),
            () = sleep_until_optional(poll_at) => self.next_poll_at = Some(Instant::now()),
            () = sleep_until_optional(renew_at) => self.renew_leases(),
        }
    }

    pub(super) fn free_slots(&self) -> usize {
        if self.starts_nothing() {
            0
        } else {
            self.worker.concurrency.saturating_sub(self.running.len())
        }
    }

    /// Returns true if the worker stops, or if an operator has drained its process.
    pub(super) fn starts_nothing(&self) -> bool {
        self.is_draining || self.worker.store.is_drained()
    }

    /// `None` while no slot is free or a poll is in flight: a task could not be started.
    fn poll_timer(&self) -> Option<Instant> {
        let can_poll = self.pending_poll.is_none() && self.free_slots() > 0;
        self.next_poll_at.filter(|at| can_poll && *at > Instant::now())
    }

    /// While a renewal is in flight, which may hang, leases still end in time.
    fn renewal_timer(&self) -> Option<Instant> {
        match self.pending_renewal {
            Some(_) => self.running.values().map(|run| run.lease_until).min(),
            None => (!self.running.is_empty()).then_some(self.renew_at),
        }
    }

    fn start_poll(&mut self) {
        let is_due =
            self.next_poll_at.is_some_and(|at| at <= Instant::now()) && self.free_slots() > 0;
        // A worker of a drained process must not be woken in place of others.
        let must_leave_idle = self.is_listed_idle && self.worker.store.is_drained();
        let has_reason = is_due || must_leave_idle || !self.pending_settlements.is_empty();
        if self.pending_poll.is_some() || !has_reason {
            return;
        }
        // Restarts the subscriber if it has ended with its runtime.
        self.worker.store.wakeups();
        let (empty_check, mut poll, store) =
            (self.take_empty_queue_check(), self.build_poll(), self.worker.store.clone());
        if !is_due && self.unreadable_tasks.is_yielding() {
            // This poll only returns tasks, and must not claim others.
            poll.max_runs = 0;
        }
        (self.next_poll_at, self.was_woken, self.settlements_in_flight) =
            (None, false, poll.settlements.len());
        self.not_executed = NotExecutedFlag::default();
        let not_executed = Arc::clone(&self.not_executed);
        self.pending_poll =
            Some(Box::pin(poll_unless_still_empty(store, empty_check, poll, not_executed)));
    }
}

pub(super) async fn await_optional<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until_optional(wake_at: Option<Instant>) {
    match wake_at {
        Some(wake_at) => tokio::time::sleep_until(wake_at).await,
        None => std::future::pending().await,
    }
}
