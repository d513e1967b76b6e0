//! What a worker watches, and when it looks at it next.
//!
//! Workers divide the shards of a store among themselves by short leases and watch their own. A worker
//! sleeps until a message says that a lock was handed to a job, until the next due time it knows of, or
//! until its next sign of life, which tells which shards have anything to come. A message that is lost
//! costs a beat at most; a worker that dies costs its lease. It claims only what it starts at once: a
//! watcher without room passes the message on to another worker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    visit::{Next, Stop, Visit},
    worker::DeferWorker,
};
use crate::{
    error::Error,
    key::Key,
    store::{Beat, Hint, JobId, Node},
};

/// Life of a watch over a shard; a dead worker's shards are taken over after it.
const WATCH: Duration = Duration::from_secs(10);

/// Time between two signs of life. With a watch's life it bounds how long the work of a worker that died
/// is left alone: 15 s.
const BEAT: Duration = Duration::from_secs(5);

/// How soon shards are divided again after workers have come or gone.
const SETTLE: Duration = Duration::from_millis(50);

/// How soon a store that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// Most locks that wait for room here. What is beyond it is found in the due index.
const MOST_WAITING: usize = 1_000;

/// Most names of one look.
const MOST_NAMES: usize = 100;

/// Longest time for giving back what a drain has cut off: a call or two each, within the store's deadline.
const GIVE_BACK: Duration = Duration::from_secs(2);

pub(super) struct Rounds {
    worker: Arc<DeferWorker>,
    stop: watch::Sender<Stop>,
    crowded: Arc<AtomicBool>,
    /// By the last sign of life.
    paused: Arc<AtomicBool>,
    mine: BTreeSet<u16>,
    looks: BTreeMap<u16, Instant>,
    others: Vec<Node>,
    /// Locks being visited, and whether a message about them came meanwhile.
    under_way: HashMap<Key, Option<JobId>>,
    /// Locks that messages were about while there was no room, each once. Whoever came first is visited
    /// first: a long line, whose own message comes as its visit ends, must not keep the others waiting.
    waiting: VecDeque<(Key, JobId)>,
    /// Locks whose first job this worker can't run: another one is told then, once.
    foreign: HashMap<Key, Instant>,
    visits: JoinSet<(Key, Next)>,
    next_beat: Instant,
}

impl Rounds {
    pub(super) fn new(worker: Arc<DeferWorker>) -> Self {
        Self {
            worker,
            stop: watch::Sender::new(Stop::No),
            crowded: Arc::default(),
            paused: Arc::default(),
            mine: BTreeSet::new(),
            looks: BTreeMap::new(),
            others: Vec::new(),
            under_way: HashMap::new(),
            waiting: VecDeque::new(),
            foreign: HashMap::new(),
            visits: JoinSet::new(),
            next_beat: Instant::now(),
        }
    }

    /// Until `shutdown` resolves, then drains.
    pub(super) async fn run(
        mut self,
        mut hints: mpsc::UnboundedReceiver<Hint>,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let look = self.next_look();
            tokio::select! {
                // In this order: however much there is to do, the others must hear of this worker; and runs
                // end before new ones are looked for.
                biased;
                () = &mut shutdown => break,
                () = tokio::time::sleep_until(self.next_beat) => self.beat().await,
                Some(ended) = self.visits.join_next() => {
                    if let Ok((key, next)) = ended {
                        self.ended(key, next);
                    }
                }
                Some(hint) = hints.recv() => self.hint(hint),
                () = sleep_until(look) => self.look().await,
            }
        }
        self.drain().await;
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
        let beat = self.send_beat(WATCH).await;
        let now = Instant::now();
        let Ok(Beat { mine, busy, others, paused }) = beat else {
            self.next_beat = now + AGAIN;
            return;
        };
        self.next_beat = now + BEAT;
        self.others = others;
        self.paused.store(paused, Ordering::Relaxed);
        self.serve();
        self.mine = mine.into_iter().collect();
        self.looks.retain(|shard, _| self.mine.contains(shard));
        self.foreign.retain(|_, until| *until > now);
        // New shards, and whatever a lost message was about.
        busy.into_iter().for_each(|shard| self.look_at(shard, now));
        let overdue = self.overdue(now);
        if !self.has_room() && !self.others.is_empty() && !overdue.is_empty() {
            self.pass_on(overdue).await;
        }
    }

    /// A watcher that has had no room for so long tells others what is due in its shards.
    async fn pass_on(&mut self, shards: Vec<u16>) {
        let Ok(due) = self.worker.store.backend().due(shards, MOST_NAMES).await else { return };
        for (key, head) in due.into_iter().flat_map(|due| due.names) {
            if !self.under_way.contains_key(&key) {
                self.tell_another(key, head);
            }
        }
    }

    fn overdue(&self, now: Instant) -> Vec<u16> {
        self.looks.iter().filter(|(_, at)| **at <= now).map(|(&shard, _)| shard).collect()
    }

    async fn send_beat(&self, lease: Duration) -> Result<Beat, Error> {
        let (store, node) = (&self.worker.store, self.worker.store.node());
        store.backend().beat(node.clone(), lease).await
    }

    fn hint(&mut self, hint: Hint) {
        let now = Instant::now();
        match hint {
            Hint::Work(..) if self.paused.load(Ordering::Relaxed) => {}
            Hint::Work(key, id) if self.under_way.contains_key(&key) => {
                self.under_way.insert(key, Some(id));
            }
            Hint::Work(key, id) if self.has_room() && self.waiting.is_empty() => {
                self.visit(key, Some(id));
            }
            Hint::Work(key, id) => self.wait_for_room(key, id, now),
            Hint::Due(shard) => self.look_at(shard, now),
            // A little later, so that a message about itself does not make it beat again and again.
            Hint::Workers => self.next_beat = self.next_beat.min(now + SETTLE),
            // The store may have come back empty: it must learn of this worker before all else.
            Hint::Resync => self.next_beat = now,
            Hint::Offer(_) | Hint::Line(..) | Hint::Job(_) | Hint::Tasks(_) => {}
        }
    }

    fn wait_for_room(&mut self, key: Key, id: JobId, now: Instant) {
        let mine = self.mine.contains(&key.shard());
        // Only by the watcher, or two workers without room would tell each other for ever.
        if mine && !self.has_room() {
            self.tell_another(key.clone(), Some(id.clone()));
        }
        // If the other one has no room either: as soon as there is some here.
        if self.waiting.len() >= MOST_WAITING {
            self.look_at(key.shard(), now);
        } else if self.waiting.iter().all(|(other, _)| *other != key) {
            self.waiting.push_back((key, id));
        }
        self.serve();
    }

    /// Visits those that wait, as far as there is room. While the queue is paused they wait in the due index.
    fn serve(&mut self) {
        if self.paused.load(Ordering::Relaxed) {
            self.waiting.clear();
        }
        while self.has_room() {
            let Some((key, id)) = self.waiting.pop_front() else { break };
            if !self.under_way.contains_key(&key) {
                self.visit(key, Some(id));
            }
        }
        self.crowded.store(!self.waiting.is_empty(), Ordering::Relaxed);
    }

    /// Tells a worker chosen at random that this lock has something to do. False if there is none.
    fn tell_another(&self, key: Key, id: Option<JobId>) -> bool {
        if self.others.is_empty() {
            return false;
        }
        let random = uuid::Uuid::new_v4().as_u64_pair().1 % self.others.len() as u64;
        let Some(other) = usize::try_from(random).ok().and_then(|at| self.others.get(at)) else {
            return false;
        };
        let other = other.clone();
        let id = id.unwrap_or_else(|| JobId::new(&key));
        let store = self.worker.store.clone();
        let tell = async move {
            if let Err(error) = store.backend().tell(other, Hint::Work(key, id)).await {
                tracing::debug!(%error, "no other worker was told");
            }
        };
        self.worker.store.spawn(tell);
        true
    }

    /// Asks the shards whose time has come what is due.
    async fn look(&mut self) {
        let now = Instant::now();
        let shards = self.overdue(now);
        // Those that are being visited may be due still, and are not to hide others.
        let most = self.worker.concurrency - self.visits.len() + self.under_way.len();
        let due = self.worker.store.backend().due(shards.clone(), most.min(MOST_NAMES)).await;
        for shard in &shards {
            self.looks.remove(shard);
        }
        let Ok(due) = due else {
            let again = now + AGAIN;
            return shards.into_iter().for_each(|shard| self.look_at(shard, again));
        };
        for (shard, due) in shards.into_iter().zip(due) {
            // What is due and can't be visited yet is no reason to look again and again.
            let new = due.names.iter().any(|(key, _)| !self.under_way.contains_key(key));
            let least = if new { Duration::ZERO } else { AGAIN };
            if let Some(next) = due.next {
                self.look_at(shard, now + if next.is_zero() { least } else { next });
            }
            due.names.into_iter().for_each(|(key, head)| self.due(key, head, now));
        }
    }

    fn due(&mut self, key: Key, head: Option<JobId>, now: Instant) {
        if self.under_way.contains_key(&key) {
            return;
        }
        // The next time it is this worker's turn again: the other one may have gone.
        if self.foreign.remove(&key).is_some_and(|until| now < until)
            && self.tell_another(key.clone(), head.clone())
        {
            self.look_at(key.shard(), now + AGAIN);
        } else if self.has_room() {
            self.visit(key, head);
        } else {
            self.look_at(key.shard(), now);
            self.crowded.store(true, Ordering::Relaxed);
        }
    }

    fn visit(&mut self, key: Key, id: Option<JobId>) {
        self.under_way.insert(key.clone(), None);
        let visit = Visit {
            worker: Arc::clone(&self.worker),
            key,
            stop: self.stop.subscribe(),
            crowded: Arc::clone(&self.crowded),
            paused: Arc::clone(&self.paused),
        };
        self.visits.spawn(visit.run(id));
    }

    fn ended(&mut self, key: Key, next: Next) {
        let (shard, now) = (key.shard(), Instant::now());
        let told = self.under_way.remove(&key).flatten();
        if let Some(id) = told {
            self.waiting.push_back((key.clone(), id));
        }
        self.serve();
        match next {
            Next::WhenTold => {}
            Next::After(wait) => self.look_at(shard, now + wait),
            Next::Others(wait) => {
                self.foreign.insert(key, now + 2 * wait);
                self.look_at(shard, now + wait);
            }
        }
    }

    async fn drain(mut self) {
        let node = self.worker.store.node().clone();
        tracing::info!(%node, running = self.visits.len(), "worker stops");
        self.stop.send_replace(Stop::Drain);
        // First of all: no more offers to this worker.
        let _ = self.send_beat(Duration::ZERO).await;
        let ended = async { while self.visits.join_next().await.is_some() {} };
        if tokio::time::timeout(self.worker.drain, ended).await.is_err() {
            self.stop.send_replace(Stop::Now);
            let ended = async { while self.visits.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(GIVE_BACK, ended).await;
        }
        tracing::info!(%node, left = self.visits.len(), "worker stopped");
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
