//! Settings of `LockLayer` for a busy lock: wait, retries, and the status of the busy response.

use std::time::Duration;

use super::{LockLayer, busy_status::BusyStatus, lock_policy::BusyStrategy};
use crate::{
    gate::RequestKind,
    lock::{acquire_options::MAX_WAIT, lock_retry::LockRetry},
};

impl<R: RequestKind> LockLayer<R> {
    /// Waits in the lock's queue for at most this time before the busy response. At most ten
    /// minutes. Default: no wait.
    ///
    /// Inside a `DeferLayer`, the wait of that layer applies instead.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, Store, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").wait(Duration::from_secs(5));
    /// let service = lock.store(&store).layer(handler);
    ///
    /// let guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let request = Request::post("/refund").header("order", "7").body(Body::default())?;
    /// let response = tokio::spawn(service.oneshot(request)); // waits
    /// guard.release().await;
    /// assert_eq!(response.await??.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with_policy(|policy| policy.busy_strategy = BusyStrategy::Wait(wait.min(MAX_WAIT)))
    }

    /// Responds that the lock is busy at once, without a wait. This is the default.
    #[must_use]
    pub fn reject(self) -> Self {
        self.with_policy(|policy| policy.busy_strategy = BusyStrategy::Reject)
    }

    /// Asks again up to `max_retries` times, `interval` apart (at least 10 ms), before the busy
    /// response. The first attempt is not counted: `retry(3, interval)` asks at most four times and
    /// waits for at most three pauses, or for ten minutes if that is less.
    ///
    /// A request that retries has no queue entry: requests that [wait](Self::wait) are served
    /// first, and among requests that retry the order is random. Of `reject`, `wait` and `retry`,
    /// the last one set applies. Inside a `DeferLayer` there are no retries; the request is
    /// deferred.
    #[must_use]
    pub fn retry(self, max_retries: u32, interval: Duration) -> Self {
        self.with_policy(|policy| {
            policy.busy_strategy = BusyStrategy::Retry(LockRetry::new(max_retries, interval));
        })
    }

    /// Status of the busy response, also after a wait. Default:
    /// [`BusyStatus::Conflict`](crate::BusyStatus), 409.
    #[must_use]
    pub fn busy_status(self, status: BusyStatus) -> Self {
        self.with_policy(|policy| policy.busy_status = status)
    }
}
