//! One run of a task: decode, call the handler, and what comes of it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde::de::DeserializeOwned;

use super::{
    failure::{Failure, Then},
    retry::Backoff,
    task::{Raw, Task},
};
use crate::store::{EndAs, TaskFault};

/// What runs a task whose payload has not been read yet.
pub(super) type Handler = Arc<dyn Fn(Raw) -> BoxFuture<'static, Ran> + Send + Sync>;

/// How a run went.
pub(super) type Ran = Result<(), (TaskFault, Failure)>;

pub(super) fn decoded<T, F, Fut>(handler: F) -> Handler
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(Task<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |raw: Raw| {
        let handler = Arc::clone(&handler);
        async move {
            let Raw { facts, payload } = raw;
            let payload = serde_json::from_slice(&payload);
            // Not what serde says of it: that may quote the payload.
            let payload =
                payload.map_err(|_| (TaskFault::Undecodable, Failure::new("undecodable")))?;
            handler(Task::new(payload, facts)).await.map_err(|why| (TaskFault::Failed, why))
        }
        .boxed()
    })
}

/// Runs it, and bears its panic.
pub(super) async fn run(handler: Handler, raw: Raw, longest: Option<Duration>) -> Ran {
    // The handler may panic before it returns its future, too; and so may what that has, when it is dropped for having
    // run for too long.
    let ran = AssertUnwindSafe(within(longest, async move { handler(raw).await })).catch_unwind();
    ran.await.unwrap_or_else(|panic| {
        let why = Failure::new(said(&*panic));
        // What it panicked with may panic in turn, and would take the worker with it.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(panic);
        }
        Err((TaskFault::Panicked, why))
    })
}

async fn within(longest: Option<Duration>, work: impl Future<Output = Ran>) -> Ran {
    let Some(longest) = longest else { return work.await };
    let too_long = |_| Err((TaskFault::Failed, Failure::new("it ran for too long")));
    tokio::time::timeout(longest, work).await.unwrap_or_else(too_long)
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panicked")
}

/// What becomes of a task after this attempt.
pub(super) fn judge(ran: Ran, attempt: u32, max_attempts: u32, backoff: Backoff) -> EndAs {
    let Err((fault, Failure { reason, then })) = ran else {
        return EndAs::Done;
    };
    let delay = match then {
        Then::Dead => return EndAs::Dead { fault, reason },
        _ if attempt >= max_attempts => return EndAs::Dead { fault, reason },
        Then::Retry => backoff.after(attempt),
        Then::RetryAfter(delay) => delay,
    };
    EndAs::Retry { delay, fault, reason }
}
