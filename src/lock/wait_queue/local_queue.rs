//! Local queues as stored under the mutex: waiters, handover tokens and the last queue snapshot.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

use super::{
    queue_snapshot::{FenceRange, JoinBuffer, QueueSnapshot},
    snapshot_prefetcher::SnapshotPrefetcher,
    waiter::{DepartedWaiters, Waiter},
};
use crate::{
    key::Key,
    lock::outcome::LockBusy,
    store::{Contenders, LockLease, LockMode, LockToken},
};

/// Key and mode of a lock; each pair has its own local queue.
pub(super) type LocalQueueId = (Key, LockMode);

/// Local queues by key. Nearly all locks are exclusive, and a message about a lock must reach its
/// queues of all modes.
#[derive(Default)]
pub(super) struct LocalQueueMap {
    pub(super) exclusive: HashMap<Key, LocalQueue>,
    pub(super) other_modes: HashMap<Key, QueuesByMode>,
    /// Joins announced for locks without a local queue: an acquire of this process may have been
    /// granted without its answer having arrived.
    join_buffers: HashMap<Key, JoinBuffer>,
}

/// Queues of one lock in the modes that are not exclusive, usually just one.
type QueuesByMode = SmallVec<[(LockMode, Box<LocalQueue>); 1]>;

/// Most join buffers, and the age at which one may be removed.
///
/// That is far more than the calls in flight without a queue, and longer than any of them. A
/// removed join costs as much as a lost message.
const JOIN_BUFFER_LIMITS: (usize, Duration) = (256, Duration::from_secs(10));

/// Local queue of one lock and mode. It exists exactly while a guard, an acquirer or a waiter does.
#[derive(Default)]
pub(super) struct LocalQueue {
    pub(super) waiters: VecDeque<Waiter>,
    /// Tokens of this process's leases that may be handed over.
    pub(super) handover_tokens: SmallVec<[LockToken; 1]>,
    /// Set while a leader or a queue task asks the store for this process; notified when a waiter
    /// leaves.
    pub(super) acquirer: Option<Arc<Notify>>,
    /// True if the acquirer is a leader, which asks in its own future instead of a task.
    pub(super) has_leader: bool,
    pub(super) snapshot: Option<QueueSnapshot>,
    /// Joins that the next snapshot may lack.
    pub(super) join_buffer: Option<JoinBuffer>,
    /// Last busy answer of the store.
    pub(super) last_busy: Option<LockBusy>,
    pub(super) prefetcher: SnapshotPrefetcher,
}

impl LocalQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.handover_tokens.is_empty() && self.acquirer.is_none()
    }

    /// Returns true if a newcomer must queue behind others of this process, which are or will be
    /// served.
    pub(super) fn is_occupied(&self, mode: LockMode) -> bool {
        let mine = mode == LockMode::Exclusive && !self.handover_tokens.is_empty();
        mine || self.acquirer.is_some() || !self.waiters.is_empty()
    }

    pub(super) fn remove_departed(&mut self, gone: &mut DepartedWaiters) {
        let (now, length) = (Instant::now(), self.waiters.len());
        // Usually all of them still wait.
        if self.waiters.iter().all(|waiter| waiter.is_waiting(now)) {
            return;
        }
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.is_waiting(now) {
                self.waiters.push_back(waiter);
            } else {
                gone.add(waiter, self.last_busy.as_ref(), length);
            }
        }
    }

    /// Records a process or job that joined the store's queue.
    pub(super) fn record_join(&mut self, who: Contenders) {
        if let Some(word) = &mut self.snapshot {
            word.add(who);
        }
        self.join_buffer = Some(JoinBuffer::add(self.join_buffer, who));
    }

    /// Removes departed waiters from the front, up to the first that still waits.
    pub(super) fn remove_departed_at_front(&mut self, gone: &mut DepartedWaiters) {
        if self.waiters.is_empty() {
            return;
        }
        let (now, length) = (Instant::now(), self.waiters.len());
        while self.waiters.front().is_some_and(|first| !first.is_waiting(now))
            && let Some(waiter) = self.waiters.pop_front()
        {
            gone.add(waiter, self.last_busy.as_ref(), length);
        }
    }

    /// Returns the next waiter and its fence if the lock may be handed over to it.
    pub(super) fn next_handover(
        &mut self,
        lease: &LockLease,
        fences: &mut FenceRange,
    ) -> Option<(Waiter, u64)> {
        self.prefetcher.apply_prefetched_fences(&lease.token, fences);
        let first = self.waiters.front()?;
        let word = self.snapshot.as_ref()?;
        let may = self.handover_tokens.contains(&lease.token)
            && first.options.terms == lease.terms
            && first.options.handover_limits == fences.limits()
            && word.allows_handover_to(first.arrived_at, fences)
            && lease.allows_handover();
        let fence = if may { fences.take()? } else { return None };
        self.prefetcher.on_handover(fences);
        Some((self.waiters.pop_front()?, fence))
    }

    /// Ends the handovers of a lease. Returns the notify of a new queue task if one must be
    /// started, because waiters are left and no acquirer is registered.
    pub(super) fn end_handovers(&mut self, me: &LockToken) -> Option<Arc<Notify>> {
        self.handover_tokens.retain(|turn| turn != me);
        self.prefetcher.end_hold();
        if self.waiters.is_empty() || self.acquirer.is_some() {
            return None;
        }
        Some(self.register_queue_task())
    }

    /// Registers a queue task that is about to start, and returns its notify.
    pub(super) fn register_queue_task(&mut self) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        (self.acquirer, self.has_leader) = (Some(Arc::clone(&bell)), false);
        bell
    }

    /// Makes the leader the acquirer of the current waiters. Returns false if another acquirer is
    /// registered, or if a handover will serve them.
    pub(super) fn promote_leader(&mut self, bell: &Arc<Notify>, mode: LockMode) -> bool {
        let served = mode == LockMode::Exclusive && !self.handover_tokens.is_empty();
        let nobody = self.acquirer.is_none() && !served;
        if !nobody && !self.has_acquirer(bell) {
            return false;
        }
        (self.acquirer, self.has_leader) = (Some(Arc::clone(bell)), false);
        true
    }

    pub(super) fn has_acquirer(&self, bell: &Arc<Notify>) -> bool {
        self.acquirer.as_ref().is_some_and(|keeper| Arc::ptr_eq(keeper, bell))
    }
}

impl LocalQueueMap {
    /// Buffers a join for a lock without a local queue.
    pub(super) fn buffer_join(&mut self, key: &Key, who: Contenders) {
        let (most, age) = JOIN_BUFFER_LIMITS;
        if self.join_buffers.len() >= most {
            self.join_buffers.retain(|_, told| !told.is_older_than(age));
        }
        let before = self.join_buffers.get(key).copied();
        if before.is_some() || self.join_buffers.len() < most {
            self.join_buffers.insert(key.clone(), JoinBuffer::add(before, who));
        }
    }

    /// Returns the snapshot of a grant, with the joins that were announced while the acquire was in
    /// flight.
    pub(super) fn apply_buffered_joins(
        &mut self,
        name: &LocalQueueId,
        mut word: QueueSnapshot,
    ) -> QueueSnapshot {
        let told = self.get_mut(name).and_then(|line| line.join_buffer.take());
        let without_a_line =
            if self.join_buffers.is_empty() { None } else { self.join_buffers.remove(&name.0) };
        for told in told.into_iter().chain(without_a_line) {
            told.apply_to(&mut word);
        }
        word
    }

    /// Returns the queues of a lock in all modes.
    pub(super) fn all_modes_mut(&mut self, key: &Key) -> impl Iterator<Item = &mut LocalQueue> {
        let others = self.other_modes.get_mut(key).into_iter().flatten();
        self.exclusive.get_mut(key).into_iter().chain(others.map(|(_, line)| &mut **line))
    }

    /// Returns the number of waiters for a lock in all modes.
    pub(super) fn waiter_count(&mut self, key: &Key) -> usize {
        self.all_modes_mut(key).map(|line| line.waiters.len()).sum()
    }

    pub(super) fn remove_departed(&mut self, key: &Key, gone: &mut DepartedWaiters) {
        self.all_modes_mut(key).for_each(|line| line.remove_departed(gone));
    }

    pub(super) fn get_mut(&mut self, name: &LocalQueueId) -> Option<&mut LocalQueue> {
        match name.1 {
            LockMode::Exclusive => self.exclusive.get_mut(&name.0),
            mode => {
                let lines = self.other_modes.get_mut(&name.0)?;
                lines.iter_mut().find(|(other, _)| *other == mode).map(|(_, line)| &mut **line)
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the index exists or was just pushed")]
    pub(super) fn get_or_create(&mut self, name: &LocalQueueId) -> &mut LocalQueue {
        match name.1 {
            LockMode::Exclusive => self.exclusive.entry(name.0.clone()).or_default(),
            mode => {
                let lines = self.other_modes.entry(name.0.clone()).or_default();
                let at = lines.iter().position(|(other, _)| *other == mode).unwrap_or(lines.len());
                if at == lines.len() {
                    lines.push((mode, Box::default()));
                }
                &mut lines[at].1
            }
        }
    }

    pub(super) fn remove_if_empty(&mut self, name: &LocalQueueId) {
        // One lookup: each one hashes the key.
        match name.1 {
            LockMode::Exclusive => {
                if let Entry::Occupied(line) = self.exclusive.entry(name.0.clone())
                    && line.get().is_empty()
                {
                    line.remove();
                }
            }
            // A lock has few other modes, so all of its empty queues are removed.
            _ => {
                if let Entry::Occupied(mut lines) = self.other_modes.entry(name.0.clone()) {
                    lines.get_mut().retain(|(_, line)| !line.is_empty());
                    if lines.get().is_empty() {
                        lines.remove();
                    }
                }
            }
        }
    }
}
