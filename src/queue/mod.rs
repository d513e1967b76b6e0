//! Queues of typed tasks: `store.queue("emails")`.
//!
//! A task is a payload of the application, pushed by any process and run by a worker of any
//! process, now or later. Queues are separate from [deferred requests](crate::defer): a task has no
//! lock and waits in no lock's queue.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//! let worker = mails.worker(move |task: Task<Email>| {
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
//! # Guarantees
//!
//! - [`PushedTask`] means stored, once: a push without a reply is retried under the same number.
//! - Each task ends in one of three ways: done, dead (kept with its history, for
//!   [`Queue::dead_letters`] and [`Queue::redrive`]), or cancelled. Purged and evicted tasks are
//!   [counted](QueueStats).
//! - Tasks start in the order of their pushes, each not before its due time, by the store's clock
//!   alone. A retry or a returned task starts when it is due and delays no other task.
//! - **At least once.** A worker has a lease on each run, and renews it. If the worker dies, the
//!   task runs again after the lease, at most 13 s later; with [`PushRequest::once`] it becomes a
//!   dead letter instead. A worker that was paused for longer than its lease can settle nothing
//!   anymore: its run is cancelled, and its result is void.
//! - Errors, panics and crashes are counted separately; each is an attempt. A return at a shutdown
//!   is not an attempt, but a task that may run only once becomes a dead letter, as after a crash.
//! - A push wakes one idle worker, at a cost that does not grow with the number of workers. One
//!   idle worker of the queue has a timer for the next due task or lease; a lost wake-up costs at
//!   most 5 s.
//!
//! # Payloads
//!
//! Payloads are JSON (`serde_json`). Operators, scripts and services in other languages can read
//! and write it, and it tolerates new fields in a rolling deployment; a compact format would save a
//! few bytes per task without these properties.
//!
//! A payload that this worker can't read may belong to a newer version. It is left to other
//! workers, uncharged, after a delay that doubles from 1 s to 1 minute. From one hour after it was
//! first due, it fails like any other task, with the reason `undecodable`: a deployment takes less
//! time, and a mistake should be noticed on the same day. Payloads never appear in listings,
//! `Debug` output or logs; the reasons of handlers do.
//!
//! A store's keyring (`Store::with_keyring`) seals each payload for its own queue and task. Queue
//! names, unique keys and the reasons of handlers stay readable. A worker without the key leaves a
//! task to other workers, uncharged. A payload that was changed, or copied from another task,
//! becomes a dead letter with the reason `undecodable`.

mod admin;
mod collect_ended_runs;
mod create_queue_worker;
mod dead_letter_search;
mod drain;
mod empty_queue_check;
mod poll_and_start_tasks;
mod poll_until_answered;
mod push_request;
mod queue_handle;
mod queue_listing;
mod queue_registration;
#[cfg(any(test, feature = "test-kit"))]
mod queue_stepper;
mod queue_worker;
mod queue_worker_loop;
mod renew_run_leases;
mod retry_backoff;
mod sealed_payload;
mod task;
mod task_failure;
mod task_run;
mod task_run_span;
#[cfg(test)]
mod tests;
mod unreadable_task_yield;
mod unserved_queue_warning;

#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::queue_stepper::QueueStepper;
#[cfg(any(test, feature = "test-kit"))]
pub use self::queue_stepper::TaskRunReport;
pub use self::{
    admin::{DeadLetterCursor, TaskAttempt, TaskInfo, TaskPage},
    dead_letter_search::DeadLetterSearchPage,
    push_request::{PushError, PushRequest, PushedTask},
    queue_handle::Queue,
    queue_listing::{QueueInfo, TaskCursor, TaskListing},
    queue_worker::QueueWorker,
    task::Task,
    task_failure::TaskFailure,
};
pub use crate::error::ParseCursorError;
pub use crate::store::{QueueStats, TaskFault, TaskFilter, TaskId, TaskState};
