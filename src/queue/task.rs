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
    info: TaskAttemptInfo,
}

/// What is known of a task beside its payload.
#[derive(Debug, Clone)]
pub(super) struct TaskAttemptInfo {
    pub(super) id: TaskId,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) pushed_us: u64,
    /// When it was due for the first time.
    pub(super) due_us: u64,
}

/// A task as it was claimed.
pub(super) struct UndecodedTask {
    pub(super) info: TaskAttemptInfo,
    pub(super) payload: Bytes,
}

impl<T> Task<T> {
    pub(super) fn new(payload: T, facts: TaskAttemptInfo) -> Self {
        Self { payload, info: facts }
    }

    /// Its id, the same for all attempts: what an idempotency key towards others should be made of.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.info.id
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.info.attempt
    }

    /// True if it becomes a dead letter should this attempt fail.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.info.attempt >= self.info.max_attempts
    }

    /// When it was pushed, by the store's clock, to the microsecond.
    #[must_use]
    pub fn pushed_at(&self) -> SystemTime {
        system_time(self.info.pushed_us)
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The payload is the user's.
        let TaskAttemptInfo { id, attempt, .. } = &self.info;
        f.debug_struct("Task").field("id", id).field("attempt", attempt).finish_non_exhaustive()
    }
}

/// A time of the store's.
pub(super) fn system_time(us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us)
}
