//! Settings of `DeferWorker`: how many runs may start at once or in a time, in this worker and in
//! all workers of the queue.

use std::time::Duration;

use super::DeferWorker;
use crate::{
    durations::MAX_DURATION,
    error::{Error, expect_setting},
};

impl<R> DeferWorker<R> {
    /// Most requests that run at once in this worker, at least 1. Requests for one resource never
    /// run at once.
    ///
    /// Default: 16, beside the clients' requests that the process serves.
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
    /// // At most 4 requests at once here, and 10 in all workers together.
    /// let worker = DeferWorker::<PlainHttp>::new(&store, service)
    ///     .concurrency(4)
    ///     .queue_concurrency(10);
    /// # drop(worker);
    /// # Ok(()) }
    /// ```
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
}
