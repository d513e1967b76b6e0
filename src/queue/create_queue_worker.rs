//! Creation of a queue's worker from a function or a tower service that handles its tasks.

use std::future::Future;

use serde::de::DeserializeOwned;

use super::{
    queue_handle::Queue,
    queue_worker::QueueWorker,
    task::Task,
    task_failure::{TaskFailure, TaskHandlerError},
    task_run::{TaskHandler, decoding_handler},
};

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

fn to_failure(error: impl Into<TaskHandlerError>) -> TaskFailure {
    TaskFailure::from_handler_error(error.into())
}
