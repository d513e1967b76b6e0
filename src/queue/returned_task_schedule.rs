//! Tasks that a worker has handed back for others, who may be able to read them.
//!
//! When one is due again others shall be woken, and not this worker, who would hand it back for longer: shortly before, it
//! leaves the idle and whatever timer it has for the queue, and looks by itself until the others have had their time.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// So long before it leaves the idle: more than a turn takes.
const YIELD_BEFORE: Duration = Duration::from_secs(1);

/// How long the others have for it, and so how long a push may wait that finds nobody else.
const YIELD_AFTER: Duration = Duration::from_millis(500);

/// Most moments that are known. More come due beside these.
const MAX_ENTRIES: usize = 1_000;

/// When they are due.
#[derive(Default)]
pub(super) struct ReturnedTaskSchedule(BTreeSet<Instant>);

impl ReturnedTaskSchedule {
    /// One more is handed back for so long; for none at all it is not for others.
    pub(super) fn add(&mut self, delay: Duration) {
        if !delay.is_zero() && self.0.len() < MAX_ENTRIES {
            self.0.insert(Instant::now() + delay);
        }
    }

    /// Whether others come first now.
    pub(super) fn is_yielding(&mut self) -> bool {
        let now = Instant::now();
        while self.0.first().is_some_and(|due| *due + YIELD_AFTER <= now) {
            self.0.pop_first();
        }
        self.0.first().is_some_and(|due| *due <= now + YIELD_BEFORE)
    }

    /// How long it may be until its next look.
    pub(super) fn next_poll_in(&mut self) -> Option<Duration> {
        if self.is_yielding() {
            return Some(YIELD_AFTER);
        }
        self.0.first().map(|due| due.saturating_duration_since(Instant::now() + YIELD_BEFORE))
    }
}
