//! `Queue`: the handle on a queue, which pushes tasks and creates workers.

use std::{fmt, future::Future, marker::PhantomData};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    push_request::{PushError, PushRequest},
    queue_worker::QueueWorker,
    task::Task,
    task_failure::{TaskFailure, TaskHandlerError},
    task_run::{TaskHandler, decoding_handler},
};
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
    options: TaskOptions,
    payload_type: PhantomData<fn(T) -> T>,
}

/// Settings that are stored with each task.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskOptions {
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
        let options = TaskOptions {
            retry_after_crash: true,
            max_attempts: 5,
            max_tasks: 1_000_000,
            max_bytes: 512 << 20,
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
        };
        Queue { store: self.clone(), name: name.into(), options, payload_type: PhantomData }
    }
}

impl<T> Queue<T> {
    /// Sets the number of attempts until a task is dead, crashes included; at least 1. Default 5:
    /// with the default backoff, a problem of less than a few seconds costs no task.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = attempts.max(1);
        self
    }

    /// Allows one attempt, and none after a crash: for tasks that may be lost rather than run
    /// twice.
    #[must_use]
    pub fn once(mut self) -> Self {
        (self.options.max_attempts, self.options.retry_after_crash) = (1, false);
        self
    }

    /// Sets the most tasks that may wait. Default 1,000,000; a push beyond it returns
    /// [`Full`](super::PushError::Full).
    #[must_use]
    pub fn capacity(mut self, tasks: u64) -> Self {
        self.options.max_tasks = tasks;
        self
    }

    /// Sets the most bytes of waiting and running tasks, with some 30 bytes of overhead for each.
    /// Default 512 MiB: a backlog must not take the memory of everything else in the store.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.options.max_bytes = bytes;
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
        self.options.payload_limit = bytes;
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
    /// # Errors
    ///
    /// When awaited: [`PushError`](super::PushError). With debug assertions also
    /// [`NotDecodable`](super::PushError::NotDecodable).
    pub fn push(&self, payload: &T) -> PushRequest {
        PushRequest {
            store: self.store.clone(),
            queue: self.name.clone(),
            payload: encode_payload(payload),
            options: self.options,
            delay: std::time::Duration::ZERO,
            unique: None,
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> Queue<T> {
    /// Returns a worker that runs the tasks with this function. An error or a panic is a failed
    /// attempt. The error is any type that converts into a boxed error, or a
    /// [`TaskFailure`](super::TaskFailure), which decides the task's future.
    pub fn worker<F, Fut, E>(&self, handler: F) -> QueueWorker
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<TaskHandlerError>,
    {
        let decoding_handler = decoding_handler(self.store.clone(), move |task| {
            let handling = handler(task);
            async move { handling.await.map_err(to_failure) }
        });
        self.worker_from_handler(decoding_handler)
    }

    /// Returns a worker that runs the tasks with a tower service, which is cloned and polled for
    /// readiness for each run. Its errors are treated as those of [`worker`](Self::worker), so it
    /// may have layers that return boxed errors, such as tower's own timeout.
    #[cfg(feature = "tower")]
    pub fn worker_service<S>(&self, service: S) -> QueueWorker
    where
        S: tower_service::Service<Task<T>, Response = ()> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<TaskHandlerError>,
    {
        let decoding_handler = decoding_handler(self.store.clone(), move |task| {
            let mut service = service.clone();
            async move {
                let readiness = std::future::poll_fn(|context| service.poll_ready(context)).await;
                readiness.map_err(to_failure)?;
                service.call(task).await.map_err(to_failure)
            }
        });
        self.worker_from_handler(decoding_handler)
    }

    fn worker_from_handler(&self, handler: TaskHandler) -> QueueWorker {
        QueueWorker::new(self.store.clone(), self.name.clone(), handler)
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

fn to_failure(error: impl Into<TaskHandlerError>) -> TaskFailure {
    TaskFailure::from_handler_error(error.into())
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        let Self { store, name, options, payload_type } = self;
        Self {
            store: store.clone(),
            name: name.clone(),
            options: *options,
            payload_type: *payload_type,
        }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}
