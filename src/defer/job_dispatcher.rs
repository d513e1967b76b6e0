//! `JobDispatcher` of a worker: receives wake-ups, polls the due index, sends heartbeats, starts
//! job chains.
//!
//! Workers divide the shards of a store among themselves by short leases, and poll the shards that
//! they own. A worker sleeps until the first of:
//!
//! - a wake-up, which says that a lock was offered to a job,
//! - the next due time that it knows,
//! - its next heartbeat, which returns the shards with pending work.
//!
//! A lost wake-up costs at most one heartbeat interval. A dead worker costs the lease of its
//! shards. A worker claims only jobs that it can start at once; the owner of a shard without a free
//! slot forwards the wake-up to a peer.
//!
//! The names of due locks are polled in the background, before the last known one is started. They
//! are hints, as wake-ups are. A run therefore costs one claim and one settlement, whatever the
//! number of queues. Neither waits for the other: the run slot is free as soon as the handler has
//! ended.

mod drain;
mod due_lock_poller;
mod forward_to_peers;
mod request_and_webhook_queues;
mod run_capacity;
mod start_and_end_chains;
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
    due_lock_poller::{DueLockPollResult, await_due_poll},
    forward_to_peers::PeerJob,
    request_and_webhook_queues::RequestAndWebhookQueues,
    run_capacity::RunCapacity,
    webhook_ready_queue::{WebhookOwners, await_owner_lookup},
};
use super::{
    job_chain::{ChainOutcome, ShutdownPhase},
    webhook_receivers::WebhookReceivers,
    worker::WorkerSettings,
};
use crate::{
    clock::PreciseTimer,
    error::Error,
    instruments::WorkerSlots,
    key::Key,
    store::{HeartbeatReply, JobId, NodeId, WakeupMessage},
};

/// Lease of an owned shard. The shards of a dead worker are taken over within 15 s of its last
/// heartbeat.
const SHARD_LEASE: Duration = Duration::from_secs(14);

/// Heartbeat interval of a worker without peers. It bounds the cost of a lost wake-up.
const SOLO_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Heartbeat interval of a worker with peers, since each heartbeat costs the server the same.
const PEER_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Time after the expiry of a peer's lease at which this worker checks it.
///
/// The workers form a ring in which each checks one peer. If that peer is alive, both heartbeats
/// have fallen into step, and the check costs nothing extra.
const LAPSED_PEER_CHECK_DELAY: Duration = Duration::from_millis(200);

/// Delay before shards are divided again after workers have joined or left.
const REBALANCE_DELAY: Duration = Duration::from_millis(50);

/// Delay of a heartbeat after which the lease of this worker's shards may have ended.
const MAX_HEARTBEAT_DELAY: Duration = SHARD_LEASE.saturating_sub(PEER_HEARTBEAT_INTERVAL);

/// Delay before a failed call to the store is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// Most locks that one due poll returns, and most that are forwarded at once.
const MAX_DUE_LOCKS: usize = 100;

/// Run slots per webhook slot.
const RUN_SLOTS_PER_WEBHOOK_SLOT: usize = 4;

/// Least number of webhook slots: half of them are reserved.
const MIN_WEBHOOK_SLOTS: usize = 2;

pub(super) struct JobDispatcher {
    worker: Arc<WorkerSettings>,
    shutdown: watch::Sender<ShutdownPhase>,
    /// State at the last heartbeat.
    paused: Arc<AtomicBool>,
    /// Changes when an operator drains this process, or resumes it.
    process_drain: watch::Receiver<bool>,
    owned_shards: BTreeSet<u16>,
    due_polls: BTreeMap<u16, Instant>,
    /// Wakes at the first time in `due_polls`.
    due_poll_alarm: PreciseTimer,
    peers: Vec<NodeId>,
    /// Locks with a running job chain, each with the job of a wake-up that arrived during the
    /// chain.
    running_chains: HashMap<Key, Option<JobId>>,
    /// Locks found by wake-ups and due polls.
    ready_queues: RequestAndWebhookQueues,
    /// Jobs that this worker can't run and leaves to a peer for a while. A peer is notified when
    /// they come up again.
    peer_jobs: HashMap<JobId, PeerJob>,
    request_capacity: RunCapacity,
    webhook_capacity: RunCapacity,
    /// Entry of this worker in the list for operators.
    _registration: Arc<WorkerSlots>,
    webhook_receivers: Arc<WebhookReceivers>,
    /// Pending lookup of the owners of webhooks.
    owner_lookup: Option<BoxFuture<'static, WebhookOwners>>,
    chain_tasks: JoinSet<(Key, ChainOutcome)>,
    due_poll: Option<BoxFuture<'static, DueLockPollResult>>,
    next_heartbeat: Instant,
    /// Time at which locks that have waited here too long are forwarded to peers.
    forward_at: Option<Instant>,
}

impl JobDispatcher {
    pub(super) fn new(worker: Arc<WorkerSettings>) -> Self {
        let request_capacity = RunCapacity::new(worker.concurrency);
        let registration = request_capacity.register(&worker.store);
        let process_drain = worker.store.wakeups().process_drain();
        Self {
            request_capacity,
            _registration: registration,
            webhook_capacity: RunCapacity::new(
                worker.concurrency.div_ceil(RUN_SLOTS_PER_WEBHOOK_SLOT).max(MIN_WEBHOOK_SLOTS),
            ),
            webhook_receivers: Arc::default(),
            owner_lookup: None,
            worker,
            shutdown: watch::Sender::new(ShutdownPhase::Running),
            paused: Arc::default(),
            process_drain,
            owned_shards: BTreeSet::new(),
            due_polls: BTreeMap::new(),
            due_poll_alarm: PreciseTimer::default(),
            peers: Vec::new(),
            running_chains: HashMap::new(),
            ready_queues: RequestAndWebhookQueues::default(),
            peer_jobs: HashMap::new(),
            chain_tasks: JoinSet::new(),
            due_poll: None,
            next_heartbeat: Instant::now(),
            forward_at: None,
        }
    }

    /// Runs until `shutdown` resolves, then drains until `cut_off` resolves at the latest.
    pub(super) async fn run(
        mut self,
        mut wakeups: mpsc::UnboundedReceiver<WakeupMessage>,
        shutdown: impl Future<Output = ()>,
        cut_off: impl Future<Output = ()>,
    ) {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let due_poll_at = self.next_due_poll_at();
            tokio::select! {
                // In this order: heartbeats must not starve under load, and ended chains are
                // handled before new ones start.
                biased;
                () = &mut shutdown => break,
                Ok(()) = self.process_drain.changed() => self.apply_process_drain(),
                () = tokio::time::sleep_until(self.next_heartbeat) => self.refresh_membership().await,
                Some(ended) = self.chain_tasks.join_next() => {
                    if let Ok((key, outcome)) = ended {
                        self.handle_chain_end(&key, outcome);
                    }
                }
                () = self.request_capacity.wait_freed() => self.start_ready_chains(),
                () = self.webhook_capacity.wait_freed() => {
                    self.ready_queues.webhooks.clear_blocked();
                    self.start_ready_chains();
                }
                owners = await_owner_lookup(&mut self.owner_lookup) => self.handle_owner_lookup(owners),
                result = await_due_poll(&mut self.due_poll) => self.handle_due_poll(result),
                Some(message) = wakeups.recv() => self.handle_wakeup(message),
                () = self.due_poll_alarm.wait_until(due_poll_at) => self.start_due_poll(),
                () = sleep_until_some(self.forward_at) => self.forward_stuck_locks(),
            }
        }
        // From here on, this worker no longer counts among the workers of the process.
        wakeups.close();
        self.drain(cut_off).await;
    }

    /// Sends a heartbeat. A failed one is repeated after `RETRY_DELAY`: until the store knows this
    /// worker, jobs may have no live worker.
    async fn refresh_membership(&mut self) {
        // Restarts the receiver of wake-ups if it ended with the runtime that it ran on.
        self.worker.store.wakeups();
        let was_late = Instant::now() > self.next_heartbeat + MAX_HEARTBEAT_DELAY;
        let is_drained = self.worker.store.is_drained();
        // A drained worker leaves, so that its peers take its shards.
        let lease = if is_drained { Duration::ZERO } else { SHARD_LEASE };
        let heartbeat = self.send_heartbeat(lease).await;
        let now = Instant::now();
        if was_late || is_drained || !heartbeat.as_ref().is_ok_and(|reply| !reply.is_paused) {
            self.worker.record_watch_gap();
        }
        let Ok(HeartbeatReply { own_shards, busy_shards, peers, is_paused, peer_expires_in }) =
            heartbeat
        else {
            self.next_heartbeat = now + RETRY_DELAY;
            return;
        };
        let peer_check_in = peer_expires_in.map(|expires_in| expires_in + LAPSED_PEER_CHECK_DELAY);
        let interval = peer_check_in
            .map_or(SOLO_HEARTBEAT_INTERVAL, |check_in| check_in.min(PEER_HEARTBEAT_INTERVAL));
        self.next_heartbeat = now + interval;
        self.peers = peers;
        self.paused.store(is_paused, Ordering::Relaxed);
        self.start_ready_chains();
        self.owned_shards = own_shards.into_iter().collect();
        self.due_polls.retain(|shard, _| self.owned_shards.contains(shard));
        self.peer_jobs.retain(|_, peer_job| peer_job.until > now);
        // New shards, and the subjects of lost wake-ups.
        busy_shards.into_iter().for_each(|shard| self.schedule_due_poll(shard, now));
        // Locks that this worker had capacity for have been started.
        self.forward_ready_locks(true);
    }

    fn send_heartbeat(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<HeartbeatReply, Error>> + Send + use<> {
        let store = self.worker.store.clone();
        async move { store.backend().heartbeat(store.node().clone(), lease).await }
    }

    fn handle_wakeup(&mut self, message: WakeupMessage) {
        let now = Instant::now();
        match message {
            WakeupMessage::JobOffer(..) if !self.may_start_runs() => {}
            WakeupMessage::JobOffer(key, id) if self.running_chains.contains_key(&key) => {
                self.running_chains.insert(key, Some(id));
            }
            // If other jobs may overtake it, it returns as an offer.
            WakeupMessage::JobOffer(key, id) if self.leave_to_peer(&key, &id, now) => {
                self.schedule_due_poll(key.shard(), now + RETRY_DELAY);
            }
            WakeupMessage::JobOffer(key, id) => self.handle_job_offer(key, id, now),
            WakeupMessage::ShardDue(shard) => self.schedule_due_poll(shard, now),
            // Delayed, so that this worker's own announcement does not trigger heartbeat after
            // heartbeat.
            WakeupMessage::WorkersChanged => {
                self.next_heartbeat = self.next_heartbeat.min(now + REBALANCE_DELAY);
            }
            // The store may have restarted empty. It must learn of this worker first.
            WakeupMessage::Resync => self.next_heartbeat = now,
            WakeupMessage::Offer(_)
            | WakeupMessage::QueueJoin(..)
            | WakeupMessage::JobChanged(_)
            | WakeupMessage::TasksReady(_)
            | WakeupMessage::PoliciesChanged
            | WakeupMessage::FleetInquiry(..)
            | WakeupMessage::ForcedRelease
            | WakeupMessage::CancelRun(_)
            | WakeupMessage::ProcessDrain(_) => {}
        }
    }

    /// Returns false while jobs are paused, or while an operator has drained this process.
    fn may_start_runs(&self) -> bool {
        !self.paused.load(Ordering::Relaxed) && !self.worker.store.is_drained()
    }

    fn handle_job_offer(&mut self, key: Key, id: JobId, now: Instant) {
        let is_owned_shard = self.owned_shards.contains(&key.shard());
        // Only the shard's owner forwards: two workers without capacity would otherwise forward to
        // each other forever.
        let was_forwarded = is_owned_shard
            && !self.has_capacity_for(&key)
            && self.notify_random_peer(key.clone(), Some(id.clone()));
        // The peer may have no capacity either, so the lock also waits for a slot here.
        if self.ready_queues.accepts(&key) {
            let forwarded_at = Some(now).filter(|_| was_forwarded);
            self.ready_queues.queue_for(&key).push_forwarded(key, Some(id), forwarded_at);
        } else {
            self.schedule_due_poll(key.shard(), now);
        }
        self.start_ready_chains();
    }
}

async fn sleep_until_some(wake_at: Option<Instant>) {
    match wake_at {
        Some(wake_at) => tokio::time::sleep_until(wake_at).await,
        None => std::future::pending().await,
    }
}
