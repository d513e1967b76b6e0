//! The worker at work: turns, runs, renewals.
//!
//! One turn is under way at a time. What ends meanwhile goes with the next one, so the busier the worker is, the more
//! goes together. A turn that is not answered is sent again as it was, under its number, until it is: what it
//! may have claimed is learnt, and what it says of ended runs is said. Runs go on meanwhile, and so do renewals; a
//! run whose lease is over by this process's clock, counted from before the call that gave it, is
//! cancelled.

use std::{collections::HashMap, future::Future, pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::{
    leases::{Renewed, soon},
    over::in_a_turn,
    quiet::{BEAT, IDLE, Looked, Quiet, look},
    run::{Ran, Running, run},
    sealed::to_run,
    strange::Strange,
    task::{Facts, Raw},
    turn::{Answer, Refused},
    worker::QueueWorker,
};
use crate::{
    clock::Alarm,
    store::{TaskSettlement, TaskOutcome, MAX_TASKS_PER_STEP, TaskRecord, RunToken, StartedTask, TaskId, TaskPollCommand, random_hex_id},
};

pub(super) struct Rounds {
    pub(super) worker: QueueWorker,
    pub(super) id: Arc<str>,
    pub(super) bell: Arc<Notify>,
    pub(super) runs: JoinSet<(RunToken, Ran)>,
    pub(super) running: HashMap<TaskId, Running>,
    pub(super) ends: Vec<TaskSettlement>,
    /// Of the last turn.
    pub(super) number: u64,
    /// It may stand among the idle.
    pub(super) listed: bool,
    pub(super) stopping: bool,
    /// How many runs the turn under way ends.
    pub(super) tells: usize,
    /// Of the turn under way.
    pub(super) refused: Refused,
    /// When to look for work; `None`: not before the turn under way is answered, or a run ends.
    pub(super) look: Option<Instant>,
    /// The store has named that moment: something is due then.
    pub(super) exact: bool,
    alarm: Alarm,
    /// The last look found nothing that waits or runs.
    pub(super) quiet: Option<Quiet>,
    /// It was told of work since the last turn was sent.
    pub(super) told: bool,
    /// An answer has come later than its lease: said once.
    slow: bool,
    pub(super) strange: Strange,
    /// When leases are seen to.
    pub(super) tend: Instant,
    pub(super) turn: Option<BoxFuture<'static, Looked>>,
    pub(super) renewal: Option<BoxFuture<'static, Renewed>>,
}

impl Rounds {
    pub(super) fn new(worker: QueueWorker) -> Self {
        let id = random_hex_id();
        let bell = worker.store.wakeups().subscribe_tasks(&id);
        Self {
            id,
            bell,
            runs: JoinSet::new(),
            running: HashMap::new(),
            ends: Vec::new(),
            number: 0,
            listed: false,
            stopping: false,
            tells: 0,
            refused: Refused::default(),
            look: Some(Instant::now()),
            exact: false,
            alarm: Alarm::default(),
            quiet: None,
            told: false,
            slow: false,
            strange: Strange::default(),
            tend: Instant::now(),
            turn: None,
            renewal: None,
            worker,
        }
    }

    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        tracing::info!(queue = %self.worker.queue.hashed(), "queue worker started");
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = self.step() => {}
            }
        }
        self.drain().await;
        tracing::info!(queue = %self.worker.queue.hashed(), "queue worker stopped");
    }

    /// Whatever comes next. Dropped, it has taken nothing: what it waits for is kept here.
    pub(super) async fn step(&mut self) {
        self.begin_turn();
        let bell = Arc::clone(&self.bell);
        let (look, tend) = (self.next_look(), self.next_tend());
        tokio::select! {
            looked = under_way(&mut self.turn) => {
                self.turn = None;
                self.looked(looked);
                // The embedded store answers at once: turns that only hand back would never yield.
                tokio::task::consume_budget().await;
            }
            Some(ended) = self.runs.join_next() => self.ended(ended).await,
            renewed = under_way(&mut self.renewal) => {
                self.renewal = None;
                self.renewed(renewed);
            }
            () = bell.notified() => {
                self.told = true;
                self.look = Some(Instant::now());
            }
            () = self.alarm.at(look.filter(|_| self.exact)) => self.look = Some(Instant::now()),
            () = at(look) => self.look = Some(Instant::now()),
            () = at(tend) => self.tend(),
        }
    }

    fn room(&self) -> usize {
        if self.stopping { 0 } else { self.worker.concurrency.saturating_sub(self.running.len()) }
    }

    /// Not while there is no room, nor while a turn is under way: what would be looked for could not be started.
    fn next_look(&self) -> Option<Instant> {
        let free = self.turn.is_none() && self.room() > 0;
        self.look.filter(|at| free && *at > Instant::now())
    }

    /// While a renewal is under way, which may hang, leases end all the same.
    fn next_tend(&self) -> Option<Instant> {
        match self.renewal {
            Some(_) => self.running.values().map(|run| run.until).min(),
            None => (!self.running.is_empty()).then_some(self.tend),
        }
    }

    fn begin_turn(&mut self) {
        let due = self.look.is_some_and(|at| at <= Instant::now()) && self.room() > 0;
        if self.turn.is_some() || (self.ends.is_empty() && !due) {
            return;
        }
        // Whoever brings the messages may have ended, with the runtime he was on.
        self.worker.store.wakeups();
        let (quiet, mut turn, store) =
            (self.was_quiet(), self.next_turn(), self.worker.store.clone());
        if !due && self.strange.is_now() {
            // It only hands back, and takes no others for that.
            turn.max_runs = 0;
        }
        (self.look, self.told, self.tells) = (None, false, turn.settlements.len());
        self.refused = Refused::default();
        self.turn = Some(Box::pin(look(store, quiet, turn, Arc::clone(&self.refused))));
    }

    pub(super) fn next_turn(&mut self) -> TaskPollCommand {
        let QueueWorker { store, queue, lease, limits, graves, .. } = &self.worker;
        self.number += 1;
        let ends = self.ends.drain(..in_a_turn(&self.ends)).collect();
        TaskPollCommand {
            queue: queue.clone(),
            node: store.node().clone(),
            worker: Arc::clone(&self.id),
            poll_number: self.number,
            max_runs: self.room().min(MAX_TASKS_PER_STEP),
            lease: *lease,
            limits: *limits,
            idle_timeout: if self.stopping || self.strange.is_now() { Duration::ZERO } else { IDLE },
            can_stay_idle: self.listed,
            dead_letter_limits: *graves,
            settlements: ends,
        }
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        let Answer { turn, turned: answer, since, asked } = answer;
        let TaskPollCommand { settlements: ends, poll_number: number, max_runs: want, .. } = turn;
        for (end, _) in ends.iter().zip(&answer.settled).filter(|(_, stood)| !**stood) {
            tracing::warn!(task = ?end.run.id, "a run was over before it ended: it had been lost");
        }
        // Who is told does not know whether it was taken from among the idle: the one with the timer is told and stays,
        // and a look that was under way may have put it back. So it says that it may stand there until a turn says no.
        self.listed = answer.is_listed_idle;
        self.quiet = answer.is_queue_idle.then(|| Quiet::found(asked));
        let (now, full) = (Instant::now(), answer.started.len() >= want);
        if !answer.started.is_empty() && now >= asked + self.worker.lease && !self.slow {
            self.slow = true;
            tracing::warn!(queue = %self.worker.queue.hashed(), lease = ?self.worker.lease, "the store answers later than \
                a lease lasts: tasks go back without having run; give the worker a longer lease");
        }
        let by: Arc<str> = format!("{}.{}", self.id, number).into();
        for run in answer.started {
            self.start(run, &by, since + self.worker.lease);
        }
        if !self.told {
            let strange = self.strange.is_now();
            let most = self.strange.next_look().unwrap_or(BEAT).min(BEAT);
            let wait = answer.next_poll_in.map_or(most, |wait| wait.min(most));
            self.exact = wait < most;
            // It has all it wanted: there may be more. Unless others are to have it.
            self.look = Some(if full && !strange { now } else { now + wait });
        }
    }

    fn start(&mut self, run: StartedTask, by: &Arc<str>, until: Instant) {
        let StartedTask { id, attempt, record } = run;
        let (token, bytes) = (RunToken { id, owner: Arc::clone(by) }, record.len() as u64);
        // What is of another layout is left as one that can't be read.
        let record = TaskRecord::decode(&record).unwrap_or_else(|| TaskRecord {
            pushed_us: 0,
            due_us: 0,
            retry_after_crash: true,
            max_attempts: 1,
            unique: None,
            payload: record,
        });
        let late = self.stopping || Instant::now() >= until;
        let TaskRecord { retry_after_crash: again, max_attempts, pushed_us, due_us, unique, payload } = record;
        let QueueWorker { store, queue, .. } = &self.worker;
        let payload = match late {
            true => Err(Duration::ZERO),
            false => to_run(store, queue, &token.id, &payload, due_us),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(delay) => {
                self.strange.leaves(delay);
                let verdict = TaskOutcome::ReturnToQueue { delay };
                self.ends.push(TaskSettlement { run: token, record_bytes: bytes, unique_key: unique, outcome: verdict });
                return;
            }
        };
        let facts = Facts { id: token.id.clone(), attempt, max_attempts, pushed_us, due_us };
        let work = self::run(
            Arc::clone(&self.worker.handler),
            Raw { facts, payload },
            self.worker.longest,
        );
        // One of its own that it has lost may still be here.
        self.cancel(&token);
        let run = token.clone();
        let abort = self.runs.spawn(async move { (run, work.await) });
        let first = soon(until, self.worker.lease);
        self.tend = if self.running.is_empty() { first } else { self.tend.min(first) };
        let running = Running { token, abort, attempt, max_attempts, bytes, unique, again, until };
        self.running.insert(running.token.id.clone(), running);
    }
}

pub(super) async fn under_way<T>(work: &mut Option<BoxFuture<'static, T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
