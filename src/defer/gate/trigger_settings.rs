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

    /// Defers a request as soon as its lock is busy. The default; set it to say so, or to override
    /// a [`wait_up_to`](Self::wait_up_to) or [`background`](Self::background) of a shared layer.
    ///
    /// Of `when_busy`, `wait_up_to` and `background` the last one applies; a table of
    /// [`DeferLayer`] compares them.
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
    /// let service = DeferLayer::<PlainHttp>::new().when_busy().layer(lock.layer(handler));
    ///
    /// let request = || Request::post("/refund").header("order", "7").body(Body::default());
    /// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200); // the lock is free
    /// let _guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// assert_eq!(service.oneshot(request()?).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn when_busy(self) -> Self {
        self.with_settings(|settings| {
            settings.trigger.lock_wait = Duration::ZERO;
            settings.trigger.background = false;
        })
    }

    /// Time that a request waits for its lock before it is deferred. At most ten minutes. Default:
    /// no wait, as with [`when_busy`](Self::when_busy).
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
        self.with_settings(|settings| {
            if settings.trigger.background {
                warn_replaced_trigger("background()", "wait_up_to(..)");
            }
            settings.trigger.lock_wait = wait.min(MAX_DURATION);
            settings.trigger.background = false;
        })
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

    /// Defers a request if its client asks for it by `Prefer: respond-async` (RFC 7240), in
    /// addition to the other conditions: such a request is accepted at once even if its lock is
    /// free, or after the wait of its `wait=N`. Default: the preference is ignored, since it defers
    /// even requests with a free lock.
    ///
    /// A request that cannot be deferred according to its head is handled as without the
    /// preference. If that shows later (a body of unknown length that is too long, a full queue),
    /// it gets the busy response.
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
    /// let service = DeferLayer::<PlainHttp>::new().respond_async().layer(lock.layer(handler));
    ///
    /// let request = || Request::post("/refund").header("order", "7");
    /// let plain = request().body(Body::default())?;
    /// assert_eq!(service.clone().oneshot(plain).await?.status(), 200);
    /// let asked = request().header("prefer", "respond-async").body(Body::default())?;
    /// assert_eq!(service.oneshot(asked).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn respond_async(self) -> Self {
        self.with_settings(|settings| settings.trigger.respond_async = true)
    }

    /// Defers every request without trying its lock, for work that is only done in the background,
    /// such as an export that takes longer than the timeout of a proxy. A request that cannot be
    /// deferred does not run; it gets the busy response.
    ///
    /// Safe methods (GET, HEAD, OPTIONS, TRACE) are never deferred: they run at once. A warning is
    /// logged once for each layer if a GET passes before any request has met a lock.
    ///
    /// Of [`when_busy`](Self::when_busy), [`wait_up_to`](Self::wait_up_to) and `background` the
    /// last one applies. A warning is logged if `wait_up_to` and `background` are set on one layer;
    /// `when_busy` between them tells that this is meant. A client's `Prefer: wait=N` is ignored.
    ///
    /// A `LockLayer` that locks the request is required inside, since it determines the lock of the
    /// run. A layer cannot see what is inside it, so its absence shows in this order; each response
    /// is 500, and a log message names the fix:
    ///
    /// 1. If this process has created no `LockLayer` at all, no request runs. Create the layer with
    ///    the routes, and not while a request is handled.
    /// 2. Otherwise the first request of each method and route **runs at once, with its effects**,
    ///    if it meets no `LockLayer`. If its status is below 400, its response is replaced.
    /// 3. If that status was below 300, further requests of that method and route do not run. (They
    ///    run if the layer is around the router or there is none, since the route is then unknown;
    ///    and if a `LockLayer` saw the request and did not lock it, as by its method.)
    ///
    /// Send one request to each such route before you deploy it.
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
    /// let lock = LockLayer::<PlainHttp>::by_header("account").store(&store);
    /// let service = DeferLayer::<PlainHttp>::new().background().layer(lock.layer(handler));
    ///
    /// let request = Request::post("/export").header("account", "7").body(Body::default())?;
    /// assert_eq!(service.oneshot(request).await?.status(), 202); // although the lock is free
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn background(self) -> Self {
        self.with_settings(|settings| {
            if !settings.trigger.lock_wait.is_zero() {
                warn_replaced_trigger("wait_up_to(..)", "background()");
            }
            settings.trigger.background = true;
        })
    }

    /// Defers nothing while no worker is alive. Default: jobs wait until a worker starts.
    #[must_use]
    pub fn require_worker(self) -> Self {
        self.with_settings(|settings| settings.trigger.require_worker = true)
    }
}

/// Warns of two settings of which only the last one applies. A layer that is built in each worker
/// thread, or for each application of a test, would repeat it.
fn warn_replaced_trigger(replaced: &'static str, applied: &'static str) {
    crate::throttle::throttled!(
        warn,
        layer = "DeferLayer",
        replaced,
        applied,
        "two settings exclude each other, and the last one applies: remove one of them, or call \
         .when_busy() between them if a copy of the layer is to replace it"
    );
}
