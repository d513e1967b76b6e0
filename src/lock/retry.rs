//! Asking again after a pause: no subscription, no place in line.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    acquire_options::MAX_WAIT,
    outcome::{AcquireError, LockBusy, LockOutcome},
    request::LockRequest,
};

/// Shortest pause: whoever wants less wants to be woken, which costs the store nothing meanwhile.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// So many more attempts, so far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LockRetry {
    max_retries: u32,
    interval: Duration,
}

impl LockRetry {
    pub(super) fn new(times: u32, every: Duration) -> Self {
        Self { max_retries: times, interval: every.clamp(MIN_RETRY_INTERVAL, MAX_WAIT) }
    }

    /// Asks until it is no longer busy, or the attempts are used up.
    pub(super) async fn run<T, E, F>(
        self,
        mut ask: impl FnMut() -> F,
    ) -> Result<Result<T, LockBusy>, E>
    where
        F: Future<Output = Result<Result<T, LockBusy>, E>>,
    {
        let started = Instant::now();
        let mut left = self.max_retries;
        loop {
            let mut busy = match ask().await? {
                Ok(got) => return Ok(Ok(got)),
                Err(busy) => busy,
            };
            busy.waited = (self.max_retries > 0).then(|| started.elapsed());
            // Slow calls count too: a request is told in bounded time.
            if left == 0 || started.elapsed() + self.interval > MAX_WAIT {
                return Ok(Err(busy));
            }
            left -= 1;
            tokio::time::sleep(self.interval).await;
        }
    }
}

impl LockRequest {
    /// If it is busy, asks again up to `times` times, `every` apart (at least 10 ms). The first attempt is
    /// not counted: `retry(3, every)` asks four times at most, and gives up after three pauses, or ten
    /// minutes if that is sooner.
    ///
    /// There is no order among those who ask like this, and whoever waits in line is served before
    /// them. [`wait`](Self::wait) is fair and asks the store less; this holds no place that another one
    /// would have to pass by. The last one set counts.
    pub fn retry(self, times: u32, every: Duration) -> Self {
        self.with_retry(Some(LockRetry::new(times, every)))
    }

    pub(super) async fn acquire_with_retry(
        &self,
        retry: LockRetry,
        record: Option<Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        let once = || async {
            Ok::<_, AcquireError>(match self.acquire_or_wait(record.clone()).await? {
                LockOutcome::Busy(busy) => Err(busy),
                answer => Ok(answer),
            })
        };
        Ok(retry.run(once).await?.unwrap_or_else(LockOutcome::Busy))
    }
}
