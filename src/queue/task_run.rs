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
use crate::store::{RunToken, Store, TaskFault, TaskOutcome};

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
    /// No other worker runs the task until then.
    pub(super) lease_until: Instant,
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
    let (handler, said) = (Arc::new(handler), Arc::new(Mutex::new(None)));
    Arc::new(move |raw: UndecodedTask| {
        let (handler, store, said) = (Arc::clone(&handler), store.clone(), Arc::clone(&said));
        async move {
            let UndecodedTask { info: facts, payload } = raw;
            let unread = |error| {
                (
                    TaskFault::Undecodable,
                    undecodable_failure(&store, &facts, &payload, &said, &redacted_cause(&error)),
                )
            };
            let payload = serde_json::from_slice(&payload).map_err(unread)?;
            handler(Task::new(payload, facts)).await.map_err(|why| (TaskFault::Failed, why))
        }
        .boxed()
    })
}

/// Returns the failure for a payload that can't be read here. A newer worker may be able to, so no
/// attempt is charged for meeting an older one.
fn undecodable_failure(
    store: &Store,
    facts: &TaskAttemptInfo,
    payload: &[u8],
    said: &Mutex<Option<Instant>>,
    cause: &str,
) -> TaskFailure {
    let why = "undecodable";
    // No version writes an empty payload: `open_for_run` returns it for one that can't be opened.
    if payload.is_empty() {
        return TaskFailure::dead_letter(why);
    }
    let age =
        Duration::from_micros(store.backend().estimated_now_us().saturating_sub(facts.due_us));
    if age >= UNDECODABLE_GRACE {
        return TaskFailure::new(why);
    }
    let (now, mut said) = (Instant::now(), said.lock());
    if said.is_none_or(|at| now >= at + LOG_INTERVAL) {
        *said = Some(now);
        tracing::error!(
            task = ?facts.id, cause,
            "payload cannot be decoded here; the task waits for another worker"
        );
    }
    TaskFailure { action: FailureAction::ReturnToQueue(return_delay(age)), ..TaskFailure::new(why) }
}

/// Prefixes of serde's messages that name the type's fields and rules. They quote the payload
/// before `, expected`.
const QUOTING_PREFIXES: [&str; 5] =
    ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant ", "unknown field "];

/// Describes a decoding error without quoting the payload: a log must not contain the user's data.
fn redacted_cause(error: &serde_json::Error) -> String {
    let (text, at) =
        (error.to_string(), format!("line {} column {}", error.line(), error.column()));
    if !error.is_data() || text.starts_with("missing field `") {
        // Texts of serde_json itself, or the name of a field of the type.
        return text;
    }
    let kind = QUOTING_PREFIXES.iter().find(|kind| text.starts_with(**kind));
    match (kind, text.rsplit_once(", expected ")) {
        (Some(kind), Some((found, expected))) => {
            let rest = found.get(kind.len()..).unwrap_or_default();
            let shown = rest.split(['`', '"', '\'']).next().unwrap_or_default().trim_end();
            format!("{kind}{shown}, expected {expected}")
        }
        _ => format!("not a value of its type, at {at}"),
    }
}

/// Runs a task and catches its panic.
pub(super) async fn run_handler(
    handler: TaskHandler,
    raw: UndecodedTask,
    longest: Option<Duration>,
) -> TaskRunResult {
    // The handler may also panic before it returns its future; and so may the future's drop, when
    // the run exceeds its time limit.
    let ran = AssertUnwindSafe(with_time_limit(longest, async move { handler(raw).await }))
        .catch_unwind();
    ran.await.unwrap_or_else(|panic| {
        let why = TaskFailure::new(panic_message(&*panic));
        // The panic's payload may panic when dropped, which would end the worker.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(panic);
        }
        Err((TaskFault::Panicked, why))
    })
}

async fn with_time_limit(
    longest: Option<Duration>,
    work: impl Future<Output = TaskRunResult>,
) -> TaskRunResult {
    let Some(longest) = longest else { return work.await };
    let too_long = |_| Err((TaskFault::Failed, TaskFailure::new("it ran for too long")));
    tokio::time::timeout(longest, work).await.unwrap_or_else(too_long)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panicked")
}

/// Returns the outcome of a task after this attempt.
pub(super) fn task_outcome(
    ran: TaskRunResult,
    attempt: u32,
    max_attempts: u32,
    backoff: RetryBackoff,
) -> TaskOutcome {
    let Err((fault, TaskFailure { reason, action: then })) = ran else {
        return TaskOutcome::Done;
    };
    let delay = match then {
        FailureAction::DeadLetter => return TaskOutcome::Dead { fault, reason },
        FailureAction::ReturnToQueue(delay) => return TaskOutcome::ReturnToQueue { delay },
        _ if attempt >= max_attempts => return TaskOutcome::Dead { fault, reason },
        FailureAction::Retry => backoff.delay_after(attempt),
        FailureAction::RetryAfter(delay) => delay,
    };
    TaskOutcome::Retry { delay, fault, reason }
}
