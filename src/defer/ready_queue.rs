//! `ReadyQueue`: a queue of ready locks, which have a runnable job and wait for a run slot.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{key::Key, store::JobId};

/// Wait after which a lock is forwarded to a peer. A worker with short runs has a free slot by
/// then.
pub(super) const FORWARD_DELAY: Duration = Duration::from_millis(300);

/// Time for which a forwarded lock is left to the peer.
const FORWARD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// FIFO of ready locks, each at most once.
///
/// A lock with a long queue, which receives its own wake-up as its chain ends, must not starve the
/// others. All entries are hints; the claim decides.
#[derive(Default)]
pub(super) struct ReadyQueue {
    order: VecDeque<Key>,
    entries: HashMap<Key, ReadyLock>,
}

struct ReadyLock {
    head_job: Option<JobId>,
    enqueued_at: Instant,
    /// Last time at which the lock was forwarded to a peer.
    forwarded_at: Option<Instant>,
    /// The lock has come due since it was forwarded.
    due_since_forward: bool,
}

impl ReadyLock {
    /// Returns true if a peer must be notified. A peer that was notified `FORWARD_RETRY_INTERVAL`
    /// before the lock came due has run another of its jobs, or none.
    fn needs_forwarding(&self, now: Instant) -> bool {
        match self.forwarded_at {
            None => self.enqueued_at + FORWARD_DELAY <= now,
            Some(forwarded_at) => {
                self.due_since_forward && forwarded_at + FORWARD_RETRY_INTERVAL <= now
            }
        }
    }
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
            (entry.head_job, entry.forwarded_at) = (head, forwarded_at.or(entry.forwarded_at));
            return;
        }
        self.order.push_back(key.clone());
        self.entries.insert(
            key,
            ReadyLock {
                head_job: head,
                enqueued_at: Instant::now(),
                forwarded_at,
                due_since_forward: false,
            },
        );
    }

    /// Adds a lock that has come due.
    pub(super) fn push_due(&mut self, key: &Key, head: Option<JobId>) {
        self.push(key.clone(), head);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.due_since_forward = true;
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

    /// Returns the first `max_locks` locks to forward, and marks them as forwarded: any lock if
    /// `all` is set, otherwise those that no peer was notified of in time.
    pub(super) fn next_to_forward(
        &mut self,
        max_locks: usize,
        all: bool,
        now: Instant,
    ) -> Vec<(Key, Option<JobId>)> {
        let mut locks = Vec::new();
        for key in &self.order {
            if locks.len() == max_locks {
                break;
            }
            if let Some(entry) =
                self.entries.get_mut(key).filter(|entry| all || entry.needs_forwarding(now))
            {
                (entry.forwarded_at, entry.due_since_forward) = (Some(now), false);
                locks.push((key.clone(), entry.head_job.clone()));
            }
        }
        locks
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

    #[tokio::test(start_paused = true)]
    async fn locks_are_forwarded_once_after_the_delay_until_due() {
        let mut queue = ReadyQueue::default();
        let keys = ["1", "2", "3"].map(Key::custom);
        keys.iter().for_each(|key| queue.push(key.clone(), None));
        let (now, later) = (Instant::now(), Instant::now() + FORWARD_DELAY);
        let mut forward = |max_locks, all, now| {
            let locks = queue.next_to_forward(max_locks, all, now);
            locks.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert!(forward(2, false, now).is_empty());
        assert_eq!(forward(2, false, later), keys[..2]);
        assert_eq!(forward(2, false, later), keys[2..]);
        assert!(forward(2, false, later).is_empty());
        assert_eq!(forward(2, true, later), keys[..2]);
        let last = Key::custom("4");
        queue.push_forwarded(last.clone(), None, Some(later));
        // A new job does not forward its lock again. A lock that becomes due is forwarded again
        // after `FORWARD_RETRY_INTERVAL`.
        queue.push(keys[0].clone(), Some(JobId::new(&keys[0])));
        queue.push_due(&last, None);
        assert!(queue.next_to_forward(2, false, later).is_empty());
        assert_eq!(queue.next_to_forward(2, false, later + FORWARD_RETRY_INTERVAL), [(last, None)]);
        assert!(queue.next_to_forward(2, false, later + 9 * FORWARD_RETRY_INTERVAL).is_empty());
    }
}
