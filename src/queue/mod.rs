//! Queues of tasks that are no requests: `store.queue("emails")`.
//!
//! A task is a payload of the application's own, pushed by any process and run by a worker of any other, now
//! or later. It stands apart from [deferred requests](crate::defer): no lock, no line of a resource.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lockgate::{Store, queue::{Queue, Task}};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Email { to: String }
//!
//! let store = Store::memory();
//! let mails: Queue<Email> = store.queue("emails");
//! let email = Email { to: "ada@example.org".into() };
//! mails.push(&email).await?;
//! mails.push(&email).delay(Duration::from_secs(3600)).unique("reminder:ada").await?;
//!
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! # let mut stop = Some(stop);
//! # let stop = std::sync::Mutex::new(stop.take());
//! let worker = mails.defer_worker(move |task: Task<Email>| {
//! #   if let Some(stop) = stop.lock().unwrap().take() { let _ = stop.send(()); }
//!     async move {
//!         println!("to {}, attempt {}", task.payload.to, task.attempt());
//!         Ok::<(), std::io::Error>(())
//!     }
//! });
//! worker.concurrency(32).run(async { let _ = stopped.await; }).await;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! - [`PushedTask`] means stored, once: a push whose answer is lost is asked again under the same number.
//! - Each task ends in one of three ways: done, dead (kept, with its history, for
//!   [`Queue::dead_letters`] and [`Queue::redrive`]), or cancelled. Whatever is thrown away is [counted](QueueStats).
//! - Tasks start in the order of pushing, each not before its time, by the store's clock alone. What is
//!   tried again, or handed back, comes when its time has come; it holds up nobody.
//! - **At least once.** A worker has a lease on each run, and renews it. If the worker dies, the task runs again
//!   once the lease is over, at the latest 13 s after it; with [`PushRequest::once`] it becomes a dead letter
//!   instead. A worker that was paused for longer than its lease can end nothing any more: its run is cancelled,
//!   and what it says of it is void.
//! - Errors, panics and crashes are counted apart; each is an attempt. Being handed back at a shutdown is none; a task
//!   that is to run once and was cut off by it is dead, as after a crash.
//! - A push wakes one idle worker, at a cost that does not grow with the number of workers. One idle worker of the
//!   queue has a timer for what comes next; a message that is lost costs at most 5 s.
//!
//! # Payloads
//!
//! They are JSON (`serde_json`): text that an operator, a script or a service in another language can read and
//! write, and which bears new fields in a rolling deployment; a compact format would save a few bytes of a record and
//! bear none of that. A payload that this worker can't read may be one of a newer version: it is left to
//! the others, uncharged, after a pause that doubles from 1 s to 1 minute. From an hour after it was due first that is a
//! failure like any, with the reason `undecodable`: a deployment takes less, and whoever pushes what nobody reads should
//! learn of it on the same day. Payloads are in no listing, `Debug` or log; what the handler says of a failure is.
//!
//! The keyring of a store (`Store::with_keyring`) seals them, each for its own queue and task: names of queues, unique
//! keys and what handlers say of failures stay readable. A worker without the key leaves a task to the others, uncharged;
//! one that was changed, or put in another's place, is dead with the reason `undecodable`.

mod admin;
mod drain;
mod handle;
mod idle_poll;
mod poll;
mod push_request;
#[cfg(any(test, feature = "test-kit"))]
mod queue_stepper;
mod queue_worker;
mod queue_worker_loop;
mod renewal;
mod retry_backoff;
mod returned_task_schedule;
mod sealed_payload;
mod settlements;
mod task;
mod task_failure;
mod task_run;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::queue_stepper::QueueStepper;
#[cfg(any(test, feature = "test-kit"))]
pub use self::queue_stepper::TaskRunReport;
pub use self::{
    admin::{DeadLetterCursor, TaskAttempt, TaskInfo, TaskPage},
    handle::Queue,
    push_request::{PushError, PushRequest, PushedTask},
    queue_worker::QueueWorker,
    task::Task,
    task_failure::TaskFailure,
};
pub use crate::error::ParseCursorError;
pub use crate::store::{QueueStats, TaskFault, TaskId, TaskState};
