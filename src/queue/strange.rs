//! Tasks that a worker has handed back for others, who may be able to read them.
//!
//! When one is due again others shall be woken, and not this worker, who would hand it back for longer: shortly before, it
//! leaves the idle and whatever timer it has for the queue, and looks by itself until the others have had their time.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// So long before it leaves the idle: more than a turn takes.
const BEFORE: Duration = Duration::from_secs(1);

/// How long the others have for it, and so how long a push may wait that finds nobody else.
const OTHERS: Duration = Duration::from_millis(500);

/// Most moments that are known. More come due beside these.
const MOST: usize = 1_000;

/// When they are due.
#[derive(Default)]
pub(super) struct Strange(BTreeSet<Instant>);

impl Strange {
    /// One more is handed back for so long; for none at all it is not for others.
    pub(super) fn leaves(&mut self, delay: Duration) {
        if !delay.is_zero() && self.0.len() < MOST {
            self.0.insert(Instant::now() + delay);
        }
    }

    /// Whether others come first now.
    pub(super) fn is_now(&mut self) -> bool {
        let now = Instant::now();
        while self.0.first().is_some_and(|due| *due + OTHERS <= now) {
            self.0.pop_first();
        }
        self.0.first().is_some_and(|due| *due <= now + BEFORE)
    }

    /// How long it may be until its next look.
    pub(super) fn next_look(&mut self) -> Option<Duration> {
        if self.is_now() {
            return Some(OTHERS);
        }
        self.0.first().map(|due| due.saturating_duration_since(Instant::now() + BEFORE))
    }
}
