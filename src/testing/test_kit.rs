//! `TestKit`, and the workers that a test drives by hand.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::test_lock_guard::TestLockGuard;
use crate::{
    clock::Clock,
    defer::{DeferWorker, JobRunReport, JobStepper},
    error::{Error, ErrorKind},
    key::Key,
    lock::AcquireError,
    queue::{self, QueueWorker, TaskRunReport},
    store::{MemoryBackend, Store},
};

const OTHER_STORE: &str =
    "TestKit::{}: the worker has another store than the kit; create it with `kit.store()`";

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Embedded store for one test, with control over its clock, locks and workers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockgate::Error> {
/// use std::time::Duration;
/// use lockgate::{Quota, testing::TestKit};
///
/// let kit = TestKit::new();
/// let minute = Quota::requests(1).per(Duration::from_secs(60));
/// let limit = kit.store().rate_limiter(minute);
/// assert!(limit.check("customer:7", 1).await?.is_admitted());
/// assert!(!limit.check("customer:7", 1).await?.is_admitted());
/// kit.advance(Duration::from_secs(60));
/// assert!(limit.check("customer:7", 1).await?.is_admitted());
///
/// let guard = kit.hold_lock("order:7").await?;
/// assert!(kit.store().lock("order:7").acquire().await.is_err());
/// drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TestKit {
    store: Store,
    memory: Arc<MemoryBackend>,
    clock: Clock,
}

impl TestKit {
    /// Creates an empty embedded store. Its clock stands still at the current time, rounded down to
    /// a whole second.
    #[must_use]
    pub fn new() -> Self {
        let clock = Clock::manual();
        let memory = Arc::new(MemoryBackend::new(clock.clone()));
        Self { store: Store::with_backend(Arc::clone(&memory) as _), memory, clock }
    }

    /// Returns the store, for the application. All clones share its data.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the time of the store's clock. Times given to the store, such as that of
    /// [`run_at`](queue::PushRequest::run_at), must be computed from it: the process's own clock
    /// goes on and is ahead of it.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.clock.now_us())
    }

    /// Advances the store's clock, at most by 100 years (of 365 days) in one call. It governs
    /// delays, backoffs, deadlines, quotas and leases. The waits of locks and layers,
    /// `max_run_time` and timers of the application are tokio's; see [the
    /// clocks](crate::testing#clocks).
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Holds the lock of a resource, like a long request. Other requests for it are refused, wait
    /// or are deferred. The lock is held until the guard is dropped, or until the store's clock or
    /// tokio's has advanced by a day. [`Key::path_param`] is the key of a
    /// `LockLayer::by_path_param`. A warning is logged at the end of the guard if layers have asked
    /// the kit's store for locks, and for none of a key of this kind, name and scope; or if
    /// requests in the thread of the test have met layers of other stores alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the lock is held, or if a deferred job of it is due.
    pub async fn hold_lock(&self, key: impl Into<Key>) -> Result<TestLockGuard, Error> {
        // The lease outlasts everything but a day on the store's clock or tokio's.
        let lock = self.store.lock(key).lease(DAY).max_hold(DAY);
        let guard = lock.acquire().await.map_err(|refused| match refused {
            AcquireError::Fault(error) => error,
            _ => Error::new(ErrorKind::Unavailable, "TestKit::hold_lock").with_source(
                "the lock is held, or a deferred job of it is due; hold it before the request, or \
                 call run_due first",
            ),
        })?;
        Ok(TestLockGuard::new(guard, Arc::clone(&self.memory)))
    }

    /// Makes every lock busy for requests, or ends this. Runs of deferred requests still get their
    /// locks, so every request behind a `DeferLayer` is answered with 202.
    pub fn pretend_busy(&self, busy: bool) {
        self.memory.simulate_busy_locks(busy);
    }

    /// Creates a worker that runs jobs only on demand, from a `DeferWorker` of this crate or of an
    /// integration. The status resource and the layers see a live worker. Don't spawn another
    /// worker on this store: it would take jobs away.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`]; none by the store:
    ///
    /// - if the worker has another store than the kit, and so would find none of its jobs
    /// - if a layer of this process carries a user or another snapshot that the worker does not
    ///   restore, where [`DeferWorker::run`] would panic. While other kits or stores exist, only a
    ///   layer counts that a request has led to this store; [`run_due`](TestDeferWorker::run_due)
    ///   checks again
    pub async fn defer_worker<R>(
        &self,
        worker: impl Into<DeferWorker<R>>,
    ) -> Result<TestDeferWorker, Error> {
        let stepper = JobStepper::try_new(worker.into())?;
        if !self.has_data_of(stepper.store()) {
            return Err(Error::setting(OTHER_STORE.replace("{}", "defer_worker")));
        }
        stepper.send_heartbeat().await?;
        Ok(TestDeferWorker(stepper))
    }

    /// Creates a worker of a queue that runs tasks only on demand.
    ///
    /// Its settings apply, except that it runs one task at a time. The kit's clock governs
    /// `queue_rate` and backoffs; tokio's clock governs `max_run_time`. Don't spawn another worker
    /// on this queue: it would take tasks away.
    ///
    /// # Panics
    ///
    /// If the queue is one of another store than the kit's: no task of the kit would run.
    #[must_use]
    #[expect(clippy::panic, reason = "the test would prove nothing")]
    pub fn queue_worker(&self, worker: QueueWorker) -> TestQueueWorker {
        let stepper = queue::QueueStepper::new(worker);
        if !self.has_data_of(stepper.store()) {
            panic!("{}", OTHER_STORE.replace("{}", "queue_worker"));
        }
        TestQueueWorker(stepper)
    }

    /// Returns true for handles on the kit's store, also those of another process.
    fn has_data_of(&self, store: &Store) -> bool {
        store.backend().identities() == self.store.backend().identities()
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

/// Worker that runs jobs only when [`run_due`](Self::run_due) is called.
pub struct TestDeferWorker(JobStepper);

impl TestDeferWorker {
    /// Runs every due job to its end, in order, in the caller's own task. Returns the runs in the
    /// order of their ends, including runs of jobs that became due by earlier ones. A retry with a
    /// backoff is due only after the clock was [advanced](TestKit::advance).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`]:
    ///
    /// - if a layer that has met this store carries a user or another snapshot that the worker does
    ///   not restore; nothing has run
    /// - if a due job did not run because it carries such a snapshot, and returned to its queue;
    ///   runs of other jobs have happened, and the next call reports them
    ///
    /// # Panics
    ///
    /// After 10,000 passes that each ran a job: jobs that make other jobs due without end.
    pub async fn run_due(&mut self) -> Result<Vec<JobRunReport>, Error> {
        self.0.run_due().await
    }
}

impl fmt::Debug for TestDeferWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestDeferWorker").finish_non_exhaustive()
    }
}

/// Worker that runs tasks of a queue only when [`run_due`](Self::run_due) is called.
pub struct TestQueueWorker(queue::QueueStepper);

impl TestQueueWorker {
    /// Runs every due task to its end, one after the other, including the tasks that these push.
    /// Returns the runs in order. A failed task is due again after the clock was
    /// [advanced](TestKit::advance) by its backoff.
    ///
    /// # Panics
    ///
    /// After 10,000 runs: tasks that push tasks without end. The last run has been settled.
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
    async fn held_lock_survives_clock_advances() {
        let kit = TestKit::new();
        let held_lock = kit.hold_lock("x").await.expect("it is free");
        for _ in 0..23 {
            kit.advance(DAY / 24);
            tokio::time::sleep(DAY / 24).await;
        }
        assert_eq!(held_lock.loss(), None);
        assert!(kit.store().lock("x").acquire().await.is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "TestKit::queue_worker: the worker has another store than the kit")]
    async fn worker_of_another_store_is_refused() {
        let worker_of = |store: &Store| {
            store.queue::<u8>("q").worker(async |_| Ok::<(), queue::TaskFailure>(()))
        };
        let kit = TestKit::new();
        drop(kit.queue_worker(worker_of(&kit.store().as_another_process())));
        drop(kit.queue_worker(worker_of(&Store::memory())));
    }
}
