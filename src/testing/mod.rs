//! Test kit for applications: a test can have a request deferred, let time pass and run due work.
//!
//! A [`TestKit`] is an embedded store with a clock that moves only when the test advances it. Give
//! its store to the application, and the application's routes to its
//! [worker](TestKit::defer_worker). Nothing runs by itself. The integrations export this module
//! under their feature `test-kit`, as `lockgate_axum::testing` and `lockgate_actix_web::testing`.
//!
//! ```
//! # use lockgate::{defer::{DeferWorker, Replayer}, middleware::PlainHttp};
//! use std::time::Duration;
//!
//! use lockgate::{Key, testing::TestKit};
//!
//! # async fn example(routes: impl Replayer) -> Result<(), lockgate::Error> {
//! let kit = TestKit::new();
//! // In axum: `app.layer(Extension(kit.store().clone()))`.
//! // In actix-web: `.app_data(Data::new(kit.store().clone()))`.
//! let worker = DeferWorker::<PlainHttp>::with_replayer(kit.store(), routes);
//! let mut worker = kit.defer_worker(worker).await?;
//!
//! // Another request holds order 7, so a refund of it is answered with 202.
//! let holder = kit.hold_lock(Key::path_param("id", "7")).await?;
//! // ... send the request to the application, and check its response ...
//! assert!(worker.run_due().await?.is_empty(), "it has to wait");
//! drop(holder);
//! for run in worker.run_due().await? {
//!     println!("{} {} -> {:?}", run.method, run.target, run.status);
//! }
//!
//! // Alternatively, every resource is busy.
//! kit.pretend_busy(true);
//! // A failed job runs again after its backoff.
//! kit.advance(Duration::from_secs(60));
//! let again = worker.run_due().await?;
//! # Ok(()) }
//! ```
//!
//! # Clocks
//!
//! [`TestKit::advance`] moves the store's clock: delays, `run_at`, backoffs, deadlines, quotas,
//! leases and retention go by it. All other waits go by tokio's clock, which is the wall clock
//! unless the test pauses it: the `wait` of a lock, `wait_up_to`, `Prefer: wait=N`, `max_hold`,
//! `max_run_time`, `body_read_timeout`, and timers of the application. Pause it by
//! `#[tokio::test(start_paused = true)]`. That needs tokio's feature `test-util`, which `full` does
//! not include. Deferred runs of actix-web have a thread with a clock of its own, so a test that
//! pauses its clock and awaits [`TestDeferWorker::run_due`] ends them by `max_run_time` at once.
//!
//! ```toml
//! [dev-dependencies]
//! tokio = { version = "1", features = ["full", "test-util"] }
//! ```
//!
//! # Tasks
//!
//! Tasks of a queue run in the same way:
//!
//! ```
//! use std::time::Duration;
//!
//! use lockgate::{
//!     queue::{Queue, Task, TaskFailure},
//!     testing::TestKit,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lockgate::queue::PushError> {
//! let kit = TestKit::new();
//! let mails: Queue<String> = kit.store().queue("emails");
//! let mut worker = kit.queue_worker(mails.worker(async |task: Task<String>| {
//!     // ... the application's work ...
//!     Ok::<(), TaskFailure>(())
//! }));
//!
//! mails.push(&"ada@example.org".to_owned()).delay(Duration::from_secs(3600)).await?;
//! assert!(worker.run_due().await.is_empty(), "not yet");
//! kit.advance(Duration::from_secs(3600));
//! let ran = worker.run_due().await;
//! assert_eq!((ran[0].attempt, ran[0].fault), (1, None));
//! # Ok(()) }
//! ```

mod test_kit;
mod test_lock_guard;

pub use self::{
    test_kit::{TestDeferWorker, TestKit, TestQueueWorker},
    test_lock_guard::TestLockGuard,
};
pub use crate::{defer::JobRunReport, queue::TaskRunReport};
