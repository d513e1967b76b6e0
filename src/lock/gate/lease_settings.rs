//! Settings of `LockLayer` for the lease: its length and renewal, the longest hold, and replicas.

use std::time::Duration;

use super::LockLayer;
use crate::gate::RequestKind;

impl<R: RequestKind> LockLayer<R> {
    /// Time for which the lock outlives its process; it is renewed at a third of that. At least 100
    /// ms. Default: 10 s, long enough to survive pauses and short outages, short enough to wait
    /// for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockgate::{lock::LockLayer, middleware::PlainHttp};
    /// // After a crash, the lock of an import is free in at most 3 s.
    /// let lock = LockLayer::<PlainHttp>::by_header("import").lease(Duration::from_secs(3));
    /// # drop(lock);
    /// ```
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, true))
    }

    /// Lease that is never renewed: the lock ends after it even if the handler still runs, and
    /// [`on_loss`](Self::on_loss) applies then.
    ///
    /// At least 100 ms, and never longer than [`max_hold`](Self::max_hold), which is 60 s by
    /// default: raise it for a longer lease.
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, false))
    }

    /// Longest time for which a request may hold the lock. At least 100 ms. Default: 60 s, which
    /// bounds a handler that never ends.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handler = service_fn(async |_: Request<Body>| {
    ///     tokio::time::sleep(Duration::from_secs(60)).await;
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let lock = LockLayer::<PlainHttp>::by_header("order").max_hold(Duration::from_millis(100));
    /// let service = lock.store(&Store::memory()).layer(handler);
    ///
    /// let request = Request::post("/refund").header("order", "7").body(Body::default())?;
    /// assert_eq!(service.oneshot(request).await?.status(), 503); // the handler was dropped
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_max_hold(max_hold))
    }

    /// Requires a grant to reach this number of replicas; otherwise the store counts as
    /// unavailable. Default: 0. See
    /// [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.with_policy(|policy| policy.acquire_options.replicas = replicas)
    }
}
