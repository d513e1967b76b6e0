//! The worker at work: turns, runs, renewals.
//!
//! One turn is under way at a time. What ends meanwhile goes with the next one, so the busier the worker is, the more
//! goes together. A turn that is not answered is sent again as it was, under its number, until it is: what it
//! may have claimed is learnt, and what it says of ended runs is said. Runs go on meanwhile, and so do renewals; a
//! run whose lease is over by this process's clock, counted from before the call that gave it, is
//! cancelled.

use std::{collections::HashMap, future::Future, pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinError, JoinSet},
    time::Instant,
};

use super::{
    run::{Ran, judge, run},
    task::{Facts, Raw},
    worker::QueueWorker,
};
use crate::store::{End, EndAs, MOST_RUNS, Record, RunToken, Started, Store, TaskId, Turn, Turned};

/// An idle worker looks so often, in case it was not told.
const BEAT: Duration = Duration::from_secs(5);

/// How long an idle worker counts as one; longer than a beat.
const IDLE: Duration = Duration::from_secs(8);

/// Pauses between two calls of which the first was not answered.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long the last turn of a worker that stops may take.
const LAST: Duration = Duration::from_secs(2);

/// A run under way.
struct Running {
    token: RunToken,
    abort: AbortHandle,
    attempt: u32,
    max_attempts: u32,
    bytes: u64,
    unique: Option<Arc<str>>,
    /// Nobody else runs it until then.
    until: Instant,
}

/// An answer, and when its turn was first sent.
type Answer = (Turn, Turned, Instant);

/// Runs that are still this worker's, or are not; and when they were asked about.
type Renewed = (Vec<(RunToken, bool)>, Instant, bool);

pub(super) struct Rounds {
    worker: QueueWorker,
    id: Arc<str>,
    bell: Arc<Notify>,
    runs: JoinSet<(TaskId, Ran)>,
    running: HashMap<TaskId, Running>,
    ends: Vec<End>,
    /// Of the last turn.
    number: u64,
    listed: bool,
    stopping: bool,
    /// When to look for work; `None`: not before the turn under way is answered, or a run ends.
    look: Option<Instant>,
    /// It was told of work since the last turn was sent.
    told: bool,
    /// When leases are seen to.
    tend: Instant,
    turn: Option<BoxFuture<'static, Answer>>,
    renewal: Option<BoxFuture<'static, Renewed>>,
}

impl Rounds {
    pub(super) fn new(worker: QueueWorker) -> Self {
        let id: Arc<str> = uuid::Uuid::new_v4().simple().to_string()[..16].into();
        let bell = worker.store.hints().tasks(&id);
        Self {
            id,
            bell,
            runs: JoinSet::new(),
            running: HashMap::new(),
            ends: Vec::new(),
            number: 0,
            listed: false,
            stopping: false,
            look: Some(Instant::now()),
            told: false,
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
    async fn step(&mut self) {
        self.begin_turn();
        let bell = Arc::clone(&self.bell);
        let (look, tend) = (self.next_look(), self.next_tend());
        tokio::select! {
            answer = under_way(&mut self.turn) => {
                self.turn = None;
                self.answered(answer);
            }
            Some(ended) = self.runs.join_next() => self.ended(ended).await,
            renewed = under_way(&mut self.renewal) => {
                self.renewal = None;
                self.renewed(renewed);
            }
            () = bell.notified() => {
                (self.listed, self.told) = (false, true);
                self.look = Some(Instant::now());
            }
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

    fn next_tend(&self) -> Option<Instant> {
        (!self.running.is_empty() && self.renewal.is_none()).then_some(self.tend)
    }

    fn begin_turn(&mut self) {
        let due = self.look.is_some_and(|at| at <= Instant::now()) && self.room() > 0;
        if self.turn.is_some() || (self.ends.is_empty() && !due) {
            return;
        }
        let turn = self.next_turn();
        (self.look, self.told) = (None, false);
        self.turn = Some(Box::pin(answer_to(self.worker.store.clone(), turn)));
    }

    fn next_turn(&mut self) -> Turn {
        let QueueWorker { store, queue, lease, limits, graves, .. } = &self.worker;
        self.number += 1;
        let ends = self.ends.drain(..self.ends.len().min(MOST_RUNS)).collect();
        Turn {
            queue: queue.clone(),
            node: store.node().clone(),
            worker: Arc::clone(&self.id),
            number: self.number,
            want: self.room().min(MOST_RUNS),
            lease: *lease,
            limits: *limits,
            idle: if self.stopping { Duration::ZERO } else { IDLE },
            listed: self.listed,
            graves: *graves,
            ends,
        }
    }

    fn answered(&mut self, (turn, answer, since): Answer) {
        let Turn { ends, number, want, .. } = turn;
        for (end, _) in ends.iter().zip(&answer.stood).filter(|(_, stood)| !**stood) {
            tracing::warn!(task = ?end.run.id, "a run was over before it ended: it had been lost");
        }
        // It may have been woken since: then it looks again, and says so.
        self.listed = answer.listed && !self.told;
        let (now, full) = (Instant::now(), answer.runs.len() >= want);
        let by: Arc<str> = format!("{}.{}", self.id, number).into();
        for run in answer.runs {
            self.start(run, &by, since + self.worker.lease);
        }
        if !self.told {
            let wait = answer.wait.map_or(BEAT, |wait| wait.min(BEAT));
            // It has all it wanted: there may be more.
            self.look = Some(if full { now } else { now + wait });
        }
    }

    fn start(&mut self, run: Started, by: &Arc<str>, until: Instant) {
        let Started { id, attempt, record } = run;
        let (token, bytes) = (RunToken { id, by: Arc::clone(by) }, record.len() as u64);
        // What is of another layout is left as one that can't be read.
        let record = Record::read(&record).unwrap_or_else(|| Record {
            pushed_us: 0,
            again: true,
            max_attempts: 1,
            unique: None,
            payload: record,
        });
        let late = self.stopping || Instant::now() >= until;
        let unique = record.unique;
        if late {
            let verdict = EndAs::Back { delay: Duration::ZERO };
            self.ends.push(End { run: token, bytes, unique, verdict });
            return;
        }
        let (max_attempts, pushed_us) = (record.max_attempts, record.pushed_us);
        let facts = Facts { id: token.id.clone(), attempt, max_attempts, pushed_us };
        let work = self::run(
            Arc::clone(&self.worker.handler),
            Raw { facts, payload: record.payload },
            self.worker.longest,
        );
        let id = token.id.clone();
        let abort = self.runs.spawn(async move { (id, work.await) });
        if self.running.is_empty() {
            self.tend = Instant::now() + self.worker.lease / 3;
        }
        let running = Running { token, abort, attempt, max_attempts, bytes, unique, until };
        self.running.insert(running.token.id.clone(), running);
    }

    /// A run has ended, and perhaps others with it: they go together.
    async fn ended(&mut self, first: Result<(TaskId, Ran), JoinError>) {
        self.note(first);
        if !self.running.is_empty() && self.turn.is_none() {
            tokio::task::yield_now().await;
        }
        while let Some(ended) = self.runs.try_join_next() {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: Result<(TaskId, Ran), JoinError>) {
        // One that was cancelled is not this worker's any more, or is handed back.
        let Ok((id, ran)) = ended else { return };
        let Some(running) = self.running.remove(&id) else { return };
        let Running { token, attempt, max_attempts, bytes, unique, .. } = running;
        if let Err((fault, why)) = &ran {
            tracing::warn!(task = ?id, attempt, %fault, reason = why.reason(), "a task failed");
        }
        let verdict = judge(ran, attempt, max_attempts, self.worker.backoff);
        self.ends.push(End { run: token, bytes, unique, verdict });
    }

    /// Cancels what is lost, and has the rest renewed.
    fn tend(&mut self) {
        let now = Instant::now();
        let lost: Vec<_> = self.running.values().filter(|run| run.until <= now).collect();
        let lost: Vec<_> = lost.iter().map(|run| run.token.clone()).collect();
        lost.iter().for_each(|token| self.cancel(token));
        let runs: Vec<_> = self.running.values().map(|run| run.token.clone()).collect();
        if !runs.is_empty() {
            let QueueWorker { store, queue, lease, .. } = &self.worker;
            let (store, queue, lease) = (store.clone(), queue.clone(), *lease);
            self.renewal = Some(Box::pin(renew(store, queue, runs, lease)));
        }
    }

    fn renewed(&mut self, (runs, since, answered): Renewed) {
        let lease = self.worker.lease;
        for (token, held) in runs {
            let run = self.running.get_mut(&token.id).filter(|run| run.token == token);
            match (run, held) {
                (Some(run), true) => run.until = since + lease,
                (Some(_), false) => self.cancel(&token),
                (None, _) => {}
            }
        }
        let pause = if answered { lease / 3 } else { lease / 12 };
        let first = self.running.values().map(|run| run.until).min();
        let next = Instant::now() + pause;
        self.tend = first.map_or(next, |first| first.min(next));
    }

    fn cancel(&mut self, token: &RunToken) {
        if let Some(run) = self.running.remove(&token.id) {
            tracing::warn!(task = ?token.id, "a run was lost: its lease is over");
            run.abort.abort();
        }
    }

    async fn drain(&mut self) {
        self.stopping = true;
        let mut deadline = pin!(tokio::time::sleep(self.worker.drain));
        loop {
            if self.running.is_empty() && self.turn.is_none() && self.ends.is_empty() {
                break;
            }
            tokio::select! {
                () = &mut deadline => break,
                () = self.step() => {}
            }
        }
        let last = async {
            self.hand_back().await;
            // Also to be among the idle ones no more.
            loop {
                let turn = self.next_turn();
                let answer = answer_to(self.worker.store.clone(), turn).await;
                self.answered(answer);
                if self.ends.is_empty() {
                    return;
                }
            }
        };
        if tokio::time::timeout(LAST, last).await.is_err() {
            tracing::warn!(
                left = self.ends.len(),
                "the queue worker could not hand back its tasks"
            );
        }
    }

    /// What has not ended in time goes back, uncharged. It is over when it has been dropped, not before.
    async fn hand_back(&mut self) {
        if self.turn.is_some() {
            let answer = under_way(&mut self.turn).await;
            self.turn = None;
            self.answered(answer);
        }
        self.runs.abort_all();
        while let Some(ended) = self.runs.join_next().await {
            self.note(ended);
        }
        for (_, run) in self.running.drain() {
            let verdict = EndAs::Back { delay: Duration::ZERO };
            let Running { token, bytes, unique, .. } = run;
            self.ends.push(End { run: token, bytes, unique, verdict });
        }
    }
}

/// Asks until it is answered: under its number, a turn happens once.
async fn answer_to(store: Store, turn: Turn) -> Answer {
    let (since, mut pause) = (Instant::now(), PAUSES.0);
    loop {
        match store.backend().turn(turn.clone()).await {
            Ok(answer) => return (turn, answer, since),
            Err(error) => tracing::debug!(%error, "a turn was not answered"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn renew(
    store: Store,
    queue: crate::key::Key,
    runs: Vec<RunToken>,
    lease: Duration,
) -> Renewed {
    let (since, mut out, mut answered) = (Instant::now(), Vec::with_capacity(runs.len()), true);
    for some in runs.chunks(MOST_RUNS) {
        match store.backend().renew_runs(queue.clone(), some.to_vec(), lease).await {
            Ok(held) => out.extend(some.iter().cloned().zip(held)),
            Err(_) => answered = false,
        }
    }
    (out, since, answered)
}

async fn under_way<T>(work: &mut Option<BoxFuture<'static, T>>) -> T {
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
