//! Callbacks that wait for room: their owners take turns.
//!
//! A message or a look names a lock, and whose callback it is stands in the store. So owners are looked up, in the
//! background and before anything is claimed: what waits for the turn of its owner costs no claim.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use tokio::time::sleep;

use super::Rounds;
use crate::{
    defer::{callback::id_of, hosts::Turns, waiting::Waiting},
    key::Key,
    store::{JobId, Store},
};

/// Most callbacks that wait. Others are found in the due index.
const MOST_WAITING: usize = 1_000;

/// Most owners that are looked up together.
const MOST_LOOKED_UP: usize = 100;

/// Pause between look-ups while as many wait as may: those that come find no room, unless their owner has few.
const PAUSE: Duration = Duration::from_millis(100);

/// Most owners whose last turn is remembered: clients may have many.
const OWNERS: usize = 1_000;

/// Owners of these callbacks.
pub(super) type Owners = Vec<(Key, Arc<str>)>;

#[derive(Default)]
pub(super) struct Calls {
    waiting: Waiting,
    /// Of those that wait, as far as they were looked up.
    owners: HashMap<Key, Arc<str>>,
    /// Callbacks of each owner that wait.
    counts: HashMap<Arc<str>, usize>,
    /// Those of which the owner is to be looked up.
    unknown: Vec<Key>,
    /// The turn that each owner had last.
    served: HashMap<Arc<str>, u64>,
    turn: u64,
    /// None of those that wait had a turn, and nothing has changed since.
    stuck: bool,
}

impl Calls {
    pub(super) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// For telling others.
    pub(super) fn waiting_mut(&mut self) -> &mut Waiting {
        &mut self.waiting
    }

    /// Whether another one may wait. Where too many do, one whose owner has few takes the place of one whose owner has
    /// many: it is let in until its owner is known.
    pub(super) fn takes(&self) -> bool {
        self.waiting.len() < MOST_WAITING || self.unknown.len() < MOST_LOOKED_UP
    }

    /// Those that wait, for this one to be put there.
    pub(super) fn entering(&mut self, key: &Key) -> &mut Waiting {
        if !self.waiting.contains(key) {
            if self.waiting.len() >= MOST_WAITING {
                self.make_room();
            }
            self.unknown.push(key.clone());
        }
        &mut self.waiting
    }

    /// Drops the last of the owner that has most. It is due again in a while.
    fn make_room(&mut self) {
        let most = self.counts.iter().max_by_key(|(_, count)| **count);
        let Some(owner) = most.map(|(owner, _)| Arc::clone(owner)) else { return };
        let last = |key: &&Key| self.owners.get(*key) == Some(&owner);
        let key = self.waiting.keys().rev().find(last).cloned();
        if let Some(key) = key {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<JobId> {
        if let Some(owner) = self.owners.remove(key)
            && let Some(count) = self.counts.get_mut(&owner)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&owner);
            }
        }
        self.waiting.remove(key)
    }

    /// Takes out the next one: of those whose host has a turn, the first of the owner whose last turn was longest ago.
    pub(super) fn pop(&mut self, turns: &Turns<'_>) -> Option<(Key, Option<JobId>)> {
        if self.stuck {
            return None;
        }
        let mut best: Option<(u64, &Key, &Arc<str>)> = None;
        for key in self.waiting.keys() {
            let Some(owner) = self.owners.get(key) else { continue };
            let served = self.served.get(owner).copied().unwrap_or(0);
            if best.is_none_or(|(least, ..)| served < least) && turns.has(key) {
                best = Some((served, key, owner));
            }
        }
        let best = best.map(|(_, key, owner)| (key.clone(), Arc::clone(owner)));
        let Some((key, owner)) = best else {
            self.stuck = true;
            return None;
        };
        self.serve(owner);
        let head = self.remove(&key);
        Some((key, head))
    }

    fn serve(&mut self, owner: Arc<str>) {
        self.turn += 1;
        self.served.insert(owner, self.turn);
        if self.served.len() > OWNERS {
            let oldest = self.served.iter().min_by_key(|(_, turn)| **turn);
            if let Some(oldest) = oldest.map(|(owner, _)| Arc::clone(owner)) {
                self.served.remove(&oldest);
            }
        }
    }

    /// A turn may have come free.
    pub(super) fn changed(&mut self) {
        self.stuck = false;
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.owners.clear();
        self.counts.clear();
        self.unknown.clear();
    }

    /// Looks up the owners of the next ones.
    fn look_up(&mut self, store: &Store) -> Option<BoxFuture<'static, Owners>> {
        if self.unknown.is_empty() {
            return None;
        }
        let count = self.unknown.len().min(MOST_LOOKED_UP);
        let keys: Vec<_> = self.unknown.drain(..count).collect();
        let pause = if self.waiting.len() < MOST_WAITING { Duration::ZERO } else { PAUSE };
        let store = store.clone();
        Some(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            join_all(keys.into_iter().map(|key| owner(&store, key))).await
        }))
    }

    fn learn(&mut self, found: Owners) {
        for (key, owner) in found {
            if !self.waiting.contains(&key) || self.owners.contains_key(&key) {
                continue;
            }
            *self.counts.entry(Arc::clone(&owner)).or_default() += 1;
            self.owners.insert(key, owner);
        }
        self.stuck = false;
    }
}

/// Of one that is not there, or that a store that is away can't tell, nobody: the claim finds out.
async fn owner(store: &Store, key: Key) -> (Key, Arc<str>) {
    let job = store.backend().job_view(id_of(&key)).await;
    let owner = job.ok().flatten().map_or_else(String::new, |job| job.owner);
    (key, owner.into())
}

impl Rounds {
    /// Begins to look up the owners of callbacks, unless that is under way.
    pub(super) fn look_up_owners(&mut self) {
        if self.owners.is_none() {
            self.owners = self.waiting.calls.look_up(&self.worker.store);
        }
    }

    pub(super) fn owners_found(&mut self, found: Owners) {
        self.waiting.calls.learn(found);
        self.serve();
    }
}

/// Until the look-up that is under way has ended; for ever if none is.
pub(super) async fn looked_up(owners: &mut Option<BoxFuture<'static, Owners>>) -> Owners {
    let Some(look_up) = owners else { return std::future::pending().await };
    let found = look_up.await;
    *owners = None;
    found
}
