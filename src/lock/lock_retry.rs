//! Retries after a pause, without a subscription or a queue entry.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    acquire_options::MAX_WAIT,
    lock_outcome::{AcquireError, LockBusy, LockOutcome},
    lock_request::LockRequest,
};

/// Shortest pause. For less, [`LockRequest::wait`] is the better choice: it is woken, and costs the
/// store nothing in the meantime.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Number of retries after the first attempt, and the pause before each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LockRetry {
    max_retries: u32,
    interval: Duration,
}

impl LockRetry {
    pub(super) fn new(max_retries: u32, interval: Duration) -> Self {
        Self { max_retries, interval: interval.clamp(MIN_RETRY_INTERVAL, MAX_WAIT) }
    }

    /// Repeats the attempt until it is no longer busy, or no retry is left.
    pub(super) async fn run<T, E, F>(
        self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Result<T, LockBusy>, E>
    where
        F: Future<Output = Result<Result<T, LockBusy>, E>>,
    {
        let started_at = Instant::now();
        let mut remaining_retries = self.max_retries;
        loop {
            let mut busy = match attempt().await? {
                Ok(acquired) => return Ok(Ok(acquired)),
                Err(busy) => busy,
            };
            busy.waited = (self.max_retries > 0).then(|| started_at.elapsed());
            // Slow calls count too, so that a request gets its response in bounded time.
            if remaining_retries == 0 || started_at.elapsed() + self.interval > MAX_WAIT {
                return Ok(Err(busy));
            }
            remaining_retries -= 1;
            tokio::time::sleep(self.interval).await;
        }
    }
}

impl LockRequest {
    /// Retries a busy lock up to `max_retries` times, with a pause of `interval` (at least 10 ms).
    /// The first attempt does not count: `retry(3, interval)` makes at most four attempts. It gives
    /// up after three pauses, or after ten minutes if that is sooner.
    ///
    /// Requests that retry have no order among each other, and waiters are served before them.
    /// [`wait`](Self::wait) is fair and makes fewer calls to the store; a retry has no queue entry
    /// that other requests have to wait behind. Of `wait` and `retry`, the last one set counts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use std::time::Duration;
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let request = store.lock("order:7").retry(3, Duration::from_millis(50));
    /// let guard = request.acquire().await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn retry(self, max_retries: u32, interval: Duration) -> Self {
        self.with_retry(Some(LockRetry::new(max_retries, interval)))
    }

    pub(super) async fn acquire_with_retry(
        &self,
        retry: LockRetry,
        record: Option<Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        let attempt = || async {
            Ok::<_, AcquireError>(match self.acquire_or_wait(record.clone()).await? {
                LockOutcome::Busy(busy) => Err(busy),
                outcome => Ok(outcome),
            })
        };
        Ok(retry.run(attempt).await?.unwrap_or_else(LockOutcome::Busy))
    }
}
