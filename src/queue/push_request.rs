//! `PushRequest`: the push of one task.

use std::{
    error::Error as StdError,
    fmt,
    future::IntoFuture,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use tracing::{Instrument as _, Span, field::Empty};

use super::{
    queue_handle::TaskAndQueueLimits, queue_registration::RegisteredQueues,
    sealed_payload::seal_payload, task::system_time, unserved_queue_warning::UnservedQueueWarning,
};
use crate::{
    durations::{MAX_DELAY, MAX_DURATION},
    error::Error,
    instruments::PushResult,
    key::Key,
    store::{Store, TaskId, TaskPushCommand, TaskPushOutcome, UniqueKey},
};

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushedTask {
    /// The task was stored.
    New(TaskId),
    /// Nothing was stored: this task has the same unique key.
    Duplicate(TaskId),
}

impl PushedTask {
    /// Returns the id of the stored or existing task.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        match self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }

    /// Like [`id`](Self::id), by value.
    #[must_use]
    pub fn into_id(self) -> TaskId {
        match self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }
}

/// Reason why a task was not pushed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PushError {
    /// The queue has reached its capacity in tasks or bytes.
    Full,
    /// The payload is longer than [`Queue::payload_limit`](super::Queue::payload_limit) allows; it
    /// was not sent.
    TooLarge {
        /// Length of the payload as JSON.
        bytes: usize,
        /// Most bytes that the queue allows.
        limit: usize,
    },
    /// The payload can't be encoded as JSON.
    Encode(serde_json::Error),
    /// The payload's own type can't read the JSON that it writes, so no worker could. Nothing was
    /// sent. Checked only with debug assertions, since it costs as much as reading the payload: a
    /// test finds it. The usual causes:
    ///
    /// - NaN and infinity, which JSON lacks and which are written as `null`,
    /// - more than 127 levels of nesting,
    /// - map keys that are written and read in different forms,
    /// - serde attributes that apply to one direction alone.
    NotDecodable(serde_json::Error),
    /// The store is unavailable. After a timeout, the task may have been stored. A repeated push
    /// under the same [unique key](PushRequest::unique) stores no second task while the first one
    /// waits or runs; once that has ended, a second one is stored and runs as well. Under a key
    /// [with a window](PushRequest::unique_for), none is stored before the window is over.
    Store(Error),
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "the payload has {bytes} bytes; the queue takes at most {limit}")
            }
            Self::Encode(_) => f.write_str("the payload could not be serialized as JSON"),
            Self::NotDecodable(_) => f.write_str(
                "the payload's type cannot deserialize the JSON that it serializes; use no NaN or \
                 infinity, at most 127 levels, and the same serde attributes in both directions",
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

/// Task about to be pushed when it is awaited. Made by [`Queue::push`](super::Queue::push).
///
/// If its future is dropped, the task may have been stored.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use lockgate::{
///     Store,
///     queue::{PushedTask, Queue},
/// };
///
/// let emails: Queue<String> = Store::memory().queue("emails");
/// let reminder = "ada@example.org".to_owned();
///
/// let in_an_hour = emails.push(&reminder).delay(Duration::from_secs(3600));
/// let first = in_an_hour.unique("reminder:ada").max_attempts(10).await?;
/// let second = emails.push(&reminder).unique("reminder:ada").await?;
/// assert_eq!(second, PushedTask::Duplicate(first.into_id()));
/// # Ok(()) }
/// ```
#[must_use = "nothing is pushed until it is awaited"]
pub struct PushRequest {
    pub(super) store: Store,
    pub(super) queue: Key,
    pub(super) payload: Result<Vec<u8>, PushError>,
    pub(super) limits: TaskAndQueueLimits,
    pub(super) delay: Duration,
    pub(super) unique: Option<UniqueKey>,
}

impl PushRequest {
    /// Delays the task by this time, counted by the store from the push. Default zero; at most a
    /// hundred years (of 365 days), and a longer delay is cut to that.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay.min(MAX_DELAY);
        self
    }

    /// Delays the task until this time; a time in the past means now. It is converted to a
    /// [delay](Self::delay), with the same limit, by this process's clock, and is as exact as that
    /// agrees with the store's. The embedded store has its own clock: `TestKit::now` returns that
    /// of the test kit.
    pub fn run_at(self, at: SystemTime) -> Self {
        let now = system_time(self.store.backend().estimated_now_us());
        self.delay(at.duration_since(now).unwrap_or_default())
    }

    /// Stores nothing while a task pushed under the same key waits or runs;
    /// [`PushedTask::Duplicate`] has its id. A dead letter releases its key. Keys of
    /// [`unique_for`](Self::unique_for) are a separate set.
    pub fn unique(mut self, key: &str) -> Self {
        self.unique = Some(UniqueKey { name: Key::custom(key), window: None });
        self
    }

    /// Stores nothing for this time after a push under the same key, whatever the state of its
    /// task; after that, stores a task again even if the first one still waits. At least 1 ms, at
    /// most a year. Keys of [`unique`](Self::unique) are a separate set.
    pub fn unique_for(mut self, key: &str, window: Duration) -> Self {
        let window = window.clamp(Duration::from_millis(1), MAX_DURATION);
        self.unique = Some(UniqueKey { name: Key::custom(key), window: Some(window) });
        self
    }

    /// Like [`Queue::max_attempts`](super::Queue::max_attempts), for this task.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.limits.max_attempts = attempts.max(1);
        self
    }

    /// Like [`Queue::once`](super::Queue::once), for this task.
    pub fn once(mut self) -> Self {
        (self.limits.max_attempts, self.limits.retry_after_crash) = (1, false);
        self
    }

    async fn send(self) -> Result<PushedTask, PushError> {
        let id = TaskId::new();
        let span = self.push_span(&id);
        let (store, queue) = (self.store.clone(), self.queue.clone());
        let sending = self.send_in_span(id, &span).instrument(span.clone());
        let result = sending.await;
        store.counters().record_push(&queue.operator_name(), push_result(&result));
        match &result {
            Ok(_) => UnservedQueueWarning::check_after_push(&store, &queue),
            Err(_) => {
                span.record("otel.status_code", "ERROR");
            }
        }
        result
    }

    fn push_span(&self, id: &TaskId) -> Span {
        tracing::info_span!(
            "lockgate.task.push",
            otel.kind = "producer",
            otel.status_code = Empty,
            messaging.system = "lockgate",
            messaging.operation.name = "push",
            messaging.operation.type = "send",
            messaging.destination.name = %self.queue.log_name(true),
            messaging.message.id = id.log_prefix(),
            queue = %self.queue.log_name(true),
            task = id.log_prefix(),
        )
    }

    async fn send_in_span(self, id: TaskId, span: &Span) -> Result<PushedTask, PushError> {
        let Self { store, queue, payload, limits, delay, unique } = self;
        let payload = payload?;
        let TaskAndQueueLimits {
            retry_after_crash,
            max_attempts,
            max_tasks,
            max_bytes,
            payload_limit,
        } = limits;
        if payload.len() > payload_limit {
            return Err(PushError::TooLarge { bytes: payload.len(), limit: payload_limit });
        }
        let payload = seal_payload(&store, &queue, &id, payload.into());
        let command = TaskPushCommand {
            queue,
            id: id.clone(),
            delay,
            unique,
            retry_after_crash,
            max_attempts,
            trace: store.trace_context(span),
            payload,
            capacity: (max_tasks, max_bytes),
        };
        match store.backend().push_task(command).await? {
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
        RegisteredQueues::register_once(&self.store, &self.queue);
        Box::pin(self.send())
    }
}

fn push_result(result: &Result<PushedTask, PushError>) -> PushResult {
    match result {
        Ok(PushedTask::New(_)) => PushResult::Stored,
        Ok(PushedTask::Duplicate(_)) => PushResult::Known,
        Err(PushError::Full) => PushResult::Full,
        Err(PushError::TooLarge { .. }) => PushResult::TooLarge,
        Err(PushError::Encode(_) | PushError::NotDecodable(_) | PushError::Store(_)) => {
            PushResult::Failed
        }
    }
}

impl fmt::Debug for PushRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the payload, which may be confidential.
        f.debug_struct("PushRequest")
            .field("queue", &self.queue)
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}
