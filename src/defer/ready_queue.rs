//! `ReadyQueue`: a queue of ready locks, which have a runnable job and wait for a run slot.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use super::ready_lock_forwarding::ForwardingState;
use crate::{key::Key, store::JobId};

/// FIFO of ready locks, each at most once.
///
/// A lock with a long queue, which receives its own wake-up as its chain ends, must not starve the
/// others. All entries are hints; the claim decides.
#[derive(Default)]
pub(super) struct ReadyQueue {
    pub(super) order: VecDeque<Key>,
    pub(super) entries: HashMap<Key, ReadyLock>,
}

/// Entry of one ready lock.
pub(super) struct ReadyLock {
    pub(super) head_job: Option<JobId>,
    pub(super) forwarding: ForwardingState,
}

impl ReadyQueue {
    /// Adds a lock. The newest information about its head job replaces the older.
    pub(super) fn push(&mut self, key: Key, head: Option<JobId>) {
        self.push_forwarded(key, head, None);
    }

    /// Adds a lock; `forwarded_at` is the time at which it was forwarded to a peer, if it was.
    pub(super) fn push_forwarded(
        &mut self,
        key: Key,
        head: Option<JobId>,
        forwarded_at: Option<Instant>,
    ) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.head_job = head;
            if let Some(forwarded_at) = forwarded_at {
                entry.forwarding.forwarded_at = Some(forwarded_at);
            }
            return;
        }
        self.order.push_back(key.clone());
        self.entries.insert(
            key,
            ReadyLock { head_job: head, forwarding: ForwardingState::new(forwarded_at) },
        );
    }

    /// Adds a lock that has come due.
    pub(super) fn push_due(&mut self, key: &Key, head: Option<JobId>) {
        self.push(key.clone(), head);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.forwarding.due_since_forward = true;
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Key, Option<JobId>)> {
        let key = self.order.pop_front()?;
        let head = self.entries.remove(&key).and_then(|entry| entry.head_job);
        Some((key, head))
    }

    /// Removes a lock at any position.
    pub(super) fn remove(&mut self, key: &Key) -> Option<JobId> {
        let index = self.order.iter().position(|queued| queued == key)?;
        self.order.remove(index);
        self.entries.remove(key).and_then(|entry| entry.head_job)
    }

    /// Returns the locks in order of arrival.
    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = &Key> {
        self.order.iter()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_queued_once_with_its_latest_job() {
        let mut queue = ReadyQueue::default();
        let (one, two) = (Key::custom("1"), Key::custom("2"));
        let (old, new) = (JobId::new(&one), JobId::new(&one));
        queue.push(one.clone(), Some(old));
        queue.push(two.clone(), None);
        queue.push(one.clone(), Some(new.clone()));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.pop(), Some((one.clone(), Some(new))));
        assert!(!queue.contains(&one) && queue.contains(&two));
        assert_eq!(queue.pop(), Some((two, None)));
        assert_eq!((queue.pop(), queue.is_empty()), (None, true));
    }
}
