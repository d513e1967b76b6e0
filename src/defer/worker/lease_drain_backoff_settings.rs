//! Settings of `DeferWorker`: the times of a run, which are its lease, its longest duration, the
//! drain timeout and the backoff.

use std::time::Duration;

use super::{DeferWorker, worker_settings::MIN_LEASE};
use crate::durations::MAX_DURATION;

impl<R> DeferWorker<R> {
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
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
    /// # use lockgate::defer::{DeferLayer, DeferWorker};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// # let store = Store::memory();
    /// # let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// # let service = DeferLayer::<PlainHttp>::new().layer(lock.layer(handler));
    /// let worker = DeferWorker::<PlainHttp>::new(&store, service)
    ///     .drain_timeout(Duration::from_secs(20));
    /// worker.run(std::future::ready(())).await; // the shutdown signal came at once
    /// # Ok(()) }
    /// ```
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
}
