//! The queue's handle: pushing, and a worker for it.

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

/// Tasks of one kind, under one name. Made by [`Store::queue`]; cheap to clone.
///
/// The settings here go with each task that is pushed by this handle.
pub struct Queue<T> {
    pub(super) store: Store,
    pub(super) name: Key,
    options: TaskOptions,
    payload_type: PhantomData<fn(T) -> T>,
}

/// What goes with each task.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskOptions {
    pub(super) retry_after_crash: bool,
    pub(super) max_attempts: u32,
    pub(super) capacity: (u64, u64),
    pub(super) payload_limit: usize,
}

/// Most bytes of a payload where nothing else was said.
const DEFAULT_PAYLOAD_LIMIT: usize = 256 * 1024;

impl Store {
    /// The queue of this name. Processes that use the same name share it, whatever the type of their payloads.
    #[must_use]
    pub fn queue<T>(&self, name: impl Into<Key>) -> Queue<T> {
        let caps = (1_000_000, 512 << 20);
        let terms = TaskOptions {
            retry_after_crash: true,
            max_attempts: 5,
            capacity: caps,
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
        };
        Queue { store: self.clone(), name: name.into(), options: terms, payload_type: PhantomData }
    }
}

impl<T> Queue<T> {
    /// Attempts until a task is dead, crashes included. Default 5: with the default backoff, what is wrong for less
    /// than a few seconds costs no task. At least 1.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = attempts.max(1);
        self
    }

    /// One attempt, and none after a crash: for what must rather not happen than happen twice.
    #[must_use]
    pub fn once(mut self) -> Self {
        (self.options.max_attempts, self.options.retry_after_crash) = (1, false);
        self
    }

    /// Most tasks that may wait. Default 1,000,000; a push beyond it is [`Full`](super::PushError::Full).
    #[must_use]
    pub fn capacity(mut self, tasks: u64) -> Self {
        self.options.capacity.0 = tasks;
        self
    }

    /// Most bytes of those that wait or run, with some 30 for each. Default 512 MiB: a backlog must not take the
    /// memory of everything else in the store.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.options.capacity.1 = bytes;
        self
    }

    /// Most bytes of one payload, as the JSON that it is stored as. Default 256 KiB; a push of a longer one is
    /// [`TooLarge`](super::PushError::TooLarge), and nothing of it is sent to the store.
    ///
    /// What a worker starts comes with its payload in the answer to one call, which has to come within the store's
    /// deadline, a quarter of a second: as many tasks as it has room for, up to 4 MiB, but one in any case. One that takes
    /// longer than that by itself is asked for again and again, and keeps the worker from all other tasks; what is
    /// larger belongs elsewhere, and its address in the task.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.options.payload_limit = bytes;
        self
    }
}

impl<T: Serialize + DeserializeOwned> Queue<T> {
    /// A task to be stored once it is awaited, in one round trip; what is pushed meanwhile goes together.
    ///
    /// The type has to be readable too, so that a payload that no worker could read is found where it is pushed. A service
    /// that only pushes, and has a type of its own for that, makes a [`serde_json::SnapshotWriter`] of it.
    ///
    /// # Errors
    ///
    /// Awaited: [`PushError`](super::PushError). With debug assertions also
    /// [`EnvelopeError`](super::PushError::EnvelopeError).
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
    /// A worker that runs the tasks by this function. An error, or a panic, is an attempt that failed. The error may be
    /// whatever converts into a boxed one, or a [`TaskFailure`](super::TaskFailure), which says what is to become of the task.
    pub fn worker<F, Fut, E>(&self, handler: F) -> QueueWorker
    where
        F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<TaskHandlerError>,
    {
        let run = decoding_handler(self.store.clone(), move |task| {
            let work = handler(task);
            async move { work.await.map_err(to_failure) }
        });
        self.worker_from_handler(run)
    }

    /// A worker that runs the tasks by a tower service. It is cloned for each run, and asked whether it is
    /// ready before. Its errors are as those of [`worker`](Self::worker), so layers may stand around it that answer
    /// with a boxed one, such as tower's own timeout.
    #[cfg(feature = "tower")]
    pub fn worker_service<S>(&self, service: S) -> QueueWorker
    where
        S: tower_service::Service<Task<T>, Response = ()> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<TaskHandlerError>,
    {
        let run = decoding_handler(self.store.clone(), move |task| {
            let mut service = service.clone();
            async move {
                let ready = std::future::poll_fn(|context| service.poll_ready(context)).await;
                ready.map_err(to_failure)?;
                service.call(task).await.map_err(to_failure)
            }
        });
        self.worker_from_handler(run)
    }

    fn worker_from_handler(&self, handler: TaskHandler) -> QueueWorker {
        QueueWorker::new(self.store.clone(), self.name.clone(), handler)
    }
}

/// The payload as JSON; with debug assertions, only if its type reads that.
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
        let Self { store, name, options: terms, payload_type: payload } = self;
        Self { store: store.clone(), name: name.clone(), options: *terms, payload_type: *payload }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}
