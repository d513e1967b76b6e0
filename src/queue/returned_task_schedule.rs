//! Due times of tasks that this worker has returned because it could not read them.
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

/// Due times of returned tasks.
#[derive(Default)]
pub(super) struct ReturnedTaskSchedule(BTreeSet<Instant>);

impl ReturnedTaskSchedule {
    /// Adds a task returned with this delay. A task returned without delay is not meant for other
    /// workers in particular.
    pub(super) fn add(&mut self, delay: Duration) {
        if !delay.is_zero() && self.0.len() < MAX_ENTRIES {
            self.0.insert(Instant::now() + delay);
        }
    }

    /// Returns true while other workers come first.
    pub(super) fn is_yielding(&mut self) -> bool {
        let now = Instant::now();
        while self.0.first().is_some_and(|due| *due + YIELD_AFTER <= now) {
            self.0.pop_first();
        }
        self.0.first().is_some_and(|due| *due <= now + YIELD_BEFORE)
    }

    /// Returns the longest time until the next poll.
    pub(super) fn next_poll_in(&mut self) -> Option<Duration> {
        if self.is_yielding() {
            return Some(YIELD_AFTER);
        }
        self.0.first().map(|due| due.saturating_duration_since(Instant::now() + YIELD_BEFORE))
    }
}
