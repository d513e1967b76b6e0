//! Callbacks that wait for room: their owners take turns.
//!
//! A message or a look names a lock, and whose callback it is stands in the store. So owners are looked up, in the
//! background and before anything is claimed: what waits for the turn of its owner costs no claim.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use tokio::time::sleep;

use super::JobDispatcher;
use crate::{
    defer::{
        ready_queue::ReadyQueue, webhook::webhook_job_id, webhook_receivers::ReceiverAvailability,
    },
    key::Key,
    store::{JobId, Store},
};

/// Most callbacks that wait. Others are found in the due index.
const MAX_QUEUED: usize = 1_000;

/// Most owners that are looked up together.
const MAX_LOOKUP_BATCH: usize = 100;

/// Pause between look-ups while as many wait as may: those that come find no room, unless their owner has few.
const FULL_QUEUE_LOOKUP_DELAY: Duration = Duration::from_millis(100);

/// Most owners whose last turn is remembered: clients may have many.
const MAX_REMEMBERED_OWNERS: usize = 1_000;

/// Owners of these callbacks.
pub(super) type WebhookOwners = Vec<(Key, Arc<str>)>;

#[derive(Default)]
pub(super) struct WebhookReadyQueue {
    queue: ReadyQueue,
    /// Of those that wait, as far as they were looked up.
    owners: HashMap<Key, Arc<str>>,
    /// Callbacks of each owner that wait.
    queued_per_owner: HashMap<Arc<str>, usize>,
    /// Those of which the owner is to be looked up.
    unresolved: Vec<Key>,
    /// The turn that each owner had last.
    last_served: HashMap<Arc<str>, u64>,
    served_count: u64,
    /// None of those that wait had a turn, and nothing has changed since.
    blocked: bool,
}

impl WebhookReadyQueue {
    pub(super) fn queue(&self) -> &ReadyQueue {
        &self.queue
    }

    /// For telling others.
    pub(super) fn queue_mut(&mut self) -> &mut ReadyQueue {
        &mut self.queue
    }

    /// Whether another one may wait. Where too many do, one whose owner has few takes the place of one whose owner has
    /// many: it is let in until its owner is known.
    pub(super) fn accepts(&self) -> bool {
        self.queue.len() < MAX_QUEUED || self.unresolved.len() < MAX_LOOKUP_BATCH
    }

    /// Those that wait, for this one to be put there.
    pub(super) fn queue_for(&mut self, key: &Key) -> &mut ReadyQueue {
        if !self.queue.contains(key) {
            if self.queue.len() >= MAX_QUEUED {
                self.evict_one();
            }
            self.unresolved.push(key.clone());
        }
        &mut self.queue
    }

    /// Drops the last of the owner that has most. It is due again in a while.
    fn evict_one(&mut self) {
        let most = self.queued_per_owner.iter().max_by_key(|(_, count)| **count);
        let Some(owner) = most.map(|(owner, _)| Arc::clone(owner)) else { return };
        let last = |key: &&Key| self.owners.get(*key) == Some(&owner);
        let key = self.queue.keys().rev().find(last).cloned();
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

    /// Takes out the next one: of those whose host has a turn, the first of the owner whose last turn was longest ago.
    pub(super) fn pop(&mut self, turns: &ReceiverAvailability<'_>) -> Option<(Key, Option<JobId>)> {
        if self.blocked {
            return None;
        }
        let mut best: Option<(u64, &Key, &Arc<str>)> = None;
        for key in self.queue.keys() {
            let Some(owner) = self.owners.get(key) else { continue };
            let served = self.last_served.get(owner).copied().unwrap_or(0);
            if best.is_none_or(|(least, ..)| served < least) && turns.allows(key) {
                best = Some((served, key, owner));
            }
        }
        let best = best.map(|(_, key, owner)| (key.clone(), Arc::clone(owner)));
        let Some((key, owner)) = best else {
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
        if self.last_served.len() > MAX_REMEMBERED_OWNERS {
            let oldest = self.last_served.iter().min_by_key(|(_, turn)| **turn);
            if let Some(oldest) = oldest.map(|(owner, _)| Arc::clone(owner)) {
                self.last_served.remove(&oldest);
            }
        }
    }

    /// A turn may have come free.
    pub(super) fn clear_blocked(&mut self) {
        self.blocked = false;
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.owners.clear();
        self.queued_per_owner.clear();
        self.unresolved.clear();
    }

    /// Looks up the owners of the next ones.
    fn start_owner_lookup(&mut self, store: &Store) -> Option<BoxFuture<'static, WebhookOwners>> {
        if self.unresolved.is_empty() {
            return None;
        }
        let count = self.unresolved.len().min(MAX_LOOKUP_BATCH);
        let keys: Vec<_> = self.unresolved.drain(..count).collect();
        let pause =
            if self.queue.len() < MAX_QUEUED { Duration::ZERO } else { FULL_QUEUE_LOOKUP_DELAY };
        let store = store.clone();
        Some(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            join_all(keys.into_iter().map(|key| look_up_owner(&store, key))).await
        }))
    }

    fn record_owners(&mut self, found: WebhookOwners) {
        for (key, owner) in found {
            if !self.queue.contains(&key) || self.owners.contains_key(&key) {
                continue;
            }
            *self.queued_per_owner.entry(Arc::clone(&owner)).or_default() += 1;
            self.owners.insert(key, owner);
        }
        self.blocked = false;
    }
}

/// Of one that is not there, or that a store that is away can't tell, nobody: the claim finds out.
async fn look_up_owner(store: &Store, key: Key) -> (Key, Arc<str>) {
    let job = store.backend().job_view(webhook_job_id(&key)).await;
    let owner = job.ok().flatten().map_or_else(String::new, |job| job.owner);
    (key, owner.into())
}

impl JobDispatcher {
    /// Begins to look up the owners of callbacks, unless that is under way.
    pub(super) fn start_owner_lookup(&mut self) {
        if self.owner_lookup.is_none() {
            self.owner_lookup = self.ready_queues.webhooks.start_owner_lookup(&self.worker.store);
        }
    }

    pub(super) fn handle_owner_lookup(&mut self, found: WebhookOwners) {
        self.ready_queues.webhooks.record_owners(found);
        self.start_ready_chains();
    }
}

/// Until the look-up that is under way has ended; for ever if none is.
pub(super) async fn await_owner_lookup(
    owners: &mut Option<BoxFuture<'static, WebhookOwners>>,
) -> WebhookOwners {
    let Some(look_up) = owners else { return std::future::pending().await };
    let found = look_up.await;
    *owners = None;
    found
}
