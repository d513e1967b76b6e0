//! Settings of `LockLayer` for the loss of the lock, its release, and the read of the request body.

use std::time::Duration;

use super::LockLayer;
use crate::{
    gate::RequestKind,
    lock::release_settings::{HoldUntil, OnLoss},
};

impl<R: RequestKind> LockLayer<R> {
    /// Reaction to the loss of the lock while the handler runs. Default:
    /// [`OnLoss::Cancel`](crate::OnLoss), since a cancelled handler is better than two concurrent
    /// ones.
    ///
    /// If layers with the same key are nested, each of them reacts to the loss of the one lock. A
    /// deferred request that loses its lock is always abandoned.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{OnLoss, Store, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handler = service_fn(async |_: Request<Body>| {
    ///     tokio::time::sleep(Duration::from_millis(300)).await; // longer than `max_hold`
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let lock = LockLayer::<PlainHttp>::by_header("order").on_loss(OnLoss::Finish);
    /// let lock = lock.max_hold(Duration::from_millis(100)).store(&Store::memory());
    ///
    /// let request = Request::post("/refund").header("order", "7").body(Body::default())?;
    /// let response = lock.layer(handler).oneshot(request).await?;
    /// assert_eq!(response.status(), 200);
    /// assert_eq!(response.headers()["lock-lost"], "too-long");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.release_settings.on_loss = on_loss;
        self
    }

    /// End of the hold. Default: [`HoldUntil::Answered`](crate::HoldUntil), until the handler has
    /// responded. If layers with the same key are nested, the setting of the outer one applies.
    #[must_use]
    pub fn hold_until(mut self, hold_until: HoldUntil) -> Self {
        self.release_settings.hold_until = hold_until;
        self
    }

    /// Total time that a handler under the lock may wait for the request's body. Default: 5 s,
    /// since a slow client must not block the waiters of the lock; receive a body that takes longer
    /// before you take the lock.
    ///
    /// When the time is over, the handler is dropped and the response is 408.
    ///
    /// Only time counts in which the handler has asked for more of the body and none has arrived,
    /// and none after the end of the body was read. `Duration::MAX` disables the timeout. If layers
    /// with the same key are nested, the setting of the outer one applies.
    #[must_use]
    pub fn body_read_timeout(mut self, timeout: Duration) -> Self {
        self.release_settings.body_read_timeout = timeout;
        self
    }

    /// Releases the lock while the response is already on its way, which saves the response a round
    /// trip. Default: the response waits for the release.
    ///
    /// The cost:
    ///
    /// - A client that acts on the response at once may find the lock busy, and get 409 or wait for
    ///   it.
    /// - The response cannot report that the release failed or that the lock had been lost.
    #[must_use]
    pub fn release_in_background(mut self) -> Self {
        self.release_settings.release_in_background = true;
        self
    }
}
