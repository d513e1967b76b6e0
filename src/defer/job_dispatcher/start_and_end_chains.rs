//! Start of job chains for ready locks within the run capacity, and the reaction to their end.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::Instant;

use super::{JobDispatcher, forward_to_peers::PeerJob, run_capacity::RunCapacity};
use crate::{
    defer::{
        job_chain::{ChainOutcome, JobChain},
        ready_lock_forwarding::FORWARD_DELAY,
        webhook_receivers::WebhookLimits,
    },
    key::Key,
    store::JobId,
};

impl JobDispatcher {
    fn capacity_mut(&mut self, key: &Key) -> &mut RunCapacity {
        if key.is_webhook() { &mut self.webhook_capacity } else { &mut self.request_capacity }
    }

    /// Returns true if a chain for this lock can start now.
    pub(super) fn has_capacity_for(&self, key: &Key) -> bool {
        let capacity =
            if key.is_webhook() { &self.webhook_capacity } else { &self.request_capacity };
        capacity.is_available()
    }

    /// Starts chains for ready locks within the capacity. While none may start, the due index keeps
    /// them.
    pub(super) fn start_ready_chains(&mut self) {
        if !self.may_start_runs() {
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
        let forward_at = self.forward_at.unwrap_or_else(|| Instant::now() + FORWARD_DELAY);
        self.forward_at = Some(forward_at).filter(|_| !self.ready_queues.is_empty());
        self.webhook_capacity.contended.store(self.ready_queues.has_webhooks(), Ordering::Relaxed);
        self.request_capacity.contended.store(self.ready_queues.has_requests(), Ordering::Relaxed);
    }

    fn pop_ready_webhook(&mut self) -> Option<(Key, Option<JobId>)> {
        let contended = self.ready_queues.webhooks.queue().len() > 1;
        let max_calls = self.webhook_capacity.slot_count();
        let free_slots = self.webhook_receivers.free_slots(WebhookLimits { max_calls, contended });
        self.ready_queues.webhooks.pop(&free_slots)
    }

    /// Starts a chain, unless the lock has one.
    fn spawn_chain(&mut self, key: Key, id: Option<JobId>) {
        if self.running_chains.contains_key(&key) {
            return;
        }
        self.running_chains.insert(key.clone(), None);
        let capacity = self.capacity_mut(&key);
        let (slot, contended) = (capacity.start_chain(), Arc::clone(&capacity.contended));
        let chain = JobChain {
            worker: Arc::clone(&self.worker),
            key,
            slot,
            shutdown: self.shutdown.subscribe(),
            contended,
            paused: Arc::clone(&self.paused),
            webhook_receivers: Arc::clone(&self.webhook_receivers),
        };
        self.chain_tasks.spawn(chain.run(id));
    }

    pub(super) fn handle_chain_end(&mut self, key: &Key, outcome: ChainOutcome) {
        let (shard, now) = (key.shard(), Instant::now());
        self.capacity_mut(key).end_chain();
        let offered_job = self.running_chains.remove(key).flatten();
        if let Some(id) = offered_job {
            self.ready_queues.queue_for(key).push(key.clone(), Some(id));
        }
        self.ready_queues.webhooks.clear_blocked();
        self.start_ready_chains();
        match outcome {
            ChainOutcome::AwaitWakeup => {}
            ChainOutcome::RetryAfter(wait) => self.schedule_due_poll(shard, now + wait),
            ChainOutcome::LeaveToPeer(id, wait) => {
                self.peer_jobs.insert(id, PeerJob { until: now + 2 * wait, announced: false });
                self.schedule_due_poll(shard, now + wait);
            }
        }
    }
}
