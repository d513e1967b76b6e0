//! Visits, as far as there is room for them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use super::{JobDispatcher, peer_jobs::PeerJob};
use crate::{
    defer::{
        job_chain::{ChainOutcome, JobChain},
        ready_queue::FORWARD_DELAY,
        run_slots::{RunSlot, RunSlots},
        webhook_receivers::WebhookLimits,
    },
    key::Key,
    store::JobId,
};

/// Visits for each run that there is room for: those beyond are settled, and no more begin while the store is too slow
/// for it.
const MAX_CHAINS_PER_SLOT: usize = 2;

/// That for lines of requests, or for those of callbacks. Neither has the other's: requests may run for long, or wait for leave
/// to run for hours, and whom a callback is for may take his time.
pub(super) struct RunCapacity {
    slots: Arc<RunSlots>,
    active_chains: usize,
    /// Others wait for it.
    contended: Arc<AtomicBool>,
}

impl RunCapacity {
    pub(super) fn new(most: usize) -> Self {
        Self { slots: RunSlots::new(most), active_chains: 0, contended: Arc::default() }
    }

    fn is_available(&self) -> bool {
        self.slots.has_free_slot()
            && self.active_chains < MAX_CHAINS_PER_SLOT.saturating_mul(self.slots.limit())
    }

    fn start_chain(&mut self) -> RunSlot {
        self.active_chains += 1;
        self.slots.acquire()
    }

    fn end_chain(&mut self) {
        self.active_chains = self.active_chains.saturating_sub(1);
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.limit()
    }

    /// As of its slots.
    pub(super) async fn wait_freed(&self) {
        self.slots.wait_freed().await;
    }
}

impl JobDispatcher {
    fn capacity_mut(&mut self, key: &Key) -> &mut RunCapacity {
        if key.is_webhook() { &mut self.webhook_capacity } else { &mut self.request_capacity }
    }

    /// For another line like this one.
    pub(super) fn has_capacity_for(&self, key: &Key) -> bool {
        let room = if key.is_webhook() { &self.webhook_capacity } else { &self.request_capacity };
        room.is_available()
    }

    /// Visits those that wait, as far as there is room. While the queue is paused they wait in the due index.
    pub(super) fn start_ready_chains(&mut self) {
        if self.paused.load(Ordering::Relaxed) {
            self.ready_queues.clear();
        }
        self.start_owner_lookup();
        while self.webhook_capacity.is_available() {
            let Some((key, head)) = self.pop_ready_webhook() else { break };
            self.spawn_chain(key, head);
        }
        while self.request_capacity.is_available() {
            let Some((key, head)) = self.ready_queues.pop_request() else { break };
            self.spawn_chain(key, head);
        }
        let stuck_at = self.forward_at.unwrap_or_else(|| Instant::now() + FORWARD_DELAY);
        self.forward_at = Some(stuck_at).filter(|_| !self.ready_queues.is_empty());
        self.webhook_capacity.contended.store(self.ready_queues.has_webhooks(), Ordering::Relaxed);
        self.request_capacity.contended.store(self.ready_queues.has_requests(), Ordering::Relaxed);
    }

    fn pop_ready_webhook(&mut self) -> Option<(Key, Option<JobId>)> {
        let crowded = self.ready_queues.webhooks.queue().len() > 1;
        let turns = self.webhook_receivers.availability(WebhookLimits {
            max_calls: self.webhook_capacity.slot_count(),
            contended: crowded,
        });
        self.ready_queues.webhooks.pop(&turns)
    }

    /// Unless one is under way.
    fn spawn_chain(&mut self, key: Key, id: Option<JobId>) {
        if self.running_chains.contains_key(&key) {
            return;
        }
        self.running_chains.insert(key.clone(), None);
        let room = self.capacity_mut(&key);
        let (slot, crowded) = (room.start_chain(), Arc::clone(&room.contended));
        let visit = JobChain {
            worker: Arc::clone(&self.worker),
            key,
            slot,
            shutdown: self.shutdown.subscribe(),
            contended: crowded,
            paused: Arc::clone(&self.paused),
            webhook_receivers: Arc::clone(&self.webhook_receivers),
        };
        self.chain_tasks.spawn(visit.run(id));
    }

    pub(super) fn handle_chain_end(&mut self, key: &Key, next: ChainOutcome) {
        let (shard, now) = (key.shard(), Instant::now());
        self.capacity_mut(key).end_chain();
        let told = self.running_chains.remove(key).flatten();
        if let Some(id) = told {
            self.ready_queues.queue_for(key).push(key.clone(), Some(id));
        }
        self.ready_queues.webhooks.clear_blocked();
        self.start_ready_chains();
        match next {
            ChainOutcome::AwaitWakeup => {}
            ChainOutcome::RetryAfter(wait) => self.schedule_due_poll(shard, now + wait),
            ChainOutcome::LeaveToPeer(id, wait) => {
                self.peer_jobs.insert(id, PeerJob { until: now + 2 * wait, announced: false });
                self.schedule_due_poll(shard, now + wait);
            }
        }
    }
}
