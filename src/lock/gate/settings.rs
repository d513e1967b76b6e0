//! Settings of `LockLayer`: the lock's name and mode, its requests, and the busy response.

use std::time::Duration;

use super::LockLayer;
use crate::{
    gate::{MethodFilter, RequestKind},
    key::Key,
    lock::{
        acquire_options::MAX_WAIT, delegation::SharedSecret, outcome::BusyStatus,
        policy::BusyStrategy, retry::LockRetry,
    },
    outage::LockOutage,
    store::{LockMode, Store},
};

// The lock's name and mode.
impl<R: RequestKind> LockLayer<R> {
    /// Separates keys of one kind: with scopes, `/orders/7` and `/users/7` are two locks.
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        self.with_policy(|policy| policy.scope = Some(scope.to_owned()))
    }

    /// Names the lock by `name` instead of by the parameter or header, so that `/orders/{id}` and
    /// `/payments/{order}` can share a lock: see [`Key::named`](crate::Key::named).
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with_policy(|policy| policy.name = Some(name.to_owned()))
    }

    /// Maps all keys of this kind, name and scope onto `n` locks.
    ///
    /// The store then has fewer locks, but unrelated resources sometimes wait for each other. All
    /// layers that have to exclude each other need the same number: see
    /// [`Key::stripe`](crate::Key::stripe).
    ///
    /// # Panics
    ///
    /// If `n` is not within 1 to 65,536.
    #[must_use]
    pub fn stripes(self, n: u32) -> Self {
        // Panics now instead of at the first request.
        let _ = Key::custom("").stripe(n);
        self.with_policy(|policy| policy.stripes = Some(n))
    }

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
    /// Methods are case-sensitive, so such a name would match nothing and lock nothing.
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        let methods = MethodFilter::listed("LockLayer", methods);
        self.with_policy(|policy| policy.methods = methods)
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

    /// Admits up to `most` requests at once instead of one.
    ///
    /// - It replaces [`read_write`](Self::read_write), including its selection of methods, and is
    ///   replaced by it.
    /// - A layer without this setting acquires the same lock exclusively and waits for all permits.
    /// - A request under a permit is never deferred.
    /// - Inside a layer with the same key, a layer with fewer permits gets 500 and a log message,
    ///   because it would admit as many requests as the outer one.
    ///
    /// # Panics
    ///
    /// If `most` is 0.
    #[must_use]
    pub fn permits(self, most: u32) -> Self {
        assert!(most > 0, "LockLayer::permits: the number of permits must be at least 1");
        self.with_policy(|policy| {
            policy.acquire_options.terms.mode = LockMode::Permits(most);
            policy.read_write = false;
            if let MethodFilter::ReadOrWrite = policy.methods {
                policy.methods = MethodFilter::Unsafe;
            }
        })
    }
}

// A busy lock.
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

    /// Asks again up to `times` times, `every` apart (at least 10 ms), before the busy response.
    /// The first attempt is not counted: `retry(3, every)` asks at most four times and waits for at
    /// most three pauses, or for ten minutes if that is less.
    ///
    /// A request that retries has no queue entry: requests that [wait](Self::wait) are served
    /// first, and among requests that retry the order is random. Of `reject`, `wait` and `retry`,
    /// the last one set applies. Inside a `DeferLayer` there are no retries; the request is
    /// deferred.
    #[must_use]
    pub fn retry(self, times: u32, every: Duration) -> Self {
        self.with_policy(|policy| {
            policy.busy_strategy = BusyStrategy::Retry(LockRetry::new(times, every));
        })
    }

    /// Status of the busy response, also after a wait. Default:
    /// [`BusyStatus::Conflict`](crate::BusyStatus), 409.
    #[must_use]
    pub fn busy_status(self, status: BusyStatus) -> Self {
        self.with_policy(|policy| policy.busy_status = status)
    }
}

// The store, and other services.
impl<R: RequestKind> LockLayer<R> {
    /// Uses this store instead of the one that the request provides.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.with_policy(|policy| policy.store = Some(store.clone()))
    }

    /// Reaction to an unavailable store. Default: [`LockOutage::Refuse`](crate::LockOutage), since
    /// two concurrent changes are worse than none.
    #[must_use]
    pub fn on_outage(self, outage: LockOutage) -> Self {
        self.with_policy(|policy| policy.outage = outage)
    }

    /// Sets this request header to the fence, for upstream services to which a handler forwards the
    /// request's headers. The fences of several locks are joined by commas, in the order of the
    /// locks.
    ///
    /// A header of this name that a client sends is removed from every request that passes this
    /// layer, including requests that take no lock.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name.
    #[must_use]
    pub fn fence_header(self, name: &str) -> Self {
        let valid = http::HeaderName::from_bytes(name.as_bytes());
        assert!(valid.is_ok(), "LockLayer::fence_header: {name:?} is not a header name");
        self.with_policy(|policy| policy.fence_header = Some(name.to_ascii_lowercase()))
    }

    /// Trusts delegations that are signed with this secret: a request from a caller that holds the
    /// lock runs under it, instead of waiting for its caller. Default: no delegation is trusted.
    ///
    /// Several calls add secrets, so that secrets can be rotated.
    ///
    /// The caller signs with [`HeldLock::delegation_header`](crate::HeldLock::delegation_header)
    /// and sends the header `Lockgate-Held`. This layer removes the header from the request that
    /// the handler sees, trusted or not. It also removes `Lockgate-Replay`, which marks a request
    /// as the run of a deferred one, unless a trusted delegation came with it; the handler can then
    /// verify it.
    ///
    /// A delegation ends at the validity time that the caller knew when it signed. It is not
    /// renewed, so the lock counts as lost here after that time, and every reader of the header can
    /// use it until then.
    ///
    /// A delegation is valid for locks of the same server, database and namespace, independent of
    /// the address by which each service reaches them. A server that was started from a copy of
    /// another one's data counts as the same server: delete the key `meta` of the namespace in the
    /// copy before you use it.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, SharedSecret, Store, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let secret = SharedSecret::new("at least 32 random bytes from a secret store");
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").trust_delegation(&secret);
    /// let service = lock.store(&store).layer(handler);
    ///
    /// // The caller holds the lock, signs, and sends the header with its call.
    /// let guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let signed = guard.held_lock().delegation_header(&store, &secret);
    /// let (name, value) = signed.ok_or("the lock was lost")?;
    /// let call = Request::post("/refund").header("order", "7").header(name, value);
    /// assert_eq!(service.oneshot(call.body(Body::default())?).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn trust_delegation(self, secret: &SharedSecret) -> Self {
        self.with_policy(|policy| policy.trusted_secrets.push(secret.clone()))
    }
}
