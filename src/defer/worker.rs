//! The worker: takes jobs whose lock comes free, and runs them through the application's routes.
//!
//! Workers divide the shards of a store among themselves by short leases and watch their own. A worker
//! sleeps until a message says that a lock was handed to a job, until the next due time it knows of,
//! or until its next sign of life. A message that is lost costs a due time; a worker that dies costs
//! its lease. It claims only what it starts at once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    future::Future,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    run::Replayer,
    visit::{Next, Visit},
};
use crate::{
    clock::LONGEST,
    error::Error,
    key::Key,
    store::{Hint, JobId, Store},
};

/// Life of a watch over a shard; a dead worker's shards are taken over after it.
const WATCH: Duration = Duration::from_secs(10);

/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(3);

/// How soon shards are divided again after workers have come or gone.
const SETTLE: Duration = Duration::from_millis(50);

/// How soon a shard is looked at again after a visit in it, in case the message about the next job is
/// lost: the accept window.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Runs deferred requests until it is told to stop. Each integration has a constructor of its own.
///
/// ```text
/// claim -> run through the routes -> settle: done | retry | dead | back in line
/// ```
#[must_use = "a worker does nothing until `run` is awaited or spawned"]
pub struct DeferWorker {
    pub(super) store: Store,
    pub(super) replayer: Arc<dyn Replayer>,
    concurrency: usize,
    drain: Duration,
    pub(super) lease: Duration,
    pub(super) max_run: Duration,
    pub(super) response_limit: usize,
    pub(super) keep_done: Duration,
    pub(super) keep_dead: Duration,
}

impl DeferWorker {
    /// A worker that runs jobs of this store through these routes.
    pub fn on(store: &Store, replayer: impl Replayer) -> Self {
        Self {
            store: store.clone(),
            replayer: Arc::new(replayer),
            concurrency: 16,
            drain: Duration::from_secs(10),
            lease: Duration::from_secs(10),
            max_run: Duration::from_secs(300),
            response_limit: 1 << 20,
            keep_done: Duration::from_secs(24 * 60 * 60),
            keep_dead: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }

    /// Most requests that run at once. Default 16; those of one resource never do.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = most.max(1);
        self
    }

    /// How long runs may go on after the signal to stop. Default 10 s. What still runs then is
    /// abandoned: PUT and DELETE go back in line, the others among the dead letters.
    pub fn drain(mut self, deadline: Duration) -> Self {
        self.drain = deadline.min(LONGEST);
        self
    }

    /// How long a run outlives its process. Default 10 s, at least 100 ms; renewed at a third.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), LONGEST);
        self
    }

    /// Longest run. Default 5 minutes; its lock is then left to end, and the run is lost.
    pub fn max_run(mut self, max: Duration) -> Self {
        self.max_run = max.min(LONGEST);
        self
    }

    /// How long finished jobs and their responses are kept. Default a day.
    pub fn keep_done(mut self, retention: Duration) -> Self {
        self.keep_done = retention.min(LONGEST);
        self
    }

    /// How long dead letters are kept. Default a week.
    pub fn keep_dead(mut self, retention: Duration) -> Self {
        self.keep_dead = retention.min(LONGEST);
        self
    }

    /// Works until `shutdown` resolves, then drains: it stops claiming, lets runs end, and gives its
    /// shards up. If this future is dropped instead, runs are aborted, as in a crash.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(false);
        let mut hints = self.store.hints().work();
        let worker = Arc::new(self);
        let mut rounds = Rounds::new(Arc::clone(&worker), stopped);
        let mut shutdown = std::pin::pin!(shutdown);
        tracing::info!(node = %worker.store.node(), "worker started");
        loop {
            let look = rounds.next_look();
            tokio::select! {
                () = &mut shutdown => break,
                () = tokio::time::sleep_until(rounds.next_beat) => rounds.beat().await,
                Some(hint) = hints.recv() => rounds.hint(hint),
                Some(ended) = rounds.visits.join_next() => {
                    if let Ok((key, next)) = ended {
                        rounds.ended(key, next);
                    }
                }
                () = sleep_until(look) => rounds.look().await,
            }
        }
        rounds.drain(&stop).await;
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// What the worker watches, and when it looks at it next.
struct Rounds {
    worker: Arc<DeferWorker>,
    stopped: watch::Receiver<bool>,
    mine: BTreeSet<u16>,
    looks: BTreeMap<u16, Instant>,
    /// Locks being visited, and whether a message about them came meanwhile.
    under_way: HashMap<Key, Option<JobId>>,
    visits: JoinSet<(Key, Next)>,
    next_beat: Instant,
}

impl Rounds {
    fn new(worker: Arc<DeferWorker>, stopped: watch::Receiver<bool>) -> Self {
        Self {
            worker,
            stopped,
            mine: BTreeSet::new(),
            looks: BTreeMap::new(),
            under_way: HashMap::new(),
            visits: JoinSet::new(),
            next_beat: Instant::now(),
        }
    }

    fn has_room(&self) -> bool {
        self.visits.len() < self.worker.concurrency
    }

    /// `None` while there is no room: what can't be started is not looked for.
    fn next_look(&self) -> Option<Instant> {
        self.has_room().then(|| self.looks.values().min().copied())?
    }

    fn look_at(&mut self, shard: u16, at: Instant) {
        if self.mine.contains(&shard) {
            let look = self.looks.entry(shard).or_insert(at);
            *look = at.min(*look);
        }
    }

    /// A sign of life. A store that is away is asked again soon: until it knows of this worker, its jobs
    /// have nobody.
    async fn beat(&mut self) {
        let next = match self.divide().await {
            Ok(()) => BEAT,
            Err(_) => LOOK_AGAIN,
        };
        self.next_beat = Instant::now() + next;
    }

    /// Takes shards over from the dead and leaves a fair part to the living.
    async fn divide(&mut self) -> Result<(), Error> {
        let (store, node) = (&self.worker.store, self.worker.store.node());
        let beat = store.backend().beat(node.clone(), WATCH).await?;
        self.mine = beat.mine.into_iter().collect();
        self.looks.retain(|shard, _| self.mine.contains(shard));
        // Every beat looks everywhere once: new shards, and whatever a lost message was about.
        let now = Instant::now();
        self.looks.extend(self.mine.iter().map(|&shard| (shard, now)));
        Ok(())
    }

    fn hint(&mut self, hint: Hint) {
        let now = Instant::now();
        match hint {
            Hint::Work(key, id) if self.under_way.contains_key(&key) => {
                self.under_way.insert(key, Some(id));
            }
            Hint::Work(key, id) if self.has_room() => self.visit(key, Some(id)),
            Hint::Work(key, _) => self.look_at(key.shard(), now),
            Hint::Due(shard) => self.look_at(shard, now),
            // A little later, so that a message about itself does not make it beat again and again.
            Hint::Workers => self.next_beat = self.next_beat.min(now + SETTLE),
            // The store may have come back empty: it must learn of this worker before all else.
            Hint::Resync => self.next_beat = now,
            Hint::Offer(_) | Hint::Line(..) | Hint::Job(_) => {}
        }
    }

    /// Asks the shards whose time has come what is due.
    async fn look(&mut self) {
        let now = Instant::now();
        let shards: Vec<_> =
            self.looks.iter().filter(|(_, at)| **at <= now).map(|(&shard, _)| shard).collect();
        let room = self.worker.concurrency - self.visits.len();
        let due = self.worker.store.backend().due(shards.clone(), room.min(100)).await;
        for shard in &shards {
            self.looks.remove(shard);
        }
        let Ok(due) = due else {
            let again = now + LOOK_AGAIN;
            return shards.into_iter().for_each(|shard| self.look_at(shard, again));
        };
        for (shard, due) in shards.into_iter().zip(due) {
            if let Some(next) = due.next {
                self.look_at(shard, now + next);
            }
            for (key, _) in due.names {
                if self.under_way.contains_key(&key) {
                    continue;
                }
                if self.has_room() {
                    self.visit(key, None);
                } else {
                    self.look_at(shard, now);
                }
            }
        }
    }

    fn visit(&mut self, key: Key, id: Option<JobId>) {
        self.under_way.insert(key.clone(), None);
        let visit = Visit { worker: Arc::clone(&self.worker), key, stopped: self.stopped.clone() };
        self.visits.spawn(visit.run(id));
    }

    fn ended(&mut self, key: Key, next: Next) {
        let shard = key.shard();
        match self.under_way.remove(&key).flatten() {
            Some(id) => self.visit(key, Some(id)),
            None => {
                let wait = match next {
                    Next::After(wait) => wait,
                    Next::WhenTold => LOOK_AGAIN,
                };
                self.look_at(shard, Instant::now() + wait);
            }
        }
    }

    async fn drain(mut self, stop: &watch::Sender<bool>) {
        let (store, node) = (self.worker.store.clone(), self.worker.store.node().clone());
        tracing::info!(%node, running = self.visits.len(), "worker stops");
        // First of all: no more offers to this worker.
        let _ = store.backend().beat(node.clone(), Duration::ZERO).await;
        let ended = async { while self.visits.join_next().await.is_some() {} };
        if tokio::time::timeout(self.worker.drain, ended).await.is_err() {
            stop.send_replace(true);
            // Giving back is a call or two each, within the store's deadline.
            let ended = async { while self.visits.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(Duration::from_secs(2), ended).await;
        }
        tracing::info!(%node, left = self.visits.len(), "worker stopped");
    }
}

impl fmt::Debug for DeferWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferWorker")
            .field("store", &self.store)
            .field("concurrency", &self.concurrency)
            .field("lease", &self.lease)
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}
