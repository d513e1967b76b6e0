//! Settings of `DeferLayer`: the requests that are deferred, and whose they are.

use std::{sync::Arc, time::Duration};

use super::defer_layer::{DeferLayer, MAX_LOCK_WAIT};
use crate::{
    clock::MAX_DURATION,
    defer::snapshot::ExtensionSnapshot,
    error::{Error, expect_setting},
    gate::{HttpRequestHead, MethodFilter, RequestKind, find_extension},
};

impl<R: RequestKind> DeferLayer<R> {
    /// Path of the status resource as clients see it, including the prefix of `Router::nest`,
    /// `web::scope` or a proxy. It becomes the `Location` of a 202; that a resource is mounted
    /// there is not checked. Default: `/deferred`.
    ///
    /// # Panics
    ///
    /// If the path is not in the form of a URL: without a query, and with other characters
    /// percent-encoded. For a path from a configuration use
    /// [`try_status_path`](Self::try_status_path).
    #[must_use]
    pub fn status_path(self, path: &str) -> Self {
        expect_setting(self.try_status_path(path))
    }

    /// Like [`status_path`](Self::status_path), for a path from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the path is not in the form of a URL.
    pub fn try_status_path(self, path: &str) -> Result<Self, Error> {
        let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
        if !is_path {
            return Err(Error::setting(format!(
                "DeferLayer::status_path: {path:?} is not a path such as /deferred; it is part of \
                 `Location`"
            )));
        }
        // The root adds no segment: `//id` would be another path.
        let path = path.trim_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(self.with_settings(|settings| settings.status_path = path))
    }

    /// Defers only requests with these methods. Default: all except the safe ones (GET, HEAD,
    /// OPTIONS, TRACE). Safe methods are never deferred, since a client that reads needs the
    /// response now.
    ///
    /// # Panics
    ///
    /// If the list is empty, or if one of the names is not a method or is a safe one.
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        let methods = MethodFilter::listed("DeferLayer", methods);
        let safe = ["GET", "HEAD", "OPTIONS", "TRACE"].iter().find(|safe| methods.matches(safe));
        assert!(safe.is_none(), "DeferLayer::methods: {safe:?} is safe, so it is never deferred");
        self.with_settings(|settings| settings.methods = methods)
    }

    /// Delivers a webhook when a deferred request has ended, with any outcome. The function returns
    /// the URL for a request as it was sent, or `None` for no webhook.
    ///
    /// The worker needs `.webhooks(..)`, of the feature `webhook`. See
    /// [`webhook`](crate::defer::webhook) for the payload and the permitted addresses.
    ///
    /// A URL that clients choose is a URL that attackers choose: take it from a header only if that
    /// is intended.
    ///
    /// ```
    /// # use lockgate::{defer::DeferLayer, middleware::PlainHttp};
    /// # fn main() -> Result<(), lockgate::Error> {
    /// let defer = DeferLayer::<PlainHttp>::new().webhook(|head| {
    ///     let is_refund = head.target.ends_with("/refund");
    ///     is_refund.then(|| "https://shop.example/hooks/refunds".to_owned())
    /// });
    /// # drop(defer);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn webhook(
        self,
        url: impl Fn(&HttpRequestHead) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| settings.webhook_url = Some(Arc::new(url)))
    }
}

// Conditions of deferral.
impl<R: RequestKind> DeferLayer<R> {
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

// Owner of a request, and snapshots of its extensions.
impl<R: RequestKind> DeferLayer<R> {
    /// Owner of a request: an account or a tenant. It scopes `Idempotency-Key`,
    /// [`coalesce`](Self::coalesce) and [`supersede`](Self::supersede), and
    /// [`DeferredRoutes::visible_to`](crate::defer::StatusResource::visible_to) compares viewers
    /// with it.
    ///
    /// Default: the identity of the snapshot that [`carry_identity`](Self::carry_identity) carries,
    /// or no owner.
    ///
    /// All requests without an owner share their keys, including those for which the function
    /// returns `None`. A client that sends another client's `Idempotency-Key` with the same request
    /// gets that client's job and response, and with
    /// [`idempotent_direct`](Self::idempotent_direct), where nothing may be compared, it gets them
    /// with any request. `supersede` supersedes any other request. Set an owner, and `visible_to`,
    /// if clients do not trust each other, also if their credentials are [kept](Self::keep_header).
    #[must_use]
    pub fn owner(
        self,
        owner: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| settings.owner = Some(Arc::new(owner)))
    }

    /// Stores this value of the request's extensions with the job, such as the user that an
    /// authentication has put there. A worker that
    /// [restores](crate::defer::DeferWorker::restore_extension) it puts it into the extensions of
    /// the run.
    ///
    /// A request with a snapshot and a credential is deferred without the credential. A request
    /// without the value is deferred without a snapshot.
    ///
    /// A snapshot does not identify the user: two snapshots of one user may differ, for example by
    /// a refreshed token. Idempotency keys and merges therefore need an owner: use
    /// [`carry_identity`](Self::carry_identity), [`owner`](Self::owner) or
    /// [`share_across_owners`](Self::share_across_owners). Without any of them a request with an
    /// `Idempotency-Key` gets 500, and a log message names the fix: the key of one user must not
    /// return the job of another one, and ignoring the key would run a retry twice.
    ///
    /// A request still runs if its user has lost the right to it in the meantime, unless
    /// [`DeferWorker::authorize`](crate::defer::DeferWorker::authorize) denies the run.
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if [`coalesce`](Self::coalesce),
    /// [`supersede`](Self::supersede) or [`idempotent_direct`](Self::idempotent_direct) is set and
    /// requests have no owner by any of the three settings above.
    #[must_use]
    pub fn carry_extension<T: ExtensionSnapshot>(self) -> Self {
        self.with_settings(|settings| {
            settings.snapshot_extractors.add(find_extension::<R, T>, None);
        })
    }

    /// Like [`carry_extension`](Self::carry_extension), and uses the identity of the value as the
    /// [`owner`](Self::owner) of the request if none is set.
    ///
    /// Example: `.carry_identity::<User>(|user| format!("user:{}", user.id))`.
    ///
    /// - The identity must be the same in all requests of a user, since retries are recognized by
    ///   it: an account number, not a token or another value that changes with a login.
    /// - No other owner may have the same identity, in any layer of the store. If layers carry
    ///   users and tenants, return `user:7` and `tenant:7`, not `7`.
    /// - Identities are compared as they are, also by
    ///   [`visible_to`](crate::defer::StatusResource::visible_to), and are stored unsealed.
    /// - A request with an empty identity is not merged with others.
    /// - A request without the value has no owner, and shares its keys with all such requests. If
    ///   it has a credential, [kept](Self::keep_header) or not, it belongs to some user: it is not
    ///   merged with others, and gets 500 if it has an `Idempotency-Key`, as with
    ///   `carry_extension`. The usual cause is an authentication inside this layer.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, Store, defer::DeferLayer, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let defer = DeferLayer::<PlainHttp>::new()
    ///     .carry_identity::<User>(|user| format!("user:{}", user.id));
    /// let service = defer.layer(lock.layer(handler));
    ///
    /// let _guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let request = Request::post("/refund").header("order", "7");
    /// let request = request.extension(User { id: 7 }); // by the authentication
    /// assert_eq!(service.oneshot(request.body(Body::default())?).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if two snapshots have an identity and no `owner` is
    /// set.
    #[must_use]
    pub fn carry_identity<T: ExtensionSnapshot>(
        self,
        identity: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        let identity = Box::new(identity);
        self.with_settings(|settings| {
            settings.snapshot_extractors.add(find_extension::<R, T>, Some(identity));
        })
    }

    /// Lets the requests of all users share idempotency keys and merges, although the layer
    /// [carries](Self::carry_extension) a snapshot. For clients that trust each other, such as
    /// services of one team.
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if an [`owner`](Self::owner) or an identity is set
    /// too.
    #[must_use]
    pub fn share_across_owners(self) -> Self {
        self.with_settings(|settings| settings.shared_by_all = true)
    }
}
