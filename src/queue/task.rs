//! A task as its handler sees it.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;

use crate::store::TaskId;

/// A task that is run now.
pub struct Task<T> {
    /// What was pushed.
    pub payload: T,
    facts: Facts,
}

/// What is known of a task beside its payload.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) id: TaskId,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) pushed_us: u64,
    /// When it was due for the first time.
    pub(super) due_us: u64,
}

/// A task as it was claimed.
pub(super) struct Raw {
    pub(super) facts: Facts,
    pub(super) payload: Bytes,
}

impl<T> Task<T> {
    pub(super) fn new(payload: T, facts: Facts) -> Self {
        Self { payload, facts }
    }

    /// Its id, the same for all attempts: what an idempotency key towards others should be made of.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.facts.id
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.facts.attempt
    }

    /// True if it becomes a dead letter should this attempt fail.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.facts.attempt >= self.facts.max_attempts
    }

    /// When it was pushed, by the store's clock, to the microsecond.
    #[must_use]
    pub fn pushed_at(&self) -> SystemTime {
        time(self.facts.pushed_us)
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The payload is the user's.
        let Facts { id, attempt, .. } = &self.facts;
        f.debug_struct("Task").field("id", id).field("attempt", attempt).finish_non_exhaustive()
    }
}

/// A time of the store's.
pub(super) fn time(us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us)
}
