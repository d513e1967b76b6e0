//! Settings of `DeferLayer`: requests with an `Idempotency-Key`.

use std::time::Duration;

use super::defer_layer::DeferLayer;
use crate::{durations::MAX_DURATION, gate::RequestKind};

impl<R: RequestKind> DeferLayer<R> {
    /// Time for which an `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header) is stored,
    /// from acceptance. At least a second, at most a year. Default: one day, longer than clients
    /// retry.
    ///
    /// The key is stored longer in these cases:
    ///
    /// - while its request waits, for at most thirty days, or this time if that is longer
    /// - while the ended request is kept
    /// - if its request was merged into an earlier one ([`coalesce`](Self::coalesce)), as long as
    ///   that one's key; this applies to at most thirty merged keys, and further ones are stored
    ///   for this time alone
    ///
    /// If the key outlives the stored request, a retry gets 410 and does not run again.
    ///
    /// A key belongs to its owner, method, route and lock. The route is the pattern of the router,
    /// so processes share keys only if they spell it alike (`/orders/{id}` differs from
    /// `/orders/{id:[0-9]+}`) and if all of them apply the layer to the routes, or all around them.
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
    /// let defer = DeferLayer::<PlainHttp>::new().idempotency_ttl(Duration::from_secs(3600));
    /// let service = defer.layer(lock.layer(handler));
    ///
    /// let _guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let request = || {
    ///     let request = Request::post("/refund").header("order", "7");
    ///     request.header("idempotency-key", "\"8e03978e\"").body(Body::default())
    /// };
    /// let accepted = service.clone().oneshot(request()?).await?;
    /// let retried = service.oneshot(request()?).await?;
    /// assert_eq!(retried.status(), 202);
    /// assert_eq!(accepted.headers()["location"], retried.headers()["location"]); // one job
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn idempotency_ttl(self, ttl: Duration) -> Self {
        self.with_settings(|settings| {
            settings.idempotency.ttl = ttl.clamp(Duration::from_secs(1), MAX_DURATION);
        })
    }

    /// Applies `Idempotency-Key` also to requests that run directly: one key is one execution,
    /// deferred or not. Default: only deferred requests. It costs a direct request two calls to the
    /// store, and one more for each third of its lock's `lease` that it runs.
    ///
    /// **The run** has a task of its own (in actix-web a local one, on its thread), so it continues
    /// when its client disconnects. Its response is stored: a retry gets 202 with the `Location` of
    /// the status resource, which returns that response.
    ///
    /// - A client that disconnects before the run has started, while it waits for the lock, ends
    ///   it.
    /// - During the run a retry gets the busy response with `Retry-After`.
    /// - The run ends with its lock, according to [`OnLoss`](crate::OnLoss); without a client also
    ///   at `max_hold`.
    /// - [`max_direct_runs`](Self::max_direct_runs) limits such runs.
    ///   [`Store::wait_for_direct_runs`](crate::Store::wait_for_direct_runs) and
    ///   [`Store::shutdown`](crate::Store::shutdown) wait for them.
    ///
    /// **The outcome** is stored for [`idempotency_ttl`](Self::idempotency_ttl):
    ///
    /// | outcome of the run | retry of a POST or PATCH | retry of a PUT or DELETE |
    /// |---|---|---|
    /// | response other than below; also 409, 423 | that response | that response |
    /// | refused by an inner layer (see below) | runs | runs |
    /// | 401, 403 | runs, maybe with a new token | runs |
    /// | 408, 425, 429, 5xx, error, truncated response | is `dead`: `failed` | runs |
    /// | panic, timeout of an inner layer, lost lock | is `dead`: `stopped` | runs |
    /// | process crashed, or paused for a lease | is `dead`: `crashed` | runs |
    /// | request body truncated, and a response of 4xx or 5xx | runs | runs |
    ///
    /// `failed`, `stopped` and `crashed` are the beginnings of the reason, such as
    /// `failed, may have run`. The last column applies to all methods with
    /// [`retry_non_idempotent`](Self::retry_non_idempotent). With
    /// [`max_attempts`](Self::max_attempts) of 1 the middle column applies to all methods. The
    /// rules are those of a deferred run, except for 401 and 403, with which a deferred run is
    /// dead, since it never gets a new token.
    ///
    /// A `LockLayer` or `RateLimitLayer` inside refuses a request because of a busy lock, an
    /// exceeded quota or an unavailable store. A status such as 429 counts as a refusal only if one
    /// of these layers responded with it, since a handler may respond so after its work is done. A
    /// middleware that rebuilds the request, and loses its extensions, hides the refusals of the
    /// layers inside it: they count as responses of the handler.
    ///
    /// A crash is detected by the first retry after the lease of the run, which is the lease of its
    /// lock.
    ///
    /// A truncated body, of a client that disconnected during the upload, is an error to the
    /// handler that reads it. If the response is an error, the complete request was not executed,
    /// so a retry is not locked out. A handler that does part of its work before it has the whole
    /// body must tolerate doing that part twice.
    ///
    /// **The response:** a body of known length of up to
    /// [`direct_response_limit`](Self::direct_response_limit) is read before the head is sent. A
    /// body of unknown length is forwarded as it arrives, and is read to its end even if the client
    /// has disconnected, since the handler may work while it streams. A longer body is passed
    /// through: the key records that the request has run, its status, and that the body was not
    /// stored. Of `text/event-stream`, which has no end, the head is the outcome.
    ///
    /// It also works under several locks or a permit, where nothing is deferred, but not under a
    /// lock that is shared by a delegation (`LockLayer::trust_delegation`).
    ///
    /// **The fingerprint** of the request is computed while the handler reads the body; nothing is
    /// buffered. A retry with the same key and another body or target gets 422 after that. Nothing
    /// is compared, and the retry counts as the same request:
    ///
    /// - during the run
    /// - if the handler has not read all of the body
    /// - if the body is longer than [`body_limit`](Self::body_limit)
    /// - if the type of the body cannot be wrapped (see `LockLayer::body_read_timeout`)
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
    /// let service = DeferLayer::<PlainHttp>::new().idempotent_direct().layer(lock.layer(handler));
    ///
    /// let request = || {
    ///     let request = Request::post("/refund").header("order", "7");
    ///     request.header("idempotency-key", "\"8e03978e\"").body(Body::default())
    /// };
    /// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
    /// // A retry does not run; its `Location` leads to the response of the first request.
    /// assert_eq!(service.oneshot(request()?).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn idempotent_direct(self) -> Self {
        self.with_settings(|settings| settings.idempotency.idempotent_direct = true)
    }

    /// Most direct runs under [`idempotent_direct`](Self::idempotent_direct) at once in this
    /// process. All runs of one [`Store`](crate::Store) handle are counted together; each layer
    /// compares them with its own limit. Default: 1024; with the largest responses they take 64
    /// MiB, as bodies in the [`buffer_budget`](Self::buffer_budget) do.
    ///
    /// Beyond it a request is handled as if its lock were busy: it is deferred or gets the busy
    /// response.
    #[must_use]
    pub fn max_direct_runs(self, max_runs: usize) -> Self {
        self.with_settings(|settings| settings.idempotency.max_direct_runs = max_runs)
    }

    /// Most bytes of a response body that are stored for a direct run under
    /// [`idempotent_direct`](Self::idempotent_direct). Default: 64 KiB, as for a request, since
    /// most clients have received the response, and a day of responses is stored. A longer response
    /// reaches its client, but is not stored.
    #[must_use]
    pub fn direct_response_limit(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.idempotency.direct_response_limit = bytes)
    }
}
