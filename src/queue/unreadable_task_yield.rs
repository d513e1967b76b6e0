//! `UnreadableTaskYield`: due times of tasks that this worker has returned because it could not
//! read them.
//!
//! When such a task is due again, other workers should be woken rather than this one, which would
//! return it with a longer delay. Shortly before, this worker leaves the idle workers, including
//! its timer for the queue, and polls on its own until the others have had their time.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// Time before the due time at which the worker starts to yield: more than a poll takes.
const YIELD_BEFORE: Duration = Duration::from_secs(1);

/// Time that other workers have for the task. A push that finds no other idle worker waits at most
/// this long.
const YIELD_AFTER: Duration = Duration::from_millis(500);

/// Most due times that are stored. Further tasks come due around the same times.
const MAX_ENTRIES: usize = 1_000;

/// Due times of unreadable tasks, around which this worker yields to the other workers.
#[derive(Default)]
pub(super) struct UnreadableTaskYield {
    due_times: BTreeSet<Instant>,
}

impl UnreadableTaskYield {
    /// Adds a task returned with this delay. A task returned without delay is not meant for other
    /// workers in particular.
    pub(super) fn add(&mut self, delay: Duration) {
        if !delay.is_zero() && self.due_times.len() < MAX_ENTRIES {
            self.due_times.insert(Instant::now() + delay);
        }
    }

    /// Returns true while other workers come first.
    pub(super) fn is_yielding(&mut self) -> bool {
        let now = Instant::now();
        while self.due_times.first().is_some_and(|due_at| *due_at + YIELD_AFTER <= now) {
            self.due_times.pop_first();
        }
        self.due_times.first().is_some_and(|due_at| *due_at <= now + YIELD_BEFORE)
    }

    /// Returns the longest time until the next poll.
    pub(super) fn next_poll_in(&mut self) -> Option<Duration> {
        if self.is_yielding() {
            return Some(YIELD_AFTER);
        }
        let next_due_at = self.due_times.first();
        next_due_at.map(|due_at| due_at.saturating_duration_since(Instant::now() + YIELD_BEFORE))
    }
}
