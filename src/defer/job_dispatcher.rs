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

mod drain;
mod due_poller;
mod peer_jobs;
mod ready_queues;
mod run_capacity;
mod webhook_ready_queue;

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
    due_poller::{DuePollResult, await_due_poll},
    peer_jobs::PeerJob,
    ready_queues::ReadyQueues,
    run_capacity::RunCapacity,
    webhook_ready_queue::{WebhookOwners, await_owner_lookup},
};
use super::{
    job_chain::{ChainOutcome, ShutdownPhase},
    webhook_receivers::WebhookReceivers,
    worker::DeferWorker,
};
use crate::{
    clock::PreciseTimer,
    error::Error,
    key::Key,
    store::{Heartbeat, JobId, NodeId, WakeupMessage},
};

/// Life of a watch over a shard; a dead worker's shards are taken over after it, within 15 s of its last sign of life.
const SHARD_LEASE: Duration = Duration::from_secs(14);

/// Time between two signs of life of a worker that is alone. It bounds what a lost message costs.
const SOLO_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The same among others, whose signs of life each cost the server as much.
const PEER_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// How soon after another one's lease has ended it is looked after. In a ring each has one that it looks after; if that
/// lives, the two have come into step, and it costs nothing.
const LAPSED_PEER_CHECK_DELAY: Duration = Duration::from_millis(200);

/// How soon shards are divided again after workers have come or gone.
const REBALANCE_DELAY: Duration = Duration::from_millis(50);

/// How soon a store that did not answer is asked again.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// Most names of one look.
const MAX_DUE_LOCKS: usize = 100;

/// Runs for each callback that may be made at once beside them.
const RUN_SLOTS_PER_WEBHOOK_SLOT: usize = 4;

/// Least callbacks at once: half of them are reserved.
const MIN_WEBHOOK_SLOTS: usize = 2;

pub(super) struct JobDispatcher {
    worker: Arc<DeferWorker>,
    shutdown: watch::Sender<ShutdownPhase>,
    /// By the last sign of life.
    paused: Arc<AtomicBool>,
    owned_shards: BTreeSet<u16>,
    due_polls: BTreeMap<u16, Instant>,
    /// When the first of them is.
    due_poll_alarm: PreciseTimer,
    peers: Vec<NodeId>,
    /// Locks being visited, and whether a message about them came meanwhile.
    running_chains: HashMap<Key, Option<JobId>>,
    /// Locks that messages and looks were about.
    ready_queues: ReadyQueues,
    /// Jobs that this worker can't run, and for how long it leaves them to others; one of those is told when they
    /// come back.
    peer_jobs: HashMap<JobId, PeerJob>,
    request_capacity: RunCapacity,
    webhook_capacity: RunCapacity,
    webhook_receivers: Arc<WebhookReceivers>,
    /// Owners of callbacks that are being looked up.
    owner_lookup: Option<BoxFuture<'static, WebhookOwners>>,
    chain_tasks: JoinSet<(Key, ChainOutcome)>,
    due_poll: Option<BoxFuture<'static, DuePollResult>>,
    next_heartbeat: Instant,
    /// When others are told what has waited here for too long.
    forward_at: Option<Instant>,
}

impl JobDispatcher {
    pub(super) fn new(worker: Arc<DeferWorker>) -> Self {
        Self {
            request_capacity: RunCapacity::new(worker.concurrency),
            webhook_capacity: RunCapacity::new(
                worker.concurrency.div_ceil(RUN_SLOTS_PER_WEBHOOK_SLOT).max(MIN_WEBHOOK_SLOTS),
            ),
            webhook_receivers: Arc::default(),
            owner_lookup: None,
            worker,
            shutdown: watch::Sender::new(ShutdownPhase::Running),
            paused: Arc::default(),
            owned_shards: BTreeSet::new(),
            due_polls: BTreeMap::new(),
            due_poll_alarm: PreciseTimer::default(),
            peers: Vec::new(),
            running_chains: HashMap::new(),
            ready_queues: ReadyQueues::default(),
            peer_jobs: HashMap::new(),
            chain_tasks: JoinSet::new(),
            due_poll: None,
            next_heartbeat: Instant::now(),
            forward_at: None,
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
            let look = self.next_due_poll_at();
            tokio::select! {
                // In this order: however much there is to do, the others must hear of this worker; and runs
                // end before new ones are looked for.
                biased;
                () = &mut shutdown => break,
                () = tokio::time::sleep_until(self.next_heartbeat) => self.refresh_membership().await,
                Some(ended) = self.chain_tasks.join_next() => {
                    if let Ok((key, next)) = ended {
                        self.handle_chain_end(&key, next);
                    }
                }
                () = self.request_capacity.wait_freed() => self.start_ready_chains(),
                () = self.webhook_capacity.wait_freed() => {
                    self.ready_queues.webhooks.clear_blocked();
                    self.start_ready_chains();
                }
                found = await_owner_lookup(&mut self.owner_lookup) => self.handle_owner_lookup(found),
                looked = await_due_poll(&mut self.due_poll) => self.handle_due_poll(looked),
                Some(hint) = hints.recv() => self.handle_wakeup(hint),
                () = self.due_poll_alarm.wait_until(look) => self.start_due_poll(),
                () = sleep_until_some(self.forward_at) => self.forward_stuck_locks(),
            }
        }
        // From here on it is none of the workers of this process.
        hints.close();
        self.drain().await;
    }

    /// A sign of life. A store that is away is asked again soon: until it knows of this worker, its jobs
    /// have nobody.
    async fn refresh_membership(&mut self) {
        // Whoever brings the messages may have ended, with the runtime he was on.
        self.worker.store.wakeups();
        let beat = self.send_heartbeat(SHARD_LEASE).await;
        let now = Instant::now();
        let Ok(Heartbeat {
            own_shards: mine,
            busy_shards: busy,
            peers: others,
            is_paused: paused,
            peer_expires_in: lapse,
        }) = beat
        else {
            self.next_heartbeat = now + RETRY_DELAY;
            return;
        };
        let lapsed = lapse.map(|lapse| lapse + LAPSED_PEER_CHECK_DELAY);
        self.next_heartbeat = now
            + lapsed.map_or(SOLO_HEARTBEAT_INTERVAL, |lapsed| lapsed.min(PEER_HEARTBEAT_INTERVAL));
        self.peers = others;
        self.paused.store(paused, Ordering::Relaxed);
        self.start_ready_chains();
        self.owned_shards = mine.into_iter().collect();
        self.due_polls.retain(|shard, _| self.owned_shards.contains(shard));
        self.peer_jobs.retain(|_, foreign| foreign.until > now);
        // New shards, and whatever a lost message was about.
        busy.into_iter().for_each(|shard| self.schedule_due_poll(shard, now));
        // Those that there was room for wait no more.
        self.forward_ready_locks(true);
    }

    fn send_heartbeat(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<Heartbeat, Error>> + Send + use<> {
        let store = self.worker.store.clone();
        async move { store.backend().heartbeat(store.node().clone(), lease).await }
    }

    fn handle_wakeup(&mut self, hint: WakeupMessage) {
        let now = Instant::now();
        match hint {
            WakeupMessage::JobOffer(..) if self.paused.load(Ordering::Relaxed) => {}
            WakeupMessage::JobOffer(key, id) if self.running_chains.contains_key(&key) => {
                self.running_chains.insert(key, Some(id));
            }
            // Where others may pass, it comes back by an offer.
            WakeupMessage::JobOffer(key, id) if self.leave_to_peer(&key, &id, now) => {
                self.schedule_due_poll(key.shard(), now + RETRY_DELAY);
            }
            WakeupMessage::JobOffer(key, id) => self.handle_work_wakeup(key, id, now),
            WakeupMessage::ShardDue(shard) => self.schedule_due_poll(shard, now),
            // A little later, so that a message about itself does not make it beat again and again.
            WakeupMessage::WorkersChanged => {
                self.next_heartbeat = self.next_heartbeat.min(now + REBALANCE_DELAY)
            }
            // The store may have come back empty: it must learn of this worker before all else.
            WakeupMessage::Resync => self.next_heartbeat = now,
            WakeupMessage::Offer(_)
            | WakeupMessage::QueueJoin(..)
            | WakeupMessage::JobChanged(_)
            | WakeupMessage::TasksReady(_) => {}
        }
    }

    fn handle_work_wakeup(&mut self, key: Key, id: JobId, now: Instant) {
        let mine = self.owned_shards.contains(&key.shard());
        // Only by the watcher, or two workers without room would tell each other for ever.
        let told = mine
            && !self.has_capacity_for(&key)
            && self.notify_random_peer(key.clone(), Some(id.clone()));
        // If the other one has no room either: as soon as there is some here.
        if self.ready_queues.accepts(&key) {
            let told = Some(now).filter(|_| told);
            self.ready_queues.queue_for(&key).push_forwarded(key, Some(id), told);
        } else {
            self.schedule_due_poll(key.shard(), now);
        }
        self.start_ready_chains();
    }
}

async fn sleep_until_some(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
