//! Asking again after a pause: no subscription, no place in line.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    answer::{Answer, Busy, NotAcquired},
    asking::MAX_WAIT,
    request::LockRequest,
};

/// Shortest pause: whoever wants less wants to be woken, which costs the store nothing meanwhile.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// So many more attempts, so far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    times: u32,
    every: Duration,
}

impl Retry {
    pub(super) fn new(times: u32, every: Duration) -> Self {
        Self { times, every: every.clamp(MIN_PAUSE, MAX_WAIT) }
    }

    /// Asks until it is no longer busy, or the attempts are used up.
    pub(super) async fn run<T, E, F>(self, mut ask: impl FnMut() -> F) -> Result<Result<T, Busy>, E>
    where
        F: Future<Output = Result<Result<T, Busy>, E>>,
    {
        let started = Instant::now();
        let mut left = self.times;
        loop {
            let mut busy = match ask().await? {
                Ok(got) => return Ok(Ok(got)),
                Err(busy) => busy,
            };
            busy.waited = (self.times > 0).then(|| started.elapsed());
            // Slow calls count too: a request is told in bounded time.
            if left == 0 || started.elapsed() + self.every > MAX_WAIT {
                return Ok(Err(busy));
            }
            left -= 1;
            tokio::time::sleep(self.every).await;
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
        self.again(Some(Retry::new(times, every)))
    }

    pub(super) async fn retried(
        &self,
        retry: Retry,
        record: Option<Arc<str>>,
    ) -> Result<Answer, NotAcquired> {
        let once = || async {
            Ok::<_, NotAcquired>(match self.ask_once(record.clone()).await? {
                Answer::Busy(busy) => Err(busy),
                answer => Ok(answer),
            })
        };
        Ok(retry.run(once).await?.unwrap_or_else(Answer::Busy))
    }
}
