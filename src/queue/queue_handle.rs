//! `Queue`: the handle on a queue, its settings, and the push of a task.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{Serialize, de::DeserializeOwned};

use super::push_request::{PushError, PushRequest};
use crate::{key::Key, store::Store};

/// Typed queue of tasks, identified by its name. Made by [`Store::queue`]; cheap to clone.
///
/// The settings of this handle apply to the tasks that it pushes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockgate::{
///     Store,
///     queue::{PushError, Queue},
/// };
///
/// let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
/// let emails: Queue<String> = store.queue("emails").max_attempts(3).capacity(1);
///
/// let pushed = emails.push(&"ada@example.org".to_owned()).await?;
/// let task = emails.get(pushed.id()).await?;
/// assert!(task.is_some_and(|task| task.attempts == 0));
/// let refused = emails.push(&"bob@example.org".to_owned()).await;
/// assert!(matches!(refused, Err(PushError::Full)));
/// # Ok(()) }
/// ```
pub struct Queue<T> {
    pub(super) store: Store,
    pub(super) name: Key,
    limits: TaskAndQueueLimits,
    payload_type: PhantomData<fn(T) -> T>,
}

/// Attempts that are stored with each task, and limits of the queue that a push checks.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskAndQueueLimits {
    pub(super) retry_after_crash: bool,
    pub(super) max_attempts: u32,
    /// Most tasks that may wait.
    pub(super) max_tasks: u64,
    /// Most bytes of waiting and running tasks.
    pub(super) max_bytes: u64,
    pub(super) payload_limit: usize,
}

/// Default limit of a payload, in bytes.
const DEFAULT_PAYLOAD_LIMIT: usize = 256 * 1024;

impl Store {
    /// Returns the queue of this name. Processes that use the same name share it, whatever the type
    /// of their payloads.
    #[must_use]
    pub fn queue<T>(&self, name: impl Into<Key>) -> Queue<T> {
        let limits = TaskAndQueueLimits {
            retry_after_crash: true,
            max_attempts: 5,
            max_tasks: 1_000_000,
            max_bytes: 512 << 20,
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
        };
        Queue { store: self.clone(), name: name.into(), limits, payload_type: PhantomData }
    }
}

impl<T> Queue<T> {
    /// Returns the name, as in [`Key::operator_name`].
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        self.name.operator_name()
    }

    /// Sets the number of attempts until a task is dead, crashes included; at least 1. Default 5:
    /// with the default backoff, a problem of less than a few seconds costs no task.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.limits.max_attempts = attempts.max(1);
        self
    }

    /// Allows one attempt, and none after a crash: for tasks that may be lost rather than run
    /// twice.
    #[must_use]
    pub fn once(mut self) -> Self {
        (self.limits.max_attempts, self.limits.retry_after_crash) = (1, false);
        self
    }

    /// Sets the most tasks that may wait. Default 1,000,000; a push beyond it returns
    /// [`Full`](super::PushError::Full).
    #[must_use]
    pub fn capacity(mut self, tasks: u64) -> Self {
        self.limits.max_tasks = tasks;
        self
    }

    /// Sets the most bytes of waiting and running tasks, with some 30 bytes of overhead for each.
    /// Default 512 MiB: a backlog must not take the memory of everything else in the store.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.limits.max_bytes = bytes;
        self
    }

    /// Sets the most bytes of one payload in its JSON form. Default 256 KiB; a push of a longer one
    /// returns [`TooLarge`](super::PushError::TooLarge) without a call to the store.
    ///
    /// A worker receives the payloads of all tasks that it starts in the reply to one call: as many
    /// as it has capacity for, up to 4 MiB, but at least one. The reply must arrive within the
    /// store's deadline of a quarter of a second. A single payload that takes longer is requested
    /// again and again, and keeps the worker from all other tasks. Store larger data elsewhere,
    /// with its address in the task.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.limits.payload_limit = bytes;
        self
    }
}

impl<T: Serialize + DeserializeOwned> Queue<T> {
    /// Returns a request that pushes a task when it is awaited, in one round trip; concurrent
    /// pushes share a call.
    ///
    /// The type must be deserializable too, so that a payload that no worker could read is found
    /// where it is pushed. A service that only pushes, with a type of its own for that, converts it
    /// to a [`serde_json::Value`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use lockgate::{Store, queue::Queue};
    /// let emails: Queue<String> = Store::memory().queue("emails");
    /// let email = "ada@example.org".to_owned();
    /// let pushed = emails.push(&email).delay(Duration::from_secs(60)).await?;
    /// assert!(emails.get(pushed.id()).await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When awaited: [`PushError`](super::PushError). With debug assertions also
    /// [`NotDecodable`](super::PushError::NotDecodable).
    pub fn push(&self, payload: &T) -> PushRequest {
        PushRequest {
            store: self.store.clone(),
            queue: self.name.clone(),
            payload: encode_payload(payload),
            limits: self.limits,
            delay: std::time::Duration::ZERO,
            unique: None,
        }
    }
}

/// Encodes a payload as JSON; with debug assertions, only if its type can read that JSON.
fn encode_payload<T: Serialize + DeserializeOwned>(payload: &T) -> Result<Vec<u8>, PushError> {
    let json = serde_json::to_vec(payload).map_err(PushError::Encode)?;
    if cfg!(debug_assertions)
        && let Err(error) = serde_json::from_slice::<T>(&json)
    {
        return Err(PushError::NotDecodable(error));
    }
    Ok(json)
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        let Self { store, name, limits, payload_type } = self;
        Self {
            store: store.clone(),
            name: name.clone(),
            limits: *limits,
            payload_type: *payload_type,
        }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}
