//! Forwarding of ready locks to peers: which locks have waited too long, and when a lock is
//! forwarded again.

use std::time::Duration;

use tokio::time::Instant;

use super::ready_queue::ReadyQueue;
use crate::{key::Key, store::JobId};

/// Wait after which a lock is forwarded to a peer. A worker with short runs has a free slot by
/// then.
pub(super) const FORWARD_DELAY: Duration = Duration::from_millis(300);

/// Time for which a forwarded lock is left to the peer.
const FORWARD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Forwarding of one ready lock to a peer.
pub(super) struct ForwardingState {
    enqueued_at: Instant,
    /// Last time at which the lock was forwarded to a peer.
    pub(super) forwarded_at: Option<Instant>,
    /// The lock has come due since it was forwarded.
    pub(super) due_since_forward: bool,
}

impl ForwardingState {
    /// Creates the state of a lock that is enqueued now.
    pub(super) fn new(forwarded_at: Option<Instant>) -> Self {
        Self { enqueued_at: Instant::now(), forwarded_at, due_since_forward: false }
    }

    /// Returns true if a peer must be notified. A peer that was notified `FORWARD_RETRY_INTERVAL`
    /// before the lock came due has run another of its jobs, or none.
    fn is_needed(&self, now: Instant) -> bool {
        match self.forwarded_at {
            None => self.enqueued_at + FORWARD_DELAY <= now,
            Some(forwarded_at) => {
                self.due_since_forward && forwarded_at + FORWARD_RETRY_INTERVAL <= now
            }
        }
    }

    fn mark_forwarded(&mut self, now: Instant) {
        (self.forwarded_at, self.due_since_forward) = (Some(now), false);
    }
}

impl ReadyQueue {
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
                self.entries.get_mut(key).filter(|entry| all || entry.forwarding.is_needed(now))
            {
                entry.forwarding.mark_forwarded(now);
                locks.push((key.clone(), entry.head_job.clone()));
            }
        }
        locks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
