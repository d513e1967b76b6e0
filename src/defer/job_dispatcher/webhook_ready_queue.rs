//! `WebhookReadyQueue`: webhooks that wait for a slot, fair among their owners.
//!
//! A wake-up or a poll names only a lock; the owner of its webhook is in the store. Owners are
//! looked up in the background, before anything is claimed: a webhook that waits for its owner's
//! turn costs no claim.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use tokio::time::sleep;

use super::JobDispatcher;
use crate::{
    defer::{ready_queue::ReadyQueue, webhook::webhook_job_id, webhook_receivers::FreeSlotView},
    key::Key,
    store::{JobId, Store},
};

/// Most webhooks that wait here. The due index has the others.
const MAX_QUEUED: usize = 1_000;

/// Most owners in one lookup.
const MAX_LOOKUP_BATCH: usize = 100;

/// Pause between lookups while the queue is full. Only webhooks of owners with few of them find a
/// place then.
const FULL_QUEUE_LOOKUP_DELAY: Duration = Duration::from_millis(100);

/// Most owners whose last service is recorded: clients may have many.
const MAX_RECORDED_OWNERS: usize = 1_000;

/// Webhooks with their owners.
pub(super) type WebhookOwners = Vec<(Key, Arc<str>)>;

#[derive(Default)]
pub(super) struct WebhookReadyQueue {
    queue: ReadyQueue,
    /// Owners of queued webhooks, as far as they were looked up.
    owners: HashMap<Key, Arc<str>>,
    /// Number of queued webhooks of each owner.
    queued_per_owner: HashMap<Arc<str>, usize>,
    /// Queued webhooks without a known owner.
    unresolved: Vec<Key>,
    /// Value of `served_count` when each owner was last served.
    last_served: HashMap<Arc<str>, u64>,
    served_count: u64,
    /// No queued webhook could start, and nothing has changed since.
    blocked: bool,
}

impl WebhookReadyQueue {
    pub(super) fn queue(&self) -> &ReadyQueue {
        &self.queue
    }

    /// For forwarding.
    pub(super) fn queue_mut(&mut self) -> &mut ReadyQueue {
        &mut self.queue
    }

    /// Returns true if another webhook may wait. It is admitted to a full queue until its owner is
    /// known: a webhook of an owner with few replaces one of the owner with most.
    pub(super) fn accepts(&self) -> bool {
        self.queue.len() < MAX_QUEUED || self.unresolved.len() < MAX_LOOKUP_BATCH
    }

    /// Returns the queue for this webhook. Call it only to push the webhook. A full queue evicts an
    /// entry first.
    pub(super) fn queue_for(&mut self, key: &Key) -> &mut ReadyQueue {
        if !self.queue.contains(key) {
            if self.queue.len() >= MAX_QUEUED {
                self.evict_one();
            }
            self.unresolved.push(key.clone());
        }
        &mut self.queue
    }

    /// Evicts the last webhook of the owner with most. It becomes due again later.
    fn evict_one(&mut self) {
        let largest = self.queued_per_owner.iter().max_by_key(|(_, count)| **count);
        let Some(owner) = largest.map(|(owner, _)| Arc::clone(owner)) else { return };
        let is_owned = |key: &&Key| self.owners.get(*key) == Some(&owner);
        let key = self.queue.keys().rev().find(is_owned).cloned();
        if let Some(key) = key {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<JobId> {
        if let Some(owner) = self.owners.remove(key)
            && let Some(count) = self.queued_per_owner.get_mut(&owner)
        {
            *count -= 1;
            if *count == 0 {
                self.queued_per_owner.remove(&owner);
            }
        }
        self.queue.remove(key)
    }

    /// Removes the next webhook: among those with a free receiver slot, the first of the owner with
    /// the oldest last turn.
    pub(super) fn pop(&mut self, free_slots: &FreeSlotView<'_>) -> Option<(Key, Option<JobId>)> {
        if self.blocked {
            return None;
        }
        let mut next: Option<(u64, &Key, &Arc<str>)> = None;
        for key in self.queue.keys() {
            let Some(owner) = self.owners.get(key) else { continue };
            let last_served = self.last_served.get(owner).copied().unwrap_or(0);
            if next.is_none_or(|(oldest, ..)| last_served < oldest) && free_slots.allows(key) {
                next = Some((last_served, key, owner));
            }
        }
        let next = next.map(|(_, key, owner)| (key.clone(), Arc::clone(owner)));
        let Some((key, owner)) = next else {
            self.blocked = true;
            return None;
        };
        self.record_served(owner);
        let head = self.remove(&key);
        Some((key, head))
    }

    fn record_served(&mut self, owner: Arc<str>) {
        self.served_count += 1;
        self.last_served.insert(owner, self.served_count);
        if self.last_served.len() > MAX_RECORDED_OWNERS {
            let oldest = self.last_served.iter().min_by_key(|(_, last_served)| **last_served);
            if let Some(oldest) = oldest.map(|(owner, _)| Arc::clone(owner)) {
                self.last_served.remove(&oldest);
            }
        }
    }

    /// Call it when a receiver slot may be free.
    pub(super) fn clear_blocked(&mut self) {
        self.blocked = false;
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.owners.clear();
        self.queued_per_owner.clear();
        self.unresolved.clear();
    }

    /// Starts a lookup of the owners of the next webhooks.
    fn start_owner_lookup(&mut self, store: &Store) -> Option<BoxFuture<'static, WebhookOwners>> {
        if self.unresolved.is_empty() {
            return None;
        }
        let count = self.unresolved.len().min(MAX_LOOKUP_BATCH);
        let keys: Vec<_> = self.unresolved.drain(..count).collect();
        let delay =
            if self.queue.len() < MAX_QUEUED { Duration::ZERO } else { FULL_QUEUE_LOOKUP_DELAY };
        let store = store.clone();
        Some(Box::pin(async move {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            join_all(keys.into_iter().map(|key| look_up_owner(&store, key))).await
        }))
    }

    fn record_owners(&mut self, owners: WebhookOwners) {
        for (key, owner) in owners {
            if !self.queue.contains(&key) || self.owners.contains_key(&key) {
                continue;
            }
            *self.queued_per_owner.entry(Arc::clone(&owner)).or_default() += 1;
            self.owners.insert(key, owner);
        }
        self.blocked = false;
    }
}

/// Looks up the owner of a webhook. Empty if the job is gone or the store is unavailable: the claim
/// finds out.
async fn look_up_owner(store: &Store, key: Key) -> (Key, Arc<str>) {
    let job = store.backend().job_view(webhook_job_id(&key)).await;
    let owner = job.ok().flatten().map_or_else(String::new, |job| job.owner);
    (key, owner.into())
}

impl JobDispatcher {
    /// Starts an owner lookup, unless one is in progress.
    pub(super) fn start_owner_lookup(&mut self) {
        if self.owner_lookup.is_none() {
            self.owner_lookup = self.ready_queues.webhooks.start_owner_lookup(&self.worker.store);
        }
    }

    pub(super) fn handle_owner_lookup(&mut self, owners: WebhookOwners) {
        self.ready_queues.webhooks.record_owners(owners);
        self.start_ready_chains();
    }
}

/// Waits for the current lookup; never resolves if there is none.
pub(super) async fn await_owner_lookup(
    owner_lookup: &mut Option<BoxFuture<'static, WebhookOwners>>,
) -> WebhookOwners {
    let Some(lookup) = owner_lookup else { return std::future::pending().await };
    let owners = lookup.await;
    *owner_lookup = None;
    owners
}
