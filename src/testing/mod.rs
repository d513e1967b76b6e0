//! For tests of applications: make a request be deferred, let time pass, run what is due.
//!
//! A [`TestKit`] is an embedded store whose clock stands still until it is told to go on. Give its store to
//! the application, and its [`worker`](TestKit::defer_worker) the application's routes; nothing runs by itself.
//! The same names are in `lockgate_axum::testing` and `lockgate_actix_web::testing`, with their feature
//! `test-kit`.
//!
//! ```
//! # mod lockgate_axum { pub use lockgate::testing; pub use lockgate::*; }
//! # use lockgate::{defer::{Answer, DeferWorker, Ran, Replayer}, gate::{HttpRequestHead, Replay}};
//! use std::time::Duration;
//!
//! use lockgate::{Key, testing::TestKit};
//!
//! # async fn example(routes: impl Replayer) -> Result<(), lockgate::Error> {
//! let kit = TestKit::new();
//! // In axum: `app.layer(Extension(kit.store().clone()))`; in actix-web: `.app_data(Data::new(..))`.
//! let mut worker = kit.defer_worker(DeferWorker::on(kit.store(), routes)).await?;
//!
//! // Somebody else works on order 7: a refund of it is answered with 202.
//! let somebody = kit.hold_lock(Key::path_param("id", "7")).await?;
//! // ... send the request to the application, and look at its answer ...
//! assert!(worker.run_due().await?.is_empty(), "it has to wait");
//! drop(somebody);
//! for run in worker.run_due().await? {
//!     println!("{} {} -> {:?}", run.method, run.target, run.status);
//! }
//!
//! // Or: every resource is busy, whatever is asked for.
//! kit.pretend_busy(true);
//! // What has failed is tried again when its time has come.
//! kit.advance(Duration::from_secs(60));
//! let again = worker.run_due().await?;
//! # Ok(()) }
//! ```
//!
//! Tasks of a queue run in the same way:
//!
//! ```
//! use std::time::Duration;
//!
//! use lockgate::{
//!     queue::{TaskFailure, Queue, Task},
//!     testing::TestKit,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lockgate::queue::PushError> {
//! let kit = TestKit::new();
//! let mails: Queue<String> = kit.store().queue("emails");
//! let mut worker = kit.queue_worker(mails.defer_worker(async |task: Task<String>| {
//!     // ... what the application does ...
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

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    clock::Clock,
    defer::{DeferWorker, JobStepper},
    error::{Error, ErrorKind},
    key::Key,
    lock::{AcquireError, LockGuard},
    queue::{self, QueueWorker},
    store::{MemoryBackend, Store},
};
pub use crate::{defer::JobRunReport, queue::TaskRunReport};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A store for one test, and the hands that move it.
#[derive(Clone)]
pub struct TestKit {
    store: Store,
    memory: Arc<MemoryBackend>,
    clock: Clock,
}

impl TestKit {
    /// An empty embedded store whose clock stands still, at the whole second in which it was made.
    #[must_use]
    pub fn new() -> Self {
        let clock = Clock::manual();
        let memory = Arc::new(MemoryBackend::new(clock.clone()));
        Self { store: Store::with_backend(Arc::clone(&memory) as _), memory, clock }
    }

    /// The store, for the application. Its clones are the same one.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What time it is in the store: what a moment is to be counted from that is given to it, such as that of
    /// [`run_at`](queue::PushRequest::run_at). The process's own clock goes on, and is ahead of it.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.clock.now_us())
    }

    /// Lets time pass in the store: delays, backoffs, deadlines, quotas and leases; at most a hundred years (of 365 days)
    /// by one call. Timers of the application itself are tokio's, and are moved by `tokio::time`.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Holds the lock of a resource, as a request does that takes long: until the guard is dropped (or the
    /// clock, or tokio's, has been moved by a day), others that need it are refused, wait or are deferred. [`Key::path_param`] is the key of a
    /// `LockLayer::by_path_param`.
    ///
    /// # Errors
    ///
    /// If it is held already.
    pub async fn hold_lock(&self, key: impl Into<Key>) -> Result<LockGuard, Error> {
        // Held until it is dropped, unless the clock, or tokio's, is moved by a day.
        let lock = self.store.lock(key).lease(DAY).max_hold(DAY);
        lock.acquire().await.map_err(|refused| match refused {
            AcquireError::Fault(error) => error,
            other => Error::new(ErrorKind::Config, "hold").with_source(other.to_string()),
        })
    }

    /// From now on every lock is busy for those who ask for it, or as it is. Deferred requests have their
    /// locks all the same, when they run: so every request behind a `DeferLayer` is answered with 202.
    pub fn pretend_busy(&self, busy: bool) {
        self.memory.simulate_busy_locks(busy);
    }

    /// A worker that runs jobs when it is told to; the `DeferWorker` of an integration is one to give it. To
    /// the status resource and to layers it is a live worker. Don't spawn another one beside it: that would take
    /// jobs away from it.
    ///
    /// # Errors
    ///
    /// None with this store; the type is that of every step.
    pub async fn defer_worker(
        &self,
        worker: impl Into<DeferWorker>,
    ) -> Result<TestDeferWorker, Error> {
        let stepper = JobStepper::new(worker.into());
        stepper.send_heartbeat().await?;
        Ok(TestDeferWorker(stepper))
    }

    /// A worker of a queue that runs tasks when it is told to. Its settings hold, but that it runs one task at a time;
    /// what it counts in time, such as `queue_rate` and backoffs, goes by the kit's clock, and `max_run` by tokio's.
    /// Don't spawn another one beside it: that would take tasks away from it.
    #[must_use]
    pub fn queue_worker(&self, worker: QueueWorker) -> TestQueueWorker {
        TestQueueWorker(queue::QueueStepper::new(worker))
    }
}

impl Default for TestKit {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestKit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestKit").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A worker that does nothing by itself.
pub struct TestDeferWorker(JobStepper);

impl TestDeferWorker {
    /// Runs every job that can run now, to its end and in its order, in the caller's own task. What ran, in
    /// the order in which it ended: jobs that this made due included, so a retry with a backoff is not
    /// among it until the clock was [advanced](TestKit::advance).
    ///
    /// # Errors
    ///
    /// None with this store.
    ///
    /// # Panics
    ///
    /// After 10,000 passes over what is due, each of which has run something: runs that make others due without end.
    pub async fn run_due(&mut self) -> Result<Vec<JobRunReport>, Error> {
        self.0.run_due().await
    }
}

impl fmt::Debug for TestDeferWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestDeferWorker").finish_non_exhaustive()
    }
}

/// A worker of a queue that does nothing by itself.
pub struct TestQueueWorker(queue::QueueStepper);

impl TestQueueWorker {
    /// Runs every task that is due, to its end, one after the other, and what these push. What ran, in its order; a
    /// task that failed comes again when the clock was [advanced](TestKit::advance) by its backoff.
    ///
    /// # Panics
    ///
    /// After 10,000 runs: tasks that push tasks without end. The last one has been ended, too.
    pub async fn run_due(&mut self) -> Vec<TaskRunReport> {
        self.0.run_due().await
    }
}

impl fmt::Debug for TestQueueWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestQueueWorker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_resource_that_is_held_stays_so() {
        let kit = TestKit::new();
        let somebody = kit.hold_lock("x").await.expect("it is free");
        for _ in 0..23 {
            kit.advance(DAY / 24);
            tokio::time::sleep(DAY / 24).await;
        }
        assert_eq!(somebody.loss(), None);
        assert!(kit.store().lock("x").acquire().await.is_err());
    }
}
