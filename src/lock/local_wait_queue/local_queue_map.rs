//! Local queues of all locks by key and mode, as stored under the mutex, and the joins announced
//! for locks without a queue.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    announced_joins::AnnouncedJoins, local_queue::LocalQueue, queue_snapshot::QueueSnapshot,
    queued_waiter::RemovedWaitersToNotify,
};
use crate::{
    key::Key,
    store::{Contenders, LockLease, LockMode},
};

/// Key and mode of a lock; each pair has its own local queue.
#[derive(Debug, Clone)]
pub(in crate::lock) struct LocalQueueId {
    pub(in crate::lock) key: Key,
    pub(in crate::lock) mode: LockMode,
}

impl LocalQueueId {
    pub(in crate::lock) fn of_lease(lease: &LockLease) -> Self {
        Self { key: lease.key.clone(), mode: lease.terms.mode }
    }
}

/// Local queues by key. Nearly all locks are exclusive, and a message about a lock must reach its
/// queues of all modes.
#[derive(Default)]
pub(super) struct LocalQueueMap {
    pub(super) exclusive: HashMap<Key, LocalQueue>,
    pub(super) other_modes: HashMap<Key, QueuesByMode>,
    /// Joins announced for locks without a local queue: an acquire of this process may have been
    /// granted without its answer having arrived.
    unqueued_joins: HashMap<Key, AnnouncedJoins>,
}

/// Queues of one lock in the modes that are not exclusive, usually just one.
type QueuesByMode = SmallVec<[(LockMode, Box<LocalQueue>); 1]>;

/// Most locks in `unqueued_joins`; see also [`UNQUEUED_JOIN_TTL`], the age at which one may be
/// removed.
///
/// That is far more than the calls in flight without a queue, and longer than any of them. A
/// removed join costs as much as a lost message.
const MAX_UNQUEUED_JOINS: usize = 256;

/// Age at which an entry of `unqueued_joins` may be removed.
const UNQUEUED_JOIN_TTL: Duration = Duration::from_secs(10);

impl LocalQueueMap {
    /// Records a join for a lock without a local queue.
    pub(super) fn add_unqueued_join(&mut self, key: &Key, joined: Contenders) {
        if self.unqueued_joins.len() >= MAX_UNQUEUED_JOINS {
            self.unqueued_joins.retain(|_, joins| !joins.is_older_than(UNQUEUED_JOIN_TTL));
        }
        let existing = self.unqueued_joins.get(key).copied();
        if existing.is_some() || self.unqueued_joins.len() < MAX_UNQUEUED_JOINS {
            self.unqueued_joins.insert(key.clone(), AnnouncedJoins::add(existing, joined));
        }
    }

    /// Returns the snapshot of a grant, with the joins that were announced while the acquire was in
    /// flight.
    pub(super) fn apply_announced_joins(
        &mut self,
        queue_id: &LocalQueueId,
        mut snapshot: QueueSnapshot,
    ) -> QueueSnapshot {
        let queue_joins = self.get_mut(queue_id).and_then(|queue| queue.announced_joins.take());
        let unqueued_joins = if self.unqueued_joins.is_empty() {
            None
        } else {
            self.unqueued_joins.remove(&queue_id.key)
        };
        for joins in queue_joins.into_iter().chain(unqueued_joins) {
            joins.apply_to(&mut snapshot);
        }
        snapshot
    }

    /// Returns the queues of a lock in all modes.
    pub(super) fn all_modes_mut(&mut self, key: &Key) -> impl Iterator<Item = &mut LocalQueue> {
        let other_queues = self.other_modes.get_mut(key).into_iter().flatten();
        self.exclusive.get_mut(key).into_iter().chain(other_queues.map(|(_, queue)| &mut **queue))
    }

    /// Returns the number of waiters for a lock in all modes.
    pub(super) fn waiter_count(&mut self, key: &Key) -> usize {
        self.all_modes_mut(key).map(|queue| queue.waiters.len()).sum()
    }

    pub(super) fn remove_departed(&mut self, key: &Key, departed: &mut RemovedWaitersToNotify) {
        self.all_modes_mut(key).for_each(|queue| queue.remove_departed(departed));
    }

    pub(super) fn get_mut(&mut self, queue_id: &LocalQueueId) -> Option<&mut LocalQueue> {
        match queue_id.mode {
            LockMode::Exclusive => self.exclusive.get_mut(&queue_id.key),
            mode => {
                let queues = self.other_modes.get_mut(&queue_id.key)?;
                queues
                    .iter_mut()
                    .find(|(queue_mode, _)| *queue_mode == mode)
                    .map(|(_, queue)| &mut **queue)
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the index exists or was just pushed")]
    pub(super) fn get_or_create(&mut self, queue_id: &LocalQueueId) -> &mut LocalQueue {
        match queue_id.mode {
            LockMode::Exclusive => self.exclusive.entry(queue_id.key.clone()).or_default(),
            mode => {
                let queues = self.other_modes.entry(queue_id.key.clone()).or_default();
                let index = queues
                    .iter()
                    .position(|(queue_mode, _)| *queue_mode == mode)
                    .unwrap_or(queues.len());
                if index == queues.len() {
                    queues.push((mode, Box::default()));
                }
                &mut queues[index].1
            }
        }
    }

    pub(super) fn remove_if_empty(&mut self, queue_id: &LocalQueueId) {
        // One lookup: each one hashes the key.
        match queue_id.mode {
            LockMode::Exclusive => {
                if let Entry::Occupied(queue) = self.exclusive.entry(queue_id.key.clone())
                    && queue.get().is_empty()
                {
                    queue.remove();
                }
            }
            // A lock has few other modes, so all of its empty queues are removed.
            _ => {
                if let Entry::Occupied(mut queues) = self.other_modes.entry(queue_id.key.clone()) {
                    queues.get_mut().retain(|(_, queue)| !queue.is_empty());
                    if queues.get().is_empty() {
                        queues.remove();
                    }
                }
            }
        }
    }
}
