//! Settings of `DeferLayer` for the runs of a deferred request: attempts and retries, delay and
//! expiry.

use std::time::Duration;

use super::defer_layer::DeferLayer;
use crate::{durations::MAX_DURATION, gate::RequestKind, store::OnFailure};

impl<R: RequestKind> DeferLayer<R> {
    /// Most runs of a PUT or DELETE, at least 1. Default: 5; with the default backoff a request
    /// survives an outage of some seconds and blocks its resource for no longer.
    ///
    /// Requests with other methods run once, since a failed run may have done its work; see
    /// [`retry_non_idempotent`](Self::retry_non_idempotent).
    ///
    /// ```
    /// # use lockgate::{OnFailure, defer::DeferLayer, middleware::PlainHttp};
    /// // A PUT that fails is retried nine times; later requests overtake it meanwhile.
    /// let defer = DeferLayer::<PlainHttp>::new().max_attempts(10).on_failure(OnFailure::Skip);
    /// # drop(defer);
    /// ```
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with_settings(|settings| settings.run.max_attempts = attempts.max(1))
    }

    /// Retries requests with any method after a failure or a crash, POST and PATCH too, and also
    /// those that ran directly under [`idempotent_direct`](Self::idempotent_direct). For handlers
    /// that tolerate repeated runs, for example by checking the `Idempotency-Key` or the fence.
    #[must_use]
    pub fn retry_non_idempotent(self) -> Self {
        self.with_settings(|settings| settings.run.retry_unsafe = true)
    }

    /// Time from acceptance before which a deferred request does not run. It enters its queue after
    /// that, in the order of acceptance. At most a year. Default: it runs as soon as it is first in
    /// its queue.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, defer::DeferLayer, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let one_hour = Duration::from_secs(3600);
    /// let defer = DeferLayer::<PlainHttp>::new().background().delay(one_hour);
    /// let service = defer.layer(lock.layer(handler));
    ///
    /// // The lock is free, but the request runs in an hour.
    /// let request = Request::post("/remind").header("order", "7").body(Body::default())?;
    /// assert_eq!(service.oneshot(request).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.with_settings(|settings| settings.run.delay = delay.min(MAX_DURATION))
    }

    /// Time from acceptance after which a request that has not started is `expired` and never runs.
    /// A run in progress is not interrupted, but it is not repeated after that time. At most a
    /// year. Default: no expiry.
    #[must_use]
    pub fn expires_after(self, deadline: Duration) -> Self {
        self.with_settings(|settings| settings.run.deadline = Some(deadline.min(MAX_DURATION)))
    }

    /// Handling of later requests for a resource while one waits for its retry. Default:
    /// [`OnFailure::Block`](crate::OnFailure), they wait too, so that the order is kept. Direct
    /// requests never wait for a retry.
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.with_settings(|settings| settings.run.on_failure = on_failure)
    }
}
