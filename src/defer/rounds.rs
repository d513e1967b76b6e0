//! What a worker watches, and when it looks at it next.
//!
//! Workers divide the shards of a store among themselves by short leases and watch their own. A worker
//! sleeps until a message says that a lock was handed to a job, until the next due time it knows of, or
//! until its next sign of life, which tells which shards have anything to come. A message that is lost
//! costs a beat at most; a worker that dies costs its lease. It claims only what it starts at once: a
//! watcher without room passes the message on to another worker.
//!
//! What it knows ahead are names: of some locks that are due, looked up in the background, before the last of
//! them is visited. They are hints like any message. So a run costs a claim and a settlement, whatever the
//! number of lines, and neither waits for the other: the room of a run is free when its handler has ended.

mod calls;
mod drain;
mod lines;
mod looks;
mod others;
mod room;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use self::{
    calls::{Owners, looked_up},
    lines::Lines,
    looks::{Looked, under_way},
    others::Foreign,
    room::Room,
};
use super::{
    hosts::Hosts,
    visit::{Next, Stop},
    worker::DeferWorker,
};
use crate::{
    clock::Alarm,
    error::Error,
    key::Key,
    store::{Heartbeat, WakeupMessage, JobId, NodeId},
};

/// Life of a watch over a shard; a dead worker's shards are taken over after it, within 15 s of its last sign of life.
const WATCH: Duration = Duration::from_secs(14);

/// Time between two signs of life of a worker that is alone. It bounds what a lost message costs.
const ALONE: Duration = Duration::from_secs(5);

/// The same among others, whose signs of life each cost the server as much.
const AMONG_OTHERS: Duration = Duration::from_secs(10);

/// How soon after another one's lease has ended it is looked after. In a ring each has one that it looks after; if that
/// lives, the two have come into step, and it costs nothing.
const LAPSED: Duration = Duration::from_millis(200);

/// How soon shards are divided again after workers have come or gone.
const SETTLE: Duration = Duration::from_millis(50);

/// How soon a store that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// Most names of one look.
const MOST_NAMES: usize = 100;

/// Runs for each callback that may be made at once beside them.
const CALLS: usize = 4;

/// Least callbacks at once: half of them are reserved.
const LEAST_CALLS: usize = 2;

pub(super) struct Rounds {
    worker: Arc<DeferWorker>,
    stop: watch::Sender<Stop>,
    /// By the last sign of life.
    paused: Arc<AtomicBool>,
    mine: BTreeSet<u16>,
    looks: BTreeMap<u16, Instant>,
    /// When the first of them is.
    alarm: Alarm,
    others: Vec<NodeId>,
    /// Locks being visited, and whether a message about them came meanwhile.
    under_way: HashMap<Key, Option<JobId>>,
    /// Locks that messages and looks were about.
    waiting: Lines,
    /// Jobs that this worker can't run, and for how long it leaves them to others; one of those is told when they
    /// come back.
    foreign: HashMap<JobId, Foreign>,
    requests: Room,
    calls: Room,
    hosts: Arc<Hosts>,
    /// Owners of callbacks that are being looked up.
    owners: Option<BoxFuture<'static, Owners>>,
    visits: JoinSet<(Key, Next)>,
    looking: Option<BoxFuture<'static, Looked>>,
    next_beat: Instant,
    /// When others are told what has waited here for too long.
    stuck_at: Option<Instant>,
}

impl Rounds {
    pub(super) fn new(worker: Arc<DeferWorker>) -> Self {
        Self {
            requests: Room::new(worker.concurrency),
            calls: Room::new(worker.concurrency.div_ceil(CALLS).max(LEAST_CALLS)),
            hosts: Arc::default(),
            owners: None,
            worker,
            stop: watch::Sender::new(Stop::No),
            paused: Arc::default(),
            mine: BTreeSet::new(),
            looks: BTreeMap::new(),
            alarm: Alarm::default(),
            others: Vec::new(),
            under_way: HashMap::new(),
            waiting: Lines::default(),
            foreign: HashMap::new(),
            visits: JoinSet::new(),
            looking: None,
            next_beat: Instant::now(),
            stuck_at: None,
        }
    }

    /// Until `shutdown` resolves, then drains.
    pub(super) async fn run(
        mut self,
        mut hints: mpsc::UnboundedReceiver<WakeupMessage>,
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
                        self.ended(&key, next);
                    }
                }
                () = self.requests.freed() => self.serve(),
                () = self.calls.freed() => {
                    self.waiting.calls.changed();
                    self.serve();
                }
                found = looked_up(&mut self.owners) => self.owners_found(found),
                looked = under_way(&mut self.looking) => self.looked(looked),
                Some(hint) = hints.recv() => self.hint(hint),
                () = self.alarm.at(look) => self.look(),
                () = at(self.stuck_at) => self.stuck(),
            }
        }
        // From here on it is none of the workers of this process.
        hints.close();
        self.drain().await;
    }

    /// A sign of life. A store that is away is asked again soon: until it knows of this worker, its jobs
    /// have nobody.
    async fn beat(&mut self) {
        // Whoever brings the messages may have ended, with the runtime he was on.
        self.worker.store.wakeups();
        let beat = self.send_beat(WATCH).await;
        let now = Instant::now();
        let Ok(Heartbeat { own_shards: mine, busy_shards: busy, peers: others, is_paused: paused, peer_expires_in: lapse }) = beat else {
            self.next_beat = now + AGAIN;
            return;
        };
        let lapsed = lapse.map(|lapse| lapse + LAPSED);
        self.next_beat = now + lapsed.map_or(ALONE, |lapsed| lapsed.min(AMONG_OTHERS));
        self.others = others;
        self.paused.store(paused, Ordering::Relaxed);
        self.serve();
        self.mine = mine.into_iter().collect();
        self.looks.retain(|shard, _| self.mine.contains(shard));
        self.foreign.retain(|_, foreign| foreign.until > now);
        // New shards, and whatever a lost message was about.
        busy.into_iter().for_each(|shard| self.look_at(shard, now));
        // Those that there was room for wait no more.
        self.pass_on(true);
    }

    fn send_beat(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<Heartbeat, Error>> + Send + use<> {
        let store = self.worker.store.clone();
        async move { store.backend().heartbeat(store.node().clone(), lease).await }
    }

    fn hint(&mut self, hint: WakeupMessage) {
        let now = Instant::now();
        match hint {
            WakeupMessage::JobOffer(..) if self.paused.load(Ordering::Relaxed) => {}
            WakeupMessage::JobOffer(key, id) if self.under_way.contains_key(&key) => {
                self.under_way.insert(key, Some(id));
            }
            // Where others may pass, it comes back by an offer.
            WakeupMessage::JobOffer(key, id) if self.is_for_another(&key, &id, now) => {
                self.look_at(key.shard(), now + AGAIN);
            }
            WakeupMessage::JobOffer(key, id) => self.told(key, id, now),
            WakeupMessage::ShardDue(shard) => self.look_at(shard, now),
            // A little later, so that a message about itself does not make it beat again and again.
            WakeupMessage::WorkersChanged => self.next_beat = self.next_beat.min(now + SETTLE),
            // The store may have come back empty: it must learn of this worker before all else.
            WakeupMessage::Resync => self.next_beat = now,
            WakeupMessage::Offer(_) | WakeupMessage::QueueJoin(..) | WakeupMessage::JobChanged(_) | WakeupMessage::TasksReady(_) => {}
        }
    }

    fn told(&mut self, key: Key, id: JobId, now: Instant) {
        let mine = self.mine.contains(&key.shard());
        // Only by the watcher, or two workers without room would tell each other for ever.
        let told =
            mine && !self.has_room_for(&key) && self.tell_another(key.clone(), Some(id.clone()));
        // If the other one has no room either: as soon as there is some here.
        if self.waiting.takes(&key) {
            let told = Some(now).filter(|_| told);
            self.waiting.entering(&key).push_told(key, Some(id), told);
        } else {
            self.look_at(key.shard(), now);
        }
        self.serve();
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
