//! Waiters of this process: their number, deadlines and waits.

use tokio::time::Instant;

use super::{
    local_queue_map::LocalQueueId,
    local_queues::{LocalQueues, MAX_TOTAL_WAITERS},
};
use crate::{durations::saturating_millis, key::Key, store::WaitReport};

impl LocalQueues {
    /// Returns the number of waiters of all locks.
    pub(in crate::lock) fn waiter_count(&self) -> usize {
        MAX_TOTAL_WAITERS.saturating_sub(self.waiter_permits.available_permits())
    }

    /// Returns true if a waiter has a deadline after `instant`.
    pub(super) fn has_waiter_beyond(&self, queue_id: &LocalQueueId, instant: Instant) -> bool {
        let mut queues = self.queues.lock();
        queues
            .get_mut(queue_id)
            .is_some_and(|queue| queue.waiters.iter().any(|waiter| waiter.deadline > instant))
    }

    /// Returns the local queues with waiters, or those of one lock.
    pub(super) fn waits(&self, lock: Option<&Key>) -> Vec<WaitReport> {
        // Every hold has a local queue, and a process may have 100,000.
        if self.waiter_count() == 0 {
            return Vec::new();
        }
        let now = Instant::now();
        let waits: Vec<_> = {
            let queues = self.queues.lock();
            let other_modes = queues.other_modes.iter();
            let other_modes = other_modes
                .flat_map(|(key, queues)| queues.iter().map(move |(_, queue)| (key, &**queue)));
            let all_queues = queues.exclusive.iter().chain(other_modes);
            let wanted = all_queues.filter(|(key, _)| lock.is_none_or(|lock| lock == *key));
            let with_waiters = wanted.filter_map(|(key, queue)| {
                let waiters = queue.waiters.iter().filter(|waiter| waiter.is_waiting(now));
                let first_arrival = waiters.clone().map(|waiter| waiter.arrived_at).min()?;
                Some((key.clone(), waiters.count() as u64, first_arrival))
            });
            with_waiters.collect()
        };
        let reports = waits.into_iter().map(|(key, waiters, first_arrival)| {
            let longest = now.saturating_duration_since(first_arrival);
            let lock = key.operator_name().into_owned();
            WaitReport::new(lock, waiters, saturating_millis(longest))
        });
        reports.collect()
    }
}
