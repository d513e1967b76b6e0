//! Settings of `LockLayer` for a busy lock: wait, retries, and the status of the busy response.

use std::time::Duration;

use super::{LockLayer, busy_status::BusyStatus, lock_policy::BusyStrategy};
use crate::{
    error::{Error, expect_setting},
    gate::RequestKind,
    lock::{acquire_options::MAX_WAIT, lock_retry::LockRetry},
};

impl<R: RequestKind> LockLayer<R> {
    /// Waits in the lock's queue for at most this time before the busy response. At most ten
    /// minutes. Default: no wait.
    ///
    /// Inside a `DeferLayer`, the wait of that layer applies instead. If that one does not wait, a
    /// warning is logged once a minute.
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

    /// Sets how long a hold usually takes, for the `Retry-After` of the busy response until the
    /// first hold under this layer has ended. From then on the measured average counts, of this
    /// layer in this process. Default: 2 s, as most handlers take less, and a client that retries
    /// too early gets another busy response and a better estimate.
    ///
    /// `Retry-After` is this time for the holder and for each waiter ahead, rounded up to seconds,
    /// and at most the rest of the holder's lease. A 202 of an outer `DeferLayer` uses it likewise.
    ///
    /// # Panics
    ///
    /// If the time is zero; [`try_expected_hold`](Self::try_expected_hold) returns an error
    /// instead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockgate::{lock::LockLayer, middleware::PlainHttp};
    /// // An export of 20 s: the first client is not told to come back after two.
    /// let lock = LockLayer::<PlainHttp>::by_header("account");
    /// let lock = lock.expected_hold(Duration::from_secs(20));
    /// ```
    #[must_use]
    pub fn expected_hold(self, hold: Duration) -> Self {
        expect_setting(self.try_expected_hold(hold))
    }

    /// Like [`expected_hold`](Self::expected_hold), but returns the error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the time is zero.
    pub fn try_expected_hold(self, hold: Duration) -> Result<Self, Error> {
        if hold.is_zero() {
            return Err(Error::setting(
                "LockLayer::expected_hold: the time is zero; give the usual time of the handler",
            ));
        }
        Ok(self.with_policy(|policy| policy.expected_hold = Some(hold)))
    }

    /// Status of the busy response, also after a wait. Default:
    /// [`BusyStatus::Conflict`](crate::BusyStatus), 409.
    #[must_use]
    pub fn busy_status(self, status: BusyStatus) -> Self {
        self.with_policy(|policy| policy.busy_status = status)
    }
}
