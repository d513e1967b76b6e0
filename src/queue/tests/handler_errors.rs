//! Error types of handlers.

use std::{error::Error, fmt, io, time::Duration};

use super::{SECOND, SpawnedQueueWorker, push_text, text_queue};
#[cfg(feature = "tower")]
use super::{TaskRunLog, wait_until_idle};
use crate::{
    queue::{Queue, QueueWorker, Task, TaskFailure, TaskState},
    store::Store,
};

type DynError = Box<dyn Error + Send + Sync>;

/// State, delay of the retry, and reason of a task whose handler failed.
async fn failed_task_state(
    worker: impl FnOnce(&Queue<String>) -> QueueWorker,
) -> (TaskState, Duration, String) {
    let queue = text_queue(&Store::memory());
    let worker = SpawnedQueueWorker::start(worker(&queue).backoff(SECOND, SECOND));
    let id = push_text(&queue, "x").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let info = queue.get(&id).await.unwrap().unwrap();
    worker.stop().await;
    (info.state, info.due_in, info.history[0].reason.clone())
}

#[tokio::test(start_paused = true)]
async fn handler_can_fail_with_a_boxed_error_or_a_string() {
    let boxed = async |_: Task<String>| -> Result<(), DynError> {
        let n: u8 = "many".parse()?;
        Err(format!("{n}").into())
    };
    let (state, due_in, reason) = failed_task_state(|queue| queue.worker(boxed)).await;
    assert_eq!((state, &*reason), (TaskState::Waiting, "invalid digit found in string"));
    assert!(due_in <= SECOND);
    let text = async |_: Task<String>| Err("the receiver is unavailable".to_owned());
    assert_eq!(
        failed_task_state(|queue| queue.worker(text)).await.2,
        "the receiver is unavailable"
    );
}

/// A middleware may also box the failure.
#[tokio::test(start_paused = true)]
async fn boxed_task_failure_keeps_its_disposition() {
    let dead = async |_: Task<String>| Err(DynError::from(TaskFailure::dead_letter("hopeless")));
    let (state, _, reason) = failed_task_state(|queue| queue.worker(dead)).await;
    assert_eq!((state, &*reason), (TaskState::Dead, "hopeless"));
    let later = TaskFailure::new("not now").retry_after(SECOND * 100);
    let boxed = DynError::from(later.clone());
    assert_eq!(boxed.to_string(), "not now");
    let handler = move |_: Task<String>| {
        let later = later.clone();
        async { Err(DynError::from(later)) }
    };
    let (state, due_in, reason) = failed_task_state(|queue| queue.worker(handler)).await;
    assert_eq!((state, &*reason), (TaskState::Waiting, "not now"));
    assert!(due_in > SECOND * 99, "{due_in:?}");
}

/// Error with another error as its source.
#[derive(Debug)]
struct WrappingError(&'static str, DynError);

impl fmt::Display for WrappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for WrappingError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.1)
    }
}

/// The wrapping error is boxed, or converted to a `TaskFailure` by `?`.
#[tokio::test(start_paused = true)]
async fn task_failure_is_found_in_the_source_chain() {
    let inner = || DynError::from(TaskFailure::dead_letter("hopeless"));
    let twice = move || WrappingError("the job", WrappingError("the layer", inner()).into());
    let boxed = move |_: Task<String>| async move { Err(DynError::from(twice())) };
    let (state, _, reason) = failed_task_state(|queue| queue.worker(boxed)).await;
    assert_eq!((state, &*reason), (TaskState::Dead, "hopeless"));
    let own = move |_: Task<String>| async move { Err::<(), TaskFailure>(twice().into()) };
    let (state, _, reason) = failed_task_state(|queue| queue.worker(own)).await;
    assert_eq!((state, &*reason), (TaskState::Dead, "hopeless"));
    // `io::Error::source` does not return the error inside.
    let wrapped = move || WrappingError("the layer", io::Error::other(inner()).into());
    for io_error in [io::Error::other(inner()), io::Error::other(wrapped())] {
        let io_error = parking_lot::Mutex::new(Some(io_error));
        let handler = move |_: Task<String>| {
            let failed = io_error.lock().take().map_or(Ok(()), Err);
            async { failed }
        };
        let (state, _, reason) = failed_task_state(|queue| queue.worker(handler)).await;
        assert_eq!((state, &*reason), (TaskState::Dead, "hopeless"));
    }
}

/// Errors of HTTP clients name the cause only in their source chain. Some repeat their source.
#[tokio::test(start_paused = true)]
async fn reason_includes_the_source_chain() {
    let refused = || io::Error::other("connection refused");
    let inner = move || WrappingError("can't connect: connection refused", refused().into());
    let outer = move || WrappingError("error sending request", inner().into());
    let expected = "error sending request: can't connect: connection refused";
    let boxed = move |_: Task<String>| async move { Err(outer()) };
    assert_eq!(failed_task_state(|queue| queue.worker(boxed)).await.2, expected);
    let own = move |_: Task<String>| async move { Err::<(), TaskFailure>(outer().into()) };
    assert_eq!(failed_task_state(|queue| queue.worker(own)).await.2, expected);
}

#[derive(Debug)]
struct SelfSourcedError;

impl fmt::Display for SelfSourcedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("x")
    }
}

impl Error for SelfSourcedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self)
    }
}

#[test]
fn endless_source_chain_is_bounded() {
    assert_eq!(TaskFailure::from(SelfSourcedError).reason(), "x");
    let long = WrappingError("short", WrappingError("y", "z".repeat(1_000).into()).into());
    assert_eq!(TaskFailure::from(long).reason(), format!("short: y: {}", "z".repeat(190)));
}

#[cfg(feature = "tower")]
#[tokio::test(start_paused = true)]
async fn tower_service_runs_as_a_handler() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let service_log = log.clone();
    let service = tower::service_fn(move |task: Task<String>| {
        service_log.record(&task);
        async { Ok::<(), io::Error>(()) }
    });
    let worker = SpawnedQueueWorker::start(
        queue.worker_service(tower::ServiceBuilder::new().service(service)),
    );
    push_text(&queue, "a").await;
    wait_until_idle().await;
    worker.stop().await;
    assert_eq!(log.payloads(), ["a"]);
}

/// Like tower's timeout, the stack fails with a boxed error, its own or that of its inner service.
#[cfg(feature = "tower")]
#[tokio::test(start_paused = true)]
async fn tower_stack_can_fail_with_boxed_errors() {
    let service =
        tower::service_fn(|_: Task<String>| async { Err(TaskFailure::dead_letter("hopeless")) });
    let stack = tower::ServiceBuilder::new().map_err(DynError::from).service(service);
    let (state, _, reason) = failed_task_state(|queue| queue.worker_service(stack)).await;
    assert_eq!((state, &*reason), (TaskState::Dead, "hopeless"));
    let service = tower::service_fn(|_: Task<String>| async { Ok::<(), DynError>(()) });
    let late = |done: Result<(), DynError>| done.and(Err(DynError::from("request timed out")));
    let stack = tower::ServiceBuilder::new().map_result(late).service(service);
    let (state, _, reason) = failed_task_state(|queue| queue.worker_service(stack)).await;
    assert_eq!((state, &*reason), (TaskState::Waiting, "request timed out"));
}
