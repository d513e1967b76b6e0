//! The worker: its settings.

use std::{fmt, future::Future, time::Duration};

use super::{
    queue_worker_loop::QueueWorkerLoop, retry_backoff::RetryBackoff, task_run::TaskHandler,
};
use crate::{
    clock::{MAX_DURATION, saturating_micros},
    key::Key,
    store::{DeadLetterLimits, Store, TaskRunLimits},
};

/// Runs tasks of a queue until it is told to stop. Made by [`MemoryTaskQueue::worker`](super::MemoryTaskQueue::worker).
///
/// It claims only what it starts at once. In one call to the store it ends the runs that are over and claims
/// as many again.
#[must_use = "a worker does nothing until `run` is awaited or spawned"]
pub struct QueueWorker {
    pub(super) store: Store,
    pub(super) queue: Key,
    pub(super) handler: TaskHandler,
    pub(super) concurrency: usize,
    pub(super) lease: Duration,
    pub(super) max_run: Option<Duration>,
    pub(super) drain_timeout: Duration,
    pub(super) backoff: RetryBackoff,
    pub(super) limits: TaskRunLimits,
    pub(super) dead_letter_policy: DeadLetterLimits,
}

impl QueueWorker {
    pub(super) fn new(store: Store, queue: Key, handler: TaskHandler) -> Self {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(600));
        let keep = Duration::from_secs(7 * 24 * 60 * 60);
        Self {
            store,
            queue,
            handler,
            concurrency: 16,
            lease: Duration::from_secs(10),
            max_run: None,
            drain_timeout: Duration::from_secs(10),
            backoff: RetryBackoff { base, cap },
            limits: TaskRunLimits::default(),
            dead_letter_policy: DeadLetterLimits {
                retention: keep,
                max_count: 10_000,
                max_bytes: 1 << 30,
                max_crashes: 3,
            },
        }
    }

    /// Most tasks that run at once in this worker, at least 1. Default 16: handlers mostly wait for somebody else (a mail
    /// server, a database), and that somebody rarely bears hundreds of them at once. One call to the store starts at most a
    /// hundred, and no more than 4 MiB of them, so that its answer comes within its deadline, unless one alone is larger
    /// ([`MemoryTaskQueue::payload_limit`](super::MemoryTaskQueue::payload_limit)); the next call starts the others.
    ///
    /// Each handler runs in a task of its own. One that blocks its thread keeps its lease only while another thread of the
    /// runtime renews it: not on a `current_thread` runtime, nor on an arbiter of actix.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = most.max(1);
        self
    }

    /// Most tasks of the queue that run at once, in all workers together, at least 1: exact, as far as all of them say the same.
    /// A run whose worker has died counts until its lease is over. Default: any number, since nobody but the application
    /// knows what its handlers share, and a bound is one more look for each turn.
    pub fn queue_concurrency(mut self, most: u32) -> Self {
        self.limits.max_running = most.max(1).into();
        self
    }

    /// Starts of tasks of the queue, in all workers together: at most `starts` at once, and so many in every `per`
    /// on the average, retries included. Default: any number, for the same reason. The time between two starts is
    /// rounded up to whole microseconds.
    ///
    /// # Panics
    ///
    /// If either is zero, or the time is longer than a year.
    pub fn queue_rate(mut self, starts: u64, per: Duration) -> Self {
        assert!(
            starts > 0 && !per.is_zero() && per <= MAX_DURATION,
            "QueueWorker::queue_rate: {starts} per {per:?}; take at least one per time, up to a year"
        );
        let interval_us = saturating_micros(per).div_ceil(starts).max(1);
        (self.limits.start_interval_us, self.limits.start_burst) = (interval_us, starts);
        self
    }

    /// How long a run outlives its process, at least 100 ms; renewed at a third. A run that could not be
    /// renewed for so long is cancelled, since somebody else may run it.
    ///
    /// Default 10 s, as that of locks: shorter than what people wait for when a process has died, longer than a
    /// failover of the store takes, as a rule. A renewal may go astray: the next one comes before it is over.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), MAX_DURATION);
        self
    }

    /// Longest run; beyond it, the handler is dropped, and the attempt has failed. Default: any length, so a handler that
    /// hangs is renewed for ever, and keeps its place of [`concurrency`](Self::concurrency). An import may take hours, and
    /// to cut it off would be to do its work twice; a run of a deferred request has a bound since others wait for its lock.
    pub fn max_run_time(mut self, longest: Duration) -> Self {
        self.max_run = Some(longest.min(MAX_DURATION));
        self
    }

    /// How long runs may go on after the signal to stop. What runs then is dropped, and handed back
    /// without being charged an attempt; one that is to run [once](super::MemoryTaskQueue::once) becomes a dead letter, as
    /// after a crash. That takes two seconds at most. A handler that blocks its thread for longer than the first of them
    /// can't be dropped: its task is left to its lease, and counts as crashed once that is over.
    ///
    /// Default 10 s: a third of what orchestrators usually give between the signal and the kill, so that something is left
    /// for all else that has to end, and for handing back.
    pub fn drain_timeout(mut self, deadline: Duration) -> Self {
        self.drain_timeout = deadline.min(MAX_DURATION);
        self
    }

    /// A failed task is tried again after a random time of at most `base`, doubled with each attempt, but never more than
    /// `cap`. Default 1 s and 10 minutes: a moment's trouble costs a moment, and what is wrong for hours is asked about
    /// six times an hour at least, by a task with attempts enough.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.backoff = RetryBackoff { base: base.min(MAX_DURATION), cap: cap.min(MAX_DURATION) };
        self
    }

    /// Crashes after which a task is dead whatever attempts it has left: it may be what kills the workers. Default 3, at
    /// least 1: a task that is there when a deployment or a lack of memory kills its worker is unlucky once, perhaps twice.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.dead_letter_policy.max_crashes = crashes.max(1);
        self
    }

    /// How long dead letters are kept, and how many at most; then the oldest go, and are
    /// [counted](super::QueueStats::trimmed). Default a week, so that what died on a holiday is there when somebody looks;
    /// and 10,000, as of deferred requests in a shard: more than anybody reads one by one.
    pub fn dead_retention(mut self, retention: Duration, most: u64) -> Self {
        self.dead_letter_policy = DeadLetterLimits {
            retention: retention.min(MAX_DURATION),
            max_count: most,
            ..self.dead_letter_policy
        };
        self
    }

    /// Most bytes of dead letters that are kept: their payloads, and what stands beside each; then the oldest go, and
    /// are [counted](super::QueueStats::trimmed). Default 1 GiB: as for requests that have ended, so that letters of
    /// many bytes do not fill the server before there are too many of them. Each turn of a worker takes a hundred away
    /// at most, the next one more.
    pub fn max_dead_bytes(mut self, most: u64) -> Self {
        self.dead_letter_policy.max_bytes = most;
        self
    }

    /// Works until `shutdown` resolves, then drains: it claims nothing more, lets runs end, and hands back what has
    /// not ended in time. If this future is dropped instead, runs are dropped too, and count as crashed
    /// once their leases are over.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        QueueWorkerLoop::new(self).run(shutdown).await;
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
