//! One run of a task: decode the payload, call the handler, classify the result.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{task::AbortHandle, time::Instant};

use super::{
    retry_backoff::RetryBackoff,
    sealed_payload::return_delay,
    task::{Task, TaskAttemptInfo, UndecodedTask},
    task_failure::{FailureAction, TaskFailure},
};
use crate::store::{RunCancellation, RunToken, Store, TaskFault, TaskOutcome};

/// Handler of a task with an encoded payload.
pub(super) type TaskHandler =
    Arc<dyn Fn(UndecodedTask) -> BoxFuture<'static, TaskRunResult> + Send + Sync>;

/// Result of a run.
pub(super) type TaskRunResult = Result<(), (TaskFault, TaskFailure)>;

/// Run in progress.
pub(super) struct RunningTask {
    pub(super) token: RunToken,
    pub(super) abort_handle: AbortHandle,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) record_bytes: u64,
    pub(super) unique_key: Option<Arc<str>>,
    /// The task may run again after a run with an unknown outcome.
    pub(super) retry_after_crash: bool,
    pub(super) cancellation: RunCancellation,
    /// No other worker runs the task until then.
    pub(super) lease_until: Instant,
    /// Start of the run, for its duration.
    pub(super) started_at: Instant,
}

/// Time after the first due time from which an unreadable payload is a failure like any other:
/// longer than a deployment takes to start a worker that can read it, short enough to report a
/// mistake on the same day.
const UNDECODABLE_GRACE: Duration = Duration::from_secs(60 * 60);

/// Interval of the log records about unreadable payloads: in a deployment, a worker may meet all
/// waiting tasks.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn decoding_handler<T, F, Fut>(store: Store, handler: F) -> TaskHandler
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), TaskFailure>> + Send + 'static,
{
    let (handler, logged_at) = (Arc::new(handler), Arc::new(Mutex::new(None)));
    Arc::new(move |task: UndecodedTask| {
        let (handler, store) = (Arc::clone(&handler), store.clone());
        let logged_at = Arc::clone(&logged_at);
        async move {
            let UndecodedTask { info, payload } = task;
            let to_undecodable = |error| {
                let cause = redacted_cause(&error);
                (
                    TaskFault::Undecodable,
                    undecodable_failure(&store, &info, &payload, &logged_at, &cause),
                )
            };
            let payload = serde_json::from_slice(&payload).map_err(to_undecodable)?;
            handler(Task::new(payload, info)).await.map_err(|failure| (TaskFault::Failed, failure))
        }
        .boxed()
    })
}

/// Returns the failure for a payload that can't be read here. A newer worker may be able to, so no
/// attempt is charged for meeting an older one.
fn undecodable_failure(
    store: &Store,
    info: &TaskAttemptInfo,
    payload: &[u8],
    logged_at: &Mutex<Option<Instant>>,
    cause: &str,
) -> TaskFailure {
    let reason = "undecodable";
    // No version writes an empty payload: `open_for_run` returns it for one that can't be opened.
    if payload.is_empty() {
        return TaskFailure::dead_letter(reason);
    }
    let age = Duration::from_micros(store.backend().estimated_now_us().saturating_sub(info.due_us));
    if age >= UNDECODABLE_GRACE {
        return TaskFailure::new(reason);
    }
    let (now, mut logged_at) = (Instant::now(), logged_at.lock());
    if logged_at.is_none_or(|at| now >= at + LOG_INTERVAL) {
        *logged_at = Some(now);
        tracing::error!(
            task = %info.id.log_prefix(), cause,
            "payload cannot be decoded here; the task waits for another worker"
        );
    }
    let action = FailureAction::ReturnToQueue(return_delay(age));
    TaskFailure { action, ..TaskFailure::new(reason) }
}

/// Prefixes of serde's messages that name the type's fields and rules. They quote the payload
/// before `, expected`.
const QUOTING_PREFIXES: [&str; 5] =
    ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant ", "unknown field "];

/// Describes a decoding error without quoting the payload: a log must not contain the user's data.
fn redacted_cause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!("line {} column {}", error.line(), error.column());
    if !error.is_data() || text.starts_with("missing field `") {
        // Texts of serde_json itself, or the name of a field of the type.
        return text;
    }
    let prefix = QUOTING_PREFIXES.iter().find(|prefix| text.starts_with(**prefix));
    match (prefix, text.rsplit_once(", expected ")) {
        (Some(prefix), Some((found, expected))) => {
            let value = found.get(prefix.len()..).unwrap_or_default();
            let value_kind = value.split(['`', '"', '\'']).next().unwrap_or_default().trim_end();
            format!("{prefix}{value_kind}, expected {expected}")
        }
        _ => format!("not a value of its type, at {position}"),
    }
}

/// Runs a task and catches its panic. A cancelled run ends after its grace.
pub(super) async fn run_handler(
    handler: TaskHandler,
    task: UndecodedTask,
    max_run_time: Option<Duration>,
) -> TaskRunResult {
    // The handler may also panic before it returns its future; and so may the future's drop, when
    // the run exceeds its time limit or is cancelled.
    let cancellation = task.info.cancellation.clone();
    let run = with_time_limit(max_run_time, async move { handler(task).await });
    let run = async move {
        tokio::select! {
            biased;
            result = run => result,
            () = cancellation.wait_for_grace() => {
                Err((TaskFault::Failed, TaskFailure::new("cancelled")))
            }
        }
    };
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|panic| {
        let failure = TaskFailure::new(panic_message(&*panic));
        // The panic's payload may panic when dropped, which would end the worker.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(panic);
        }
        Err((TaskFault::Panicked, failure))
    })
}

async fn with_time_limit(
    max_run_time: Option<Duration>,
    run: impl Future<Output = TaskRunResult>,
) -> TaskRunResult {
    let Some(max_run_time) = max_run_time else { return run.await };
    let timed_out = |_| Err((TaskFault::Failed, TaskFailure::new("it ran for too long")));
    tokio::time::timeout(max_run_time, run).await.unwrap_or_else(timed_out)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panicked")
}

/// Returns the outcome of a task after this run. A cancelled run that has succeeded is done.
pub(super) fn task_outcome(
    result: TaskRunResult,
    running: &RunningTask,
    backoff: RetryBackoff,
) -> TaskOutcome {
    let RunningTask { attempt, max_attempts, cancellation, .. } = running;
    let Err((fault, TaskFailure { reason, action })) = result else {
        return TaskOutcome::Done;
    };
    if cancellation.is_cancelled() {
        return TaskOutcome::Cancelled;
    }
    let delay = match action {
        FailureAction::DeadLetter => return TaskOutcome::Dead { fault, reason },
        FailureAction::ReturnToQueue(delay) => return TaskOutcome::ReturnToQueue { delay },
        _ if attempt >= max_attempts => return TaskOutcome::Dead { fault, reason },
        FailureAction::Retry => backoff.delay_after(*attempt),
        FailureAction::RetryAfter(delay) => delay,
    };
    TaskOutcome::Retry { delay, fault, reason }
}
