//! Settings of `LockLayer` for the lock mode and the request methods that take the lock.

use super::LockLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{MethodFilter, RequestKind},
    store::LockMode,
};

impl<R: RequestKind> LockLayer<R> {
    /// Locks requests with safe methods too. Default: GET, HEAD, OPTIONS and TRACE take no lock.
    #[must_use]
    pub fn all_methods(self) -> Self {
        self.with_policy(|policy| policy.methods = MethodFilter::All)
    }

    /// Locks only requests with these methods, safe ones included. `GET` includes `HEAD`. Default:
    /// every method except GET, HEAD, OPTIONS and TRACE.
    ///
    /// # Panics
    ///
    /// If the list is empty, or if a name is not a method or is a known method in lower case.
    /// Methods are case-sensitive, so such a name would match nothing and lock nothing. For methods
    /// from a configuration use [`try_methods`](Self::try_methods).
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        expect_setting(self.try_methods(methods))
    }

    /// Like [`methods`](Self::methods), for methods from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the list is empty, or if a name is not a method
    /// or is a known method in lower case.
    pub fn try_methods<M: AsRef<str>>(
        self,
        methods: impl IntoIterator<Item = M>,
    ) -> Result<Self, Error> {
        let methods = MethodFilter::try_listed("LockLayer", methods)?;
        Ok(self.with_policy(|policy| policy.methods = methods))
    }

    /// Lets readers share the lock: GET and HEAD acquire it shared, all other methods acquire it
    /// exclusively.
    ///
    /// OPTIONS and TRACE, which do not concern the state of the resource, take no lock unless
    /// [`all_methods`](Self::all_methods) is set. A request with a shared lock is never deferred.
    ///
    /// Layers with and without this setting exclude each other correctly, since a layer without it
    /// acquires exclusively. An exclusive layer inside a layer with the same key that holds the
    /// lock shared gets 500 and a log message.
    ///
    /// ```
    /// # use std::convert::Infallible;
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
    /// let lock = LockLayer::<PlainHttp>::by_header("order").read_write().store(&store);
    /// let service = lock.layer(handler);
    ///
    /// let _reader = store.lock(Key::header("order", b"7")).shared().acquire().await?;
    /// let get = Request::get("/order").header("order", "7").body(Body::default())?;
    /// assert_eq!(service.clone().oneshot(get).await?.status(), 200);
    /// let put = Request::put("/order").header("order", "7").body(Body::default())?;
    /// assert_eq!(service.oneshot(put).await?.status(), 409);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn read_write(self) -> Self {
        self.with_policy(|policy| {
            policy.read_write = true;
            policy.acquire_options.terms.mode = LockMode::Exclusive;
            if let MethodFilter::Unsafe = policy.methods {
                policy.methods = MethodFilter::ReadOrWrite;
            }
        })
    }

    /// Admits up to `max_holders` requests at once instead of one.
    ///
    /// - It replaces [`read_write`](Self::read_write), including its selection of methods, and is
    ///   replaced by it.
    /// - A layer without this setting acquires the same lock exclusively and waits for all permits.
    /// - A request under a permit is never deferred.
    /// - Inside a layer with the same key, a layer with fewer permits gets 500 and a log message,
    ///   because it would admit as many requests as the outer one.
    ///
    /// ```
    /// # use std::convert::Infallible;
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
    /// let lock = LockLayer::<PlainHttp>::by_header("printer").permits(2).store(&store);
    /// let service = lock.layer(handler);
    /// let request = || Request::post("/print").header("printer", "7").body(Body::default());
    ///
    /// let permit = || store.lock(Key::header("printer", b"7")).permits(2).acquire();
    /// let (_first, second) = (permit().await?, permit().await?);
    /// assert_eq!(service.clone().oneshot(request()?).await?.status(), 409);
    /// second.release().await;
    /// assert_eq!(service.oneshot(request()?).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If `max_holders` is 0. For a number from a configuration use
    /// [`try_permits`](Self::try_permits).
    #[must_use]
    pub fn permits(self, max_holders: u32) -> Self {
        expect_setting(self.try_permits(max_holders))
    }

    /// Like [`permits`](Self::permits), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `max_holders` is 0.
    pub fn try_permits(self, max_holders: u32) -> Result<Self, Error> {
        if max_holders == 0 {
            return Err(Error::setting(
                "LockLayer::permits: the number of permits must be at least 1",
            ));
        }
        Ok(self.with_policy(|policy| {
            policy.acquire_options.terms.mode = LockMode::Permits(max_holders);
            policy.read_write = false;
            if let MethodFilter::ReadOrWrite = policy.methods {
                policy.methods = MethodFilter::Unsafe;
            }
        }))
    }
}
