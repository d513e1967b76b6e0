//! Pushing a task.

use std::{
    error::Error as StdError,
    fmt,
    future::IntoFuture,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;

use super::{handle::TaskOptions, sealed_payload::seal_payload, task::system_time};
use crate::{
    clock::{MAX_DELAY, MAX_DURATION},
    error::Error,
    key::Key,
    store::{Store, TaskId, TaskPushCommand, TaskPushOutcome, UniqueKey},
};

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushedTask {
    /// It is stored.
    New(TaskId),
    /// Nothing was stored: this task has the same unique key.
    Duplicate(TaskId),
}

impl PushedTask {
    /// The task's id, whichever it is.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        match self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }

    /// As [`id`](Self::id), by value.
    #[must_use]
    pub fn into_id(self) -> TaskId {
        match self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }
}

/// Why a task was not pushed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PushError {
    /// The queue has as many tasks, or bytes, as it may.
    Full,
    /// The payload is longer than [`MemoryTaskQueue::payload_limit`](super::MemoryTaskQueue::payload_limit) allows: it was not sent.
    TooLarge {
        /// What it has as JSON.
        bytes: usize,
        /// What it may have.
        limit: usize,
    },
    /// The payload can't be written as JSON.
    Encode(serde_json::Error),
    /// The payload was written as JSON that its own type can't read: no worker could. Nothing was sent. Looked for only where
    /// debug assertions are on, since it costs as much as reading the payload: a test finds it. The usual reasons are NaN and
    /// infinity, which JSON has not and which are written as `null`, more than 127 levels of nesting, keys of maps that are
    /// not read as they are written, and serde attributes that hold for one direction alone.
    NotDecodable(serde_json::Error),
    /// The store is away. On a timeout the task may have been stored. Pushed again under the same
    /// [unique key](PushRequest::unique), it is not stored twice while the first one waits or runs; once that one has
    /// ended, a second one is stored, and runs as well. Under a key [with a window](PushRequest::unique_for) none is
    /// before the window is over, whatever has become of the first one.
    Store(Error),
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "a payload of {bytes} bytes; the queue takes {limit} at most")
            }
            Self::Encode(_) => f.write_str("the payload can't be written as JSON"),
            Self::NotDecodable(_) => f.write_str(
                "the payload's type can't read the JSON that it writes; make it write what it reads: no NaN or infinity, at \
                 most 127 levels, the same serde attributes both ways",
            ),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl StdError for PushError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Full | Self::TooLarge { .. } => None,
            Self::Encode(error) | Self::NotDecodable(error) => Some(error),
            Self::Store(error) => error.source(),
        }
    }
}

impl From<Error> for PushError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// A task about to be pushed; `.await` does it. Made by [`MemoryTaskQueue::push`](super::MemoryTaskQueue::push).
///
/// If the future is dropped, the task may have been stored.
#[must_use = "nothing is pushed until it is awaited"]
pub struct PushRequest {
    pub(super) store: Store,
    pub(super) queue: Key,
    pub(super) payload: Result<Vec<u8>, PushError>,
    pub(super) options: TaskOptions,
    pub(super) delay: Duration,
    pub(super) unique: Option<UniqueKey>,
}

impl PushRequest {
    /// Not to be run before this time has passed, counted by the store from when it has the task. Default
    /// zero; at most a hundred years (of 365 days), and what is longer counts as that.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay.min(MAX_DELAY);
        self
    }

    /// Not to be run before this moment; one that has passed is now. It is turned into a [delay](Self::delay), with the
    /// bound of one, by this process's clock, so it is as exact as that agrees with the store's. The embedded store has
    /// a clock of its own, which it goes by: `TestKit::now` tells that of the test kit.
    pub fn run_at(self, at: SystemTime) -> Self {
        let now = system_time(self.store.backend().estimated_now_us());
        self.delay(at.duration_since(now).unwrap_or_default())
    }

    /// Nothing is stored while a task pushed under the same key waits or runs; [`PushedTask::Known`] has its
    /// id. A dead letter has no key any more. Keys of [`unique_for`](Self::unique_for) are others: neither sees those of
    /// the other.
    pub fn unique(mut self, key: &str) -> Self {
        self.unique = Some(UniqueKey { name: Key::custom(key), window: None });
        self
    }

    /// Nothing is stored for this time after a push under the same key, whatever has become of its
    /// task; then again, even if that one still waits. At least 1 ms, at most a year. Keys of [`unique`](Self::unique) are
    /// others: neither sees those of the other.
    pub fn unique_for(mut self, key: &str, window: Duration) -> Self {
        let window = window.clamp(Duration::from_millis(1), MAX_DURATION);
        self.unique = Some(UniqueKey { name: Key::custom(key), window: Some(window) });
        self
    }

    /// As [`MemoryTaskQueue::max_attempts`](super::MemoryTaskQueue::max_attempts), for this task.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = attempts.max(1);
        self
    }

    /// As [`MemoryTaskQueue::once`](super::MemoryTaskQueue::once), for this task.
    pub fn once(mut self) -> Self {
        (self.options.max_attempts, self.options.retry_after_crash) = (1, false);
        self
    }

    async fn send(self) -> Result<PushedTask, PushError> {
        let Self { store, queue, payload, options: terms, delay, unique } = self;
        let id = TaskId::new();
        let payload = payload?;
        let TaskOptions {
            retry_after_crash: again,
            max_attempts,
            capacity: caps,
            payload_limit: limit,
        } = terms;
        if payload.len() > limit {
            return Err(PushError::TooLarge { bytes: payload.len(), limit });
        }
        let payload = seal_payload(&store, &queue, &id, payload.into());
        let call = TaskPushCommand {
            queue,
            id: id.clone(),
            delay,
            unique,
            retry_after_crash: again,
            max_attempts,
            payload,
            capacity: caps,
        };
        match store.backend().push_task(call).await? {
            TaskPushOutcome::Stored => Ok(PushedTask::New(id)),
            TaskPushOutcome::Duplicate(id) => Ok(PushedTask::Duplicate(id)),
            TaskPushOutcome::Full => Err(PushError::Full),
        }
    }
}

impl IntoFuture for PushRequest {
    type Output = Result<PushedTask, PushError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl fmt::Debug for PushRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The payload is the user's.
        f.debug_struct("PushRequest")
            .field("queue", &self.queue)
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}
