//! Settings of `DeferLayer`: the methods and the conditions under which requests are deferred.

use std::time::Duration;

use super::defer_layer::{DeferLayer, MAX_LOCK_WAIT};
use crate::{
    durations::MAX_DURATION,
    error::{Error, expect_setting},
    gate::{MethodFilter, RequestKind},
};

impl<R: RequestKind> DeferLayer<R> {
    /// Defers only requests with these methods. Default: all except the safe ones (GET, HEAD,
    /// OPTIONS, TRACE). Safe methods are never deferred, since a client that reads needs the
    /// response now.
    ///
    /// # Panics
    ///
    /// If the list is empty, or if one of the names is not a method or is a safe one. For methods
    /// from a configuration use [`try_methods`](Self::try_methods).
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        expect_setting(self.try_methods(methods))
    }

    /// Like [`methods`](Self::methods), for methods from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the list is empty, or if one of the names is not
    /// a method or is a safe one.
    pub fn try_methods<M: AsRef<str>>(
        self,
        methods: impl IntoIterator<Item = M>,
    ) -> Result<Self, Error> {
        let methods = MethodFilter::try_listed("DeferLayer", methods)?;
        let safe = ["GET", "HEAD", "OPTIONS", "TRACE"].iter().find(|safe| methods.matches(safe));
        if safe.is_some() {
            return Err(Error::setting(format!(
                "DeferLayer::methods: {safe:?} is safe, so it is never deferred"
            )));
        }
        Ok(self.with_settings(|settings| settings.methods = methods))
    }

    /// Time that a request waits for its lock before it is deferred. At most ten minutes. Default:
    /// no wait.
    ///
    /// Most locks are busy for milliseconds, so with a short wait most clients get their response
    /// at once and only the others have to poll for it. The `wait` of the `LockLayer` does not
    /// apply here. A client's `Prefer: wait=N` replaces this wait, within
    /// [`max_preferred_wait`](Self::max_preferred_wait).
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, Store, defer::DeferLayer, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let defer = DeferLayer::<PlainHttp>::new().wait_up_to(Duration::from_secs(2));
    /// let service = defer.layer(lock.layer(handler));
    ///
    /// let guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let request = Request::post("/refund").header("order", "7").body(Body::default())?;
    /// let response = tokio::spawn(service.oneshot(request)); // waits
    /// guard.release().await;
    /// assert_eq!(response.await??.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn wait_up_to(self, wait: Duration) -> Self {
        self.with_settings(|settings| settings.trigger.lock_wait = wait.min(MAX_DURATION))
    }

    /// Longest wait that a client gets by `Prefer: wait=N` (RFC 7240). `Preference-Applied` of the
    /// 202 contains the wait that was applied. At most ten minutes, as
    /// [`wait_up_to`](Self::wait_up_to). Default: 30 s, the usual timeout of proxies.
    ///
    /// Zero ignores the preference, and `wait_up_to` applies to all requests.
    #[must_use]
    pub fn max_preferred_wait(self, max: Duration) -> Self {
        self.with_settings(|settings| settings.trigger.max_wait = max.min(MAX_LOCK_WAIT))
    }

    /// Honors `Prefer: respond-async` (RFC 7240): such a request is accepted at once even if its
    /// lock is free, or after the wait of its `wait=N`. Default: the preference is ignored, since
    /// it defers even requests with a free lock.
    ///
    /// A request that cannot be deferred according to its head is handled as without the
    /// preference. If that shows later (a body of unknown length that is too long, a full queue),
    /// it gets the busy response.
    #[must_use]
    pub fn honor_respond_async(self) -> Self {
        self.with_settings(|settings| settings.trigger.respond_async = true)
    }

    /// Defers every request without trying its lock, for work that is only done in the background.
    /// A request that cannot be deferred does not run; it gets the busy response.
    ///
    /// A `LockLayer` that locks the request is required inside, since it determines the lock of the
    /// run. Its absence shows only when the request has passed: if a handler was reached without a
    /// lock, the response is replaced by 500, and a log message names the fix.
    #[must_use]
    pub fn defer_always(self) -> Self {
        self.with_settings(|settings| settings.trigger.defer_always = true)
    }

    /// Defers nothing while no worker is alive. Default: jobs wait until a worker starts.
    #[must_use]
    pub fn require_worker(self) -> Self {
        self.with_settings(|settings| settings.trigger.require_worker = true)
    }
}
