//! Settings of `DeferWorker`: numbers and times of its runs, backoff, and webhooks.

use std::time::Duration;

use super::{DeferWorker, MIN_LEASE};
use crate::{
    durations::MAX_DURATION,
    error::{Error, expect_setting},
};

impl<R> DeferWorker<R> {
    /// Most requests that run at once in this worker, at least 1. Requests for one resource never
    /// run at once.
    ///
    /// Default: 16, beside the clients' requests that the process serves.
    pub fn concurrency(mut self, max_runs: usize) -> Self {
        self.settings.concurrency = max_runs.max(1);
        self
    }

    /// Most requests that run at once in all workers of this queue, at least 1. Default: the sum of
    /// the workers' [`concurrency`](Self::concurrency).
    ///
    /// Set the same number in every worker. It costs two calls for each chain of runs under one
    /// lock. A run of a crashed worker counts until its lease ends.
    pub fn queue_concurrency(mut self, max_runs: u32) -> Self {
        self.settings.shared_limits.max_concurrent = Some(max_runs.max(1));
        self
    }

    /// Most requests that all workers of this queue start in this time, evenly spread and at most a
    /// tenth of them at once. A retry counts again. Default: no limit. Set the same rate in every
    /// worker.
    ///
    /// # Panics
    ///
    /// If either value is zero, or if the time is longer than a year. For values from a
    /// configuration use [`try_queue_rate`](Self::try_queue_rate).
    pub fn queue_rate(self, requests: u64, per: Duration) -> Self {
        expect_setting(self.try_queue_rate(requests, per))
    }

    /// Like [`queue_rate`](Self::queue_rate), for values from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if either value is zero, or if the time is longer
    /// than a year.
    pub fn try_queue_rate(mut self, requests: u64, per: Duration) -> Result<Self, Error> {
        if requests == 0 || per.is_zero() || per > MAX_DURATION {
            return Err(Error::setting(format!(
                "DeferWorker::queue_rate: {requests} per {per:?}; it takes at least 1, per more \
                 than 0 and at most a year"
            )));
        }
        self.settings.shared_limits.rate = Some((requests, per));
        Ok(self)
    }

    /// Time for which runs may continue after the shutdown signal. Default: 10 s of the 30 s that
    /// orchestrators usually grant, so that the server has time left.
    ///
    /// Runs that have not ended by then are abandoned:
    ///
    /// - A run that may be repeated returns to its queue uncharged. That applies to PUT and DELETE,
    ///   unless [`max_attempts`](crate::defer::DeferLayer::max_attempts) is 1, and to the other
    ///   methods with [`retry_non_idempotent`](crate::defer::DeferLayer::retry_non_idempotent).
    /// - A run that has not reached its lock yet returns to its queue uncharged too.
    /// - All other runs become dead letters.
    /// - A run in another process is left to its lease, as if this worker had crashed.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout.min(MAX_DURATION);
        self
    }

    /// Time for which a run outlives its process; its lease is the lease of the lock. At least 100
    /// ms; renewed at a third. Default: 10 s, as for a lock.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Longest run; a longer one is lost, as in a crash. At least 100 ms, at most a year.
    ///
    /// Default: 5 minutes. No client waits for the response, but the resource is locked meanwhile.
    pub fn max_run_time(mut self, max: Duration) -> Self {
        self.settings.max_run_time = max.clamp(MIN_LEASE, MAX_DURATION);
        self
    }

    /// Delay after a failed run: a random time between zero and `base`, doubled after each further
    /// failure, at most `cap` ("full jitter": AWS Architecture Blog, "Exponential Backoff And
    /// Jitter", 2015).
    ///
    /// Default: 1 s, the time of a restart, and 5 minutes. The cap bounds how often a long outage
    /// is probed, and how long the resource waits after its end.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.settings.settlement_rules.backoff.base = base.min(MAX_DURATION);
        self.settings.settlement_rules.backoff.cap = cap.min(MAX_DURATION);
        self
    }

    /// Longest `Retry-After` of a failed run that is honored; a longer one counts as this. Default:
    /// one hour, since a handler that responds with "next year" must not block its resource for
    /// that long.
    pub fn max_retry_after(mut self, max: Duration) -> Self {
        self.settings.settlement_rules.backoff.max_retry_after = max.min(MAX_DURATION);
        self
    }

    /// Delivers the webhooks of [`DeferLayer::webhook`](crate::defer::DeferLayer::webhook). A
    /// worker without this setting leaves them to workers that have it.
    ///
    /// A worker delivers a quarter as many webhooks at once as it runs requests, and at least two,
    /// in addition to the requests. [`queue_concurrency`](Self::queue_concurrency) and
    /// [`queue_rate`](Self::queue_rate) do not apply to them, since a receiver may be arbitrarily
    /// slow.
    #[cfg(feature = "webhook")]
    pub fn webhooks(mut self, webhooks: crate::defer::Webhooks) -> Self {
        self.settings.webhooks = Some(std::sync::Arc::new(webhooks));
        self
    }
}
