//! The lines under the mutex: who waits, whose turn it is, and what the store has said.

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

/// A lock in one mode: what has a line of its own.
pub(super) type LocalQueueId = (Key, LockMode);

/// Nearly all are exclusive; a word about a lock has to find all of its lines.
#[derive(Default)]
pub(super) struct LocalQueueMap {
    pub(super) exclusive: HashMap<Key, LocalQueue>,
    pub(super) other_modes: HashMap<Key, QueuesByMode>,
    /// Who joined for locks that have no line here: this process may have just been granted one, and not know it yet.
    join_buffers: HashMap<Key, JoinBuffer>,
}

/// The lines of one lock in other modes, of which it has one as a rule.
type QueuesByMode = SmallVec<[(LockMode, Box<LocalQueue>); 1]>;

/// So many are remembered, for so long: far more than there are calls without a line under way, and longer than any is. A
/// message that is forgotten costs what a lost one does.
const JOIN_BUFFER_LIMITS: (usize, Duration) = (256, Duration::from_secs(10));

/// One of them. It is there exactly while a guard, a keeper or a waiter is.
#[derive(Default)]
pub(super) struct LocalQueue {
    pub(super) waiters: VecDeque<Waiter>,
    /// The leases of this process that can be handed on.
    pub(super) handover_tokens: SmallVec<[LockToken; 1]>,
    /// Somebody asks the store for this process; rung when a waiter leaves.
    pub(super) acquirer: Option<Arc<Notify>>,
    /// It is one of those who came, in its own future, and no task.
    pub(super) has_leader: bool,
    pub(super) snapshot: Option<QueueSnapshot>,
    /// What came perhaps after the next word was made.
    pub(super) join_buffer: Option<JoinBuffer>,
    /// What the store said last of who has it.
    pub(super) last_busy: Option<LockBusy>,
    pub(super) prefetcher: SnapshotPrefetcher,
}

impl LocalQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.handover_tokens.is_empty() && self.acquirer.is_none()
    }

    /// Whether a newcomer stands behind others of this process, who are or will be served.
    pub(super) fn is_occupied(&self, mode: LockMode) -> bool {
        let mine = mode == LockMode::Exclusive && !self.handover_tokens.is_empty();
        mine || self.acquirer.is_some() || !self.waiters.is_empty()
    }

    pub(super) fn remove_departed(&mut self, gone: &mut DepartedWaiters) {
        let (now, length) = (Instant::now(), self.waiters.len());
        // Mostly nobody has.
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

    /// Somebody joined the store's line.
    pub(super) fn record_join(&mut self, who: Contenders) {
        if let Some(word) = &mut self.snapshot {
            word.add(who);
        }
        self.join_buffer = Some(JoinBuffer::add(self.join_buffer, who));
    }

    /// From the front, as far as it goes.
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

    /// The next waiter and its fence, if the lock may be handed over to it.
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

    /// The turn is over, and nobody was handed it. A bell for the keeper, if one is needed: those who
    /// wait have nobody who asks for them.
    pub(super) fn end_handovers(&mut self, me: &LockToken) -> Option<Arc<Notify>> {
        self.handover_tokens.retain(|turn| turn != me);
        self.prefetcher.end_hold();
        if self.waiters.is_empty() || self.acquirer.is_some() {
            return None;
        }
        Some(self.register_queue_task())
    }

    /// The bell of one that is about to be.
    pub(super) fn register_queue_task(&mut self) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        (self.acquirer, self.has_leader) = (Some(Arc::clone(&bell)), false);
        bell
    }

    /// Whether who has asked asks for those who wait from here on, too: unless somebody else does, or it comes to them.
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
    /// Somebody joined the store's line of a lock that nobody here stands in line for.
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

    /// What the store has said with a grant, and who was told of while that was under way.
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

    /// The lines of a lock, of all modes.
    pub(super) fn all_modes_mut(&mut self, key: &Key) -> impl Iterator<Item = &mut LocalQueue> {
        let others = self.other_modes.get_mut(key).into_iter().flatten();
        self.exclusive.get_mut(key).into_iter().chain(others.map(|(_, line)| &mut **line))
    }

    /// How many wait for a lock.
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

    #[expect(clippy::indexing_slicing, reason = "it is there, or has been put there")]
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
        // By one look-up: each hashes the name.
        match name.1 {
            LockMode::Exclusive => {
                if let Entry::Occupied(line) = self.exclusive.entry(name.0.clone())
                    && line.get().is_empty()
                {
                    line.remove();
                }
            }
            // A lock has few of them: all that are empty go.
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
