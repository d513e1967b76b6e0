//! `QueueWorker`: a worker of a queue, with its settings.

use std::{fmt, future::Future, time::Duration};

use super::{
    queue_worker_loop::QueueWorkerLoop, retry_backoff::RetryBackoff, task_run::TaskHandler,
};
use crate::{
    durations::{MAX_DURATION, saturating_micros},
    error::{Error, expect_setting},
    key::{Key, LogName},
    store::{DeadLetterLimits, Store, TaskRunLimits},
    trace::TraceRelation,
};

/// Worker that runs tasks of a queue until its shutdown. Made by
/// [`Queue::worker`](super::Queue::worker).
///
/// It claims only tasks that it starts at once. One call to the store settles the ended runs and
/// claims as many tasks again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use lockgate::{
///     Store,
///     queue::{Queue, Task, TaskFailure},
/// };
///
/// let emails: Queue<String> = Store::memory().queue("emails");
/// let worker = emails
///     .worker(|task: Task<String>| async move {
///         println!("to {}, attempt {}", task.payload, task.attempt());
///         Ok::<(), TaskFailure>(())
///     })
///     .concurrency(32)
///     .max_run_time(Duration::from_secs(60))
///     .backoff(Duration::from_secs(5), Duration::from_secs(300));
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let worker = tokio::spawn(worker.run(async { stopped.await.unwrap_or_default() }));
///
/// emails.push(&"ada@example.org".to_owned()).await?;
/// while emails.stats().await?.done == 0 {
///     tokio::time::sleep(Duration::from_millis(10)).await;
/// }
/// // On SIGTERM:
/// drop(stop);
/// worker.await?; // current runs have ended
/// # Ok(()) }
/// ```
///
/// An error by `?` is retried after the backoff. A failure of the task's own need not be: a
/// [`TaskFailure`](super::TaskFailure) can make the task a dead letter at once.
///
/// ```
/// # use lockgate::{Store, queue::{Queue, Task, TaskFailure}};
/// # async fn deliver(_: &str) -> Result<(), std::io::Error> { Ok(()) }
/// # let emails: Queue<String> = Store::memory().queue("emails");
/// let worker = emails.worker(|task: Task<String>| async move {
///     let Some((_, host)) = task.payload.split_once('@') else {
///         return Err(TaskFailure::dead_letter("not an address")); // not retried
///     };
///     deliver(host).await?; // any error: retried
///     Ok(())
/// });
/// ```
#[must_use = "a worker does nothing until `run` is awaited or spawned"]
pub struct QueueWorker {
    pub(super) store: Store,
    pub(super) queue: Key,
    pub(super) handler: TaskHandler,
    pub(super) concurrency: usize,
    pub(super) lease: Duration,
    pub(super) max_run_time: Option<Duration>,
    pub(super) drain_timeout: Duration,
    pub(super) backoff: RetryBackoff,
    pub(super) limits: TaskRunLimits,
    pub(super) dead_letter_limits: DeadLetterLimits,
    pub(super) trace_relation: TraceRelation,
}

impl QueueWorker {
    /// Returns the queue's name for log records. It is a constant of the program, so it is never
    /// hashed.
    pub(super) fn log_name(&self) -> LogName<'_> {
        self.queue.log_name(true)
    }

    pub(super) fn new(store: Store, queue: Key, handler: TaskHandler) -> Self {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(600));
        let dead_retention = Duration::from_secs(7 * 24 * 60 * 60);
        Self {
            store,
            queue,
            handler,
            concurrency: 16,
            lease: Duration::from_secs(10),
            max_run_time: None,
            drain_timeout: Duration::from_secs(10),
            backoff: RetryBackoff { base, cap },
            limits: TaskRunLimits::default(),
            dead_letter_limits: DeadLetterLimits {
                retention: dead_retention,
                max_count: 10_000,
                max_bytes: 1 << 30,
                max_crashes: 3,
            },
            trace_relation: TraceRelation::default(),
        }
    }

    /// Sets the most tasks that this worker runs at once, at least 1. Default 16: handlers mostly
    /// wait for another service (a mail server, a database) that rarely tolerates hundreds of
    /// requests at once.
    ///
    /// One call to the store starts at most a hundred tasks of at most 4 MiB together, or a single
    /// larger one ([`Queue::payload_limit`](super::Queue::payload_limit)), so that its reply
    /// arrives within its deadline; the next call starts the others.
    ///
    /// Each handler runs in a tokio task of its own. A handler that blocks its thread keeps its
    /// lease only while another thread of the runtime renews it: not on a `current_thread` runtime,
    /// nor on an arbiter of actix.
    pub fn concurrency(mut self, max_runs: usize) -> Self {
        self.concurrency = max_runs.max(1);
        self
    }

    /// Sets the most tasks of the queue that run at once in all workers together, at least 1. The
    /// limit is exact if all workers have the same. A run of a dead worker counts until its lease
    /// ends. Default: no limit, since only the application knows the resources that its handlers
    /// share, and a limit adds a check to each poll.
    pub fn queue_concurrency(mut self, max_runs: u32) -> Self {
        self.limits.max_running = max_runs.max(1).into();
        self
    }

    /// Limits the rate at which tasks of the queue start, in all workers together, retries
    /// included: `starts` at once, and on average `starts` in every `per`. Default: no limit, for
    /// the same reason as in [`queue_concurrency`](Self::queue_concurrency). The time between two
    /// starts is rounded up to whole microseconds.
    ///
    /// # Panics
    ///
    /// If either is zero, or if `per` is longer than a year. For values from a configuration use
    /// [`try_queue_rate`](Self::try_queue_rate).
    pub fn queue_rate(self, starts: u64, per: Duration) -> Self {
        expect_setting(self.try_queue_rate(starts, per))
    }

    /// Like [`queue_rate`](Self::queue_rate), for values from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if either is zero, or if `per` is longer than a
    /// year.
    pub fn try_queue_rate(mut self, starts: u64, per: Duration) -> Result<Self, Error> {
        if starts == 0 || per.is_zero() || per > MAX_DURATION {
            return Err(Error::setting(format!(
                "QueueWorker::queue_rate: {starts} per {per:?}; it takes at least 1, per more than \
                 0 and at most a year"
            )));
        }
        let interval_us = saturating_micros(per).div_ceil(starts).max(1);
        (self.limits.start_interval_us, self.limits.start_burst) = (interval_us, starts);
        Ok(self)
    }

    /// Sets the time for which a run outlives its process, at least 100 ms. It is renewed after a
    /// third of it. A run that could not be renewed for this time is cancelled, since another
    /// worker may run the task.
    ///
    /// Default 10 s, like that of locks: shorter than the time that people wait after a crash,
    /// longer than most failovers of the store. A lost renewal is repeated before the lease ends.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), MAX_DURATION);
        self
    }

    /// Sets the longest run; beyond it, the handler is dropped, and the attempt has failed.
    /// Default: no limit, so a handler that hangs is renewed forever, and keeps its slot of
    /// [`concurrency`](Self::concurrency). An import may take hours, and cutting it off would
    /// repeat its work. (Runs of deferred requests have a limit because other requests wait for
    /// their lock.)
    pub fn max_run_time(mut self, max: Duration) -> Self {
        self.max_run_time = Some(max.min(MAX_DURATION));
        self
    }

    /// Sets the time for which runs may continue after the shutdown signal. Runs that remain are
    /// dropped, and their tasks return to the queue without a charged attempt. A task that may run
    /// [once](super::Queue::once) becomes a dead letter, as after a crash. This takes two seconds
    /// at most. A handler that blocks its thread for longer than the first second can't be dropped:
    /// its task is left to its lease, and counts as crashed after that.
    ///
    /// Default 10 s: a third of the time that orchestrators usually leave between the signal and
    /// the kill, which leaves time to return tasks and to stop everything else.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout.min(MAX_DURATION);
        self
    }

    /// Sets the backoff: a failed task is retried after a random time of at most `base`, doubled
    /// with each attempt, up to `cap`. Default 1 s and 10 minutes: a short problem costs little
    /// time, and during one of hours, a task with enough attempts is retried at least six times an
    /// hour.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.backoff = RetryBackoff { base: base.min(MAX_DURATION), cap: cap.min(MAX_DURATION) };
        self
    }

    /// Sets the number of crashes after which a task is dead, whatever attempts it has left: it may
    /// be the cause of the crashes. At least 1. Default 3: a task that happens to run when a
    /// deployment or a lack of memory kills its worker is hit once, perhaps twice.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.dead_letter_limits.max_crashes = crashes.max(1);
        self
    }

    /// Sets how long, and how many, dead letters are kept. Beyond either, the oldest are evicted
    /// and [counted](super::QueueStats::trimmed). Default a week, so that a failure on a holiday
    /// can still be inspected; and 10,000, as for deferred requests in a shard: more than anyone
    /// reads one by one.
    pub fn dead_retention(mut self, retention: Duration, max_count: u64) -> Self {
        self.dead_letter_limits = DeadLetterLimits {
            retention: retention.min(MAX_DURATION),
            max_count,
            ..self.dead_letter_limits
        };
        self
    }

    /// Sets the most bytes of dead letters, their payloads and metadata together. Beyond it, the
    /// oldest are evicted and [counted](super::QueueStats::trimmed). Default 1 GiB, as for ended
    /// deferred requests, so that large dead letters do not fill the server before their number
    /// reaches its limit. Each poll of a worker evicts at most a hundred.
    pub fn max_dead_bytes(mut self, bytes: u64) -> Self {
        self.dead_letter_limits.max_bytes = bytes;
        self
    }

    /// Sets the relation of a run's span to the span that pushed its task. Default
    /// [`TraceRelation::Link`]: a task may run hours after its push, and several times. It needs
    /// `Store::with_trace_propagator`.
    pub fn trace_runs(mut self, relation: TraceRelation) -> Self {
        self.trace_relation = relation;
        self
    }

    /// Runs until `shutdown` resolves, then drains: it claims nothing more, lets runs end, and
    /// returns the tasks of those that have not ended in time. If this future is dropped instead,
    /// the runs are dropped too, and count as crashed after their leases.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let drain_timeout = self.drain_timeout;
        // The time begins when the drain first polls it.
        let cut_off = async move { tokio::time::sleep(drain_timeout).await };
        QueueWorkerLoop::new(self).run(shutdown, cut_off).await;
    }

    /// Like [`run`](Self::run), with a drain that ends when `cut_off` resolves. `cut_off` is polled
    /// only during the drain.
    #[cfg(feature = "serve")]
    pub(crate) async fn run_until(
        self,
        shutdown: impl Future<Output = ()>,
        cut_off: impl Future<Output = ()>,
    ) {
        QueueWorkerLoop::new(self).run(shutdown, cut_off).await;
    }

    /// Returns the store of the queue.
    #[cfg(feature = "serve")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }
}

impl fmt::Debug for QueueWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueWorker")
            .field("queue", &self.queue)
            .field("concurrency", &self.concurrency)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
