//! `DeferLayer`: its constructor, and all settings except those of extension snapshots.

/// Defines `DeferLayer`, for `__define_defer`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer_layer {
    ($native:ty) => {
        /// Accepts requests for a busy resource: 202 now, and one run later, in the order of
        /// acceptance.
        ///
        /// See [`lockgate::defer`](::lockgate::defer) for the handling of a request, and the crate
        /// documentation for an example. Put it outside the `LockLayer`. Jobs are stored in that
        /// layer's store, beside its lock.
        ///
        /// A request that cannot be deferred gets the busy response of the `LockLayer`, with its
        /// `Retry-After`. Reasons:
        ///
        /// - a body that is too long, or a full queue
        /// - an upgrade
        /// - a credential that may not be stored
        /// - a shared lock, a permit, or several keys
        #[derive(Debug, Clone, Default)]
        pub struct DeferLayer {
            pub(crate) gate: ::lockgate::defer::DeferGate<$native>,
        }

        impl DeferLayer {
            /// Defers requests with unsafe methods and bodies of up to 64 KiB, as soon as their
            /// lock is busy.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Path of the status resource as clients see it, including the prefix of
            /// `Router::nest`, `web::scope` or a proxy. It becomes the `Location` of a 202; that a
            /// resource is mounted there is not checked. Default: `/deferred`.
            ///
            /// # Panics
            ///
            /// If the path is not in the form of a URL: without a query, and with other characters
            /// percent-encoded.
            #[must_use]
            pub fn status_path(self, path: &str) -> Self {
                Self { gate: self.gate.status_path(path) }
            }

            /// Defers only requests with these methods. Default: all except the safe ones (GET,
            /// HEAD, OPTIONS, TRACE). Safe methods are never deferred, since a client that reads
            /// needs the response now.
            ///
            /// # Panics
            ///
            /// If the list is empty, or if one of the names is not a method or is a safe one.
            #[must_use]
            pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
                Self { gate: self.gate.methods(methods) }
            }

            /// Delivers a webhook when a deferred request has ended, with any outcome. The function
            /// returns the URL for a request as it was sent, or `None` for no webhook.
            ///
            /// The worker needs `.webhooks(..)`, of the feature `webhook`. See
            /// [`lockgate::defer::webhook`](::lockgate::defer::webhook) for the payload and the
            /// permitted addresses.
            ///
            /// A URL that clients choose is a URL that attackers choose: take it from a header only
            /// if that is intended.
            #[must_use]
            pub fn webhook(
                self,
                url: impl Fn(
                    &::lockgate::gate::HttpRequestHead,
                ) -> ::std::option::Option<::std::string::String>
                + Send
                + Sync
                + 'static,
            ) -> Self {
                Self { gate: self.gate.webhook(url) }
            }

            /// Owner of a request: an account or a tenant. It scopes `Idempotency-Key`,
            /// [`coalesce`](Self::coalesce) and [`supersede`](Self::supersede), and
            /// [`DeferredRoutes::visible_to`] compares viewers with it.
            ///
            /// Default: the identity of the snapshot that [`carry_identity`](Self::carry_identity)
            /// carries, or no owner.
            ///
            /// All requests without an owner share their keys, including those for which the
            /// function returns `None`. A client that sends another client's `Idempotency-Key` with
            /// the same request gets that client's job and response, and with
            /// [`idempotent_direct`](Self::idempotent_direct), where nothing may be compared, it
            /// gets them with any request. `supersede` supersedes any other request. Set an owner,
            /// and `visible_to`, if clients do not trust each other, also if their credentials are
            /// [kept](Self::keep_header).
            #[must_use]
            pub fn owner(
                self,
                owner: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.owner(owner) }
            }
        }

        // Conditions of deferral.
        impl DeferLayer {
            /// Time that a request waits for its lock before it is deferred. At most ten minutes.
            /// Default: no wait.
            ///
            /// Most locks are busy for milliseconds, so with a short wait most clients get their
            /// response at once and only the others have to poll for it. The `wait` of the
            /// `LockLayer` does not apply here. A client's `Prefer: wait=N` replaces this wait,
            /// within [`max_preferred_wait`](Self::max_preferred_wait).
            #[must_use]
            pub fn wait_up_to(self, wait: ::std::time::Duration) -> Self {
                Self { gate: self.gate.wait_up_to(wait) }
            }

            /// Longest wait that a client gets by `Prefer: wait=N` (RFC 7240). `Preference-Applied`
            /// of the 202 contains the wait that was applied. At most ten minutes, as
            /// [`wait_up_to`](Self::wait_up_to). Default: 30 s, the usual timeout of proxies.
            ///
            /// Zero ignores the preference, and `wait_up_to` applies to all requests.
            #[must_use]
            pub fn max_preferred_wait(self, max: ::std::time::Duration) -> Self {
                Self { gate: self.gate.max_preferred_wait(max) }
            }

            /// Honors `Prefer: respond-async` (RFC 7240): such a request is accepted at once even
            /// if its lock is free, or after the wait of its `wait=N`. Default: the preference is
            /// ignored, since it defers even requests with a free lock.
            ///
            /// A request that cannot be deferred according to its head is handled as without the
            /// preference. If that shows later (a body of unknown length that is too long, a full
            /// queue), it gets the busy response.
            #[must_use]
            pub fn honor_respond_async(self) -> Self {
                Self { gate: self.gate.honor_respond_async() }
            }

            /// Defers every request without trying its lock, for work that is only done in the
            /// background. A request that cannot be deferred does not run; it gets the busy
            /// response.
            ///
            /// A `LockLayer` that locks the request is required inside, since it determines the
            /// lock of the run. Its absence shows only when the request has passed: if a handler
            /// was reached without a lock, the response is replaced by 500, and a log message names
            /// the fix.
            #[must_use]
            pub fn defer_always(self) -> Self {
                Self { gate: self.gate.defer_always() }
            }

            /// Defers nothing while no worker is alive. Default: jobs wait until a worker starts.
            #[must_use]
            pub fn require_worker(self) -> Self {
                Self { gate: self.gate.require_worker() }
            }
        }

        // Stored parts of a request, and their limits.
        impl DeferLayer {
            /// Most bytes of a body; a request with a longer one gets the busy response. Default:
            /// 64 KiB, enough for a form or a document; files do not belong in Redis.
            ///
            /// A body is read only after its lock was found busy. It is refused before that if the
            /// client declares a longer one.
            ///
            /// Body and head together have to fit into half of the
            /// [`buffer_budget`](Self::buffer_budget), the share of a single client; a longer
            /// request is never deferred. If the two limits allow more than that, a warning is
            /// logged when the layer is applied to a service.
            #[must_use]
            pub fn body_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.body_limit(bytes) }
            }

            /// Most bytes of the stored head: names and values of its headers, path, query and
            /// [owner](Self::owner), without headers that are [not stored](Self::keep_header). A
            /// request with a longer head gets the busy response.
            ///
            /// Default: 16 KiB, which is the limit of common servers and proxies, and a quarter of
            /// the longest body. Without a limit a client could fill the queue of a resource with a
            /// few requests, since hyper admits heads of 400 KiB. The head counts toward
            /// [`max_resource_bytes`](Self::max_resource_bytes) and the other limits of bytes, as
            /// the body does.
            #[must_use]
            pub fn head_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.head_limit(bytes) }
            }

            /// Most bytes of heads and bodies of all requests that are being read and stored in
            /// this process. All `DeferLayer`s share the memory; each layer compares it with its
            /// own limit. Default: 64 MiB. Beyond it a request gets the busy response; it does not
            /// wait for memory.
            ///
            /// The bytes that have arrived of a body are reserved, and 8 KiB for its next chunk,
            /// independent of its `Content-Length`. A [client](Self::client_address) gets at most
            /// as much as it leaves free: half of the budget if it is alone, a third if two clients
            /// take that much. One client therefore cannot exclude the bodies of others.
            #[must_use]
            pub fn buffer_budget(self, bytes: usize) -> Self {
                Self { gate: self.gate.buffer_budget(bytes) }
            }

            /// Client to which a share of the [`buffer_budget`](Self::buffer_budget) belongs.
            /// Default: the peer's address, IPv6 by /64 networks.
            ///
            /// Behind a proxy all clients would share the proxy's share, so configure it here as
            /// for `by_client`. Requests without a known address have one share together.
            ///
            /// Example: `.client_address(ClientAddress::behind_proxies(["10.0.0.0/8"]))`.
            #[must_use]
            pub fn client_address(self, client: ::lockgate::ClientAddress) -> Self {
                Self { gate: self.gate.client_address(client) }
            }

            /// Time for the arrival of a request's body, from when its lock was found busy. A
            /// slower request gets the busy response, and its part of the
            /// [`buffer_budget`](Self::buffer_budget) is freed. Default: 10 s, twice the time of 64
            /// KiB over a poor mobile link.
            #[must_use]
            pub fn body_read_timeout(self, time: ::std::time::Duration) -> Self {
                Self { gate: self.gate.body_read_timeout(time) }
            }

            /// Stores a header that is dropped by default because it is a credential.
            ///
            /// Without this setting, a request with a credential is deferred only if the layer
            /// [carries](Self::carry_extension) its user; a warning is logged once for each header.
            /// A stored credential stays in the store while the request waits, and the run presents
            /// it as it was, so it may have expired by then. It does not identify an
            /// [owner](Self::owner): if the layer carries a snapshot and the request has none, its
            /// `Idempotency-Key` gets 500.
            ///
            /// Credentials are, in any case:
            ///
            /// - `Authorization`, `Proxy-Authorization`, and all names that end with
            ///   `-Authorization`, which are copies by proxies
            /// - `Cookie`
            /// - `Api-Key`, `ApiKey`, `Api-Token`, `Auth-Key`, `Access-Key`, `Secret-Key`,
            ///   `Client-Secret`, `Auth-Token`, `Authentication-Token`, `Authorization-Token`,
            ///   `Access-Token`, `Refresh-Token`, `Id-Token`, `Bearer-Token`, `Session-Token`,
            ///   `User-Token`, `Subject-Token`, `Service-Token`, `Storage-Token`, `Jwt`,
            ///   `Jwt-Token` and `Jwt-Assertion`, and all names that end with a hyphen and one of
            ///   these, such as `X-Api-Key` and `X-Forwarded-Access-Token`
            /// - `X-Token`
            /// - `X-Amz-Security-Token` and `X-Amzn-Oidc-*` of AWS, `X-Ms-Token-*`,
            ///   `X-Ms-Authorization-Auxiliary`, `X-Functions-Key` and `Ocp-Apim-Subscription-Key`
            ///   of Azure, `X-RapidApi-Key`
            /// - `Private-Token`, `Job-Token`, `Deploy-Token` and `X-Gitlab-Token` of GitLab,
            ///   `X-Vault-Token` and `X-Consul-Token` of HashiCorp
            /// - the headers of [`credential_header`](Self::credential_header)
            ///
            /// CSRF tokens are stored, since they are useless without the cookie.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn keep_header(self, name: &str) -> Self {
                Self { gate: self.gate.keep_header(name) }
            }

            /// Declares a header, such as `X-Pass`, as a credential, like `Authorization` and the
            /// other headers that [`keep_header`](Self::keep_header) lists. It is not stored, and a
            /// request with it is deferred only if the layer [carries](Self::carry_extension) its
            /// user or the header is kept. Without this setting the header is stored with the
            /// request.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn credential_header(self, name: &str) -> Self {
                Self { gate: self.gate.credential_header(name) }
            }

            /// Most requests that wait for one resource; beyond it requests get the busy response.
            /// Default: 1000; at a tenth of a second each, the last one waits for nearly two
            /// minutes.
            ///
            /// An owner and the shard of the resource have limits of their own,
            /// [`max_owner_jobs`](Self::max_owner_jobs) and
            /// [`max_queue_jobs`](Self::max_queue_jobs): to raise this limit, raise those too.
            #[must_use]
            pub fn max_resource_jobs(self, per_resource: u64) -> Self {
                Self { gate: self.gate.max_resource_jobs(per_resource) }
            }

            /// Most bytes of the requests that wait for one resource, heads and bodies; beyond it
            /// requests get the busy response. Default: 8 MiB, which is 127 bodies of the largest
            /// size with their heads, and half of the limit of a shard.
            ///
            /// [`max_owner_bytes`](Self::max_owner_bytes) and
            /// [`max_queue_bytes`](Self::max_queue_bytes) bound it further, as in
            /// [`max_resource_jobs`](Self::max_resource_jobs).
            #[must_use]
            pub fn max_resource_bytes(self, per_resource: u64) -> Self {
                Self { gate: self.gate.max_resource_bytes(per_resource) }
            }

            /// Most requests that wait in the whole queue, which is the store's namespace; beyond
            /// it requests get the busy response. Default: 100,000.
            ///
            /// Each of the 64 shards counts its own requests and has a 64th of the limit, rounded
            /// up (1,563). The total may therefore exceed the limit by up to 63, which matters for
            /// a small one, and a resource may reach the limit of its shard, which it shares with
            /// others, long before. For an exact limit of one resource use
            /// [`max_resource_jobs`](Self::max_resource_jobs).
            ///
            /// A quarter of each shard is reserved for requests for a resource with fewer than 4
            /// requests, from an [`owner`](Self::owner) with fewer than 16 in that shard; half of
            /// the reserve is only for requests with an owner.
            ///
            /// The name of a resource determines its shard, so a client can choose names that fill
            /// one shard. With owners it cannot exclude other owners that way. Requests without an
            /// owner cannot be distinguished, so such a client can exclude them if it uses as many
            /// resources. If there are no accounts, an owner by client address helps. A shard for
            /// fewer than 64 requests (4,033 in total) has no reserve.
            #[must_use]
            pub fn max_queue_jobs(self, jobs: u64) -> Self {
                Self { gate: self.gate.max_queue_jobs(jobs) }
            }

            /// Most bytes of the whole queue: requests that wait or run, and for each of them its
            /// webhook. Default: 1 GiB, which is 16 MiB for each shard.
            ///
            /// Counted as in [`max_queue_jobs`](Self::max_queue_jobs), with the same reserve. The
            /// reserve is for a resource with at most a 64th of the shard's bytes, for an owner
            /// with at most a 16th, and for the first request of either. A shard for less than 1
            /// MiB (64 MiB in total) has no reserve.
            #[must_use]
            pub fn max_queue_bytes(self, bytes: u64) -> Self {
                Self { gate: self.gate.max_queue_bytes(bytes) }
            }

            /// Most bytes of ended requests, so that many or large results do not fill the server
            /// before their retention ends. The limit applies to finished requests and to dead
            /// letters separately. It includes half a KiB for the metadata of each of them, and the
            /// responses that [`idempotent_direct`](Self::idempotent_direct) stores. Default: 1
            /// GiB, as much as may wait.
            ///
            /// Beyond it responses are evicted and counted as trimmed in
            /// [`DeferStats`](::lockgate::defer::DeferStats): the oldest one of the same
            /// [`owner`](Self::owner) if that has more than an equal share, otherwise of the owner
            /// with the most bytes. Requests without an owner count as one owner. An evicted
            /// request leaves a tombstone of about 300 bytes for the rest of its retention, for the
            /// last 16,384 of one owner in each of 64 shards. Its status is 410, and a retry with
            /// its `Idempotency-Key` does not run again.
            ///
            /// Counted as in [`max_queue_jobs`](Self::max_queue_jobs). The limit belongs to the
            /// queue, so set the same number in all of its layers; the number of the latest request
            /// applies.
            #[must_use]
            pub fn max_ended_bytes(self, bytes: u64) -> Self {
                Self { gate: self.gate.max_ended_bytes(bytes) }
            }

            /// Most `Idempotency-Key`s that the whole queue stores for one [`owner`](Self::owner);
            /// requests without an owner count as one owner. Beyond it a request with a new key
            /// gets 429 and does not run until an older key expires, since a key that was forgotten
            /// early would let a retry run twice.
            ///
            /// Default: 1,048,576, which is a dozen requests a second for a day. At about 350 bytes
            /// each they take 5 MiB of a shard, a third of its [responses](Self::max_ended_bytes).
            ///
            /// Counted as in [`max_queue_jobs`](Self::max_queue_jobs): all keys of one resource are
            /// in its shard, which has a 64th of the limit (16,384).
            #[must_use]
            pub fn max_idempotency_keys(self, keys: u64) -> Self {
                Self { gate: self.gate.max_idempotency_keys(keys) }
            }

            /// Requires an accepted request to reach this number of replicas; otherwise the
            /// response is 503 with the `Location`, as for every request that may not have been
            /// stored. Default: 0. It costs one more round trip for each deferred request (`WAIT`).
            ///
            /// The request is not withdrawn in that case, since a worker may already run it. A
            /// retry with the same `Idempotency-Key` finds it, under the same condition. As with
            /// [`LockLayer::min_replicas`](::lockgate::lock::LockRequest::min_replicas), a failover
            /// may still promote a replica without the request, unless all replicas are required.
            #[must_use]
            pub fn min_replicas(self, replicas: u32) -> Self {
                Self { gate: self.gate.min_replicas(replicas) }
            }

            /// Most requests of one [`owner`](Self::owner) that wait in the whole queue, including
            /// its undelivered [webhooks](Self::webhook); beyond it requests get the busy response.
            /// Default: 64,000. That is less than two thirds of the queue, so no owner excludes all
            /// others, and 1000 in each shard, which is the queue of one resource.
            ///
            /// Requests without an owner have no such limit, but are limited to seven eighths of
            /// each shard ([`max_queue_jobs`](Self::max_queue_jobs)).
            ///
            /// Counted as in `max_queue_jobs`, with a 64th of the limit in each shard, rounded up.
            /// An owner with requests for few resources reaches it long before, and an owner with
            /// requests for many resources may have 64 where the limit is 2.
            #[must_use]
            pub fn max_owner_jobs(self, jobs: u64) -> Self {
                Self { gate: self.gate.max_owner_jobs(jobs) }
            }

            /// Most bytes of the waiting requests of one [`owner`](Self::owner). Default: 512 MiB,
            /// which is 8 MiB for each shard, as much as one resource takes. Counted as in
            /// [`max_owner_jobs`](Self::max_owner_jobs).
            #[must_use]
            pub fn max_owner_bytes(self, bytes: u64) -> Self {
                Self { gate: self.gate.max_owner_bytes(bytes) }
            }
        }

        // Runs of a deferred request.
        impl DeferLayer {
            /// Most runs of a PUT or DELETE, at least 1. Default: 5; with the default backoff a
            /// request survives an outage of some seconds and blocks its resource for no longer.
            ///
            /// Requests with other methods run once, since a failed run may have done its work; see
            /// [`retry_non_idempotent`](Self::retry_non_idempotent).
            #[must_use]
            pub fn max_attempts(self, attempts: u32) -> Self {
                Self { gate: self.gate.max_attempts(attempts) }
            }

            /// Retries requests with any method after a failure or a crash, POST and PATCH too, and
            /// also those that ran directly under [`idempotent_direct`](Self::idempotent_direct).
            /// For handlers that tolerate repeated runs, for example by checking the
            /// `Idempotency-Key` or the fence.
            #[must_use]
            pub fn retry_non_idempotent(self) -> Self {
                Self { gate: self.gate.retry_non_idempotent() }
            }

            /// Time from acceptance before which a deferred request does not run. It enters its
            /// queue after that, in the order of acceptance. At most a year. Default: it runs as
            /// soon as it is first in its queue.
            #[must_use]
            pub fn delay(self, delay: ::std::time::Duration) -> Self {
                Self { gate: self.gate.delay(delay) }
            }

            /// Time from acceptance after which a request that has not started is `expired` and
            /// never runs. A run in progress is not interrupted, but it is not repeated after that
            /// time. At most a year. Default: no expiry.
            #[must_use]
            pub fn expires_after(self, deadline: ::std::time::Duration) -> Self {
                Self { gate: self.gate.expires_after(deadline) }
            }

            /// Handling of later requests for a resource while one waits for its retry. Default:
            /// [`OnFailure::Block`](::lockgate::OnFailure), they wait too, so that the order is
            /// kept. Direct requests never wait for a retry.
            #[must_use]
            pub fn on_failure(self, on_failure: ::lockgate::OnFailure) -> Self {
                Self { gate: self.gate.on_failure(on_failure) }
            }

            /// Merges requests into the first: while a request waits, another one with the same
            /// owner, method and target is not stored, and its response refers to the waiting one.
            /// Its body may differ.
            ///
            /// - Only the [webhook](Self::webhook) of the first request is delivered, if it has
            ///   one.
            /// - It applies to PUT and DELETE; requests with other methods are all stored.
            /// - A request that has waited for a day longer than its [`delay`](Self::delay),
            ///   because no worker is alive, no longer absorbs later ones.
            #[must_use]
            pub fn coalesce(self) -> Self {
                Self { gate: self.gate.coalesce() }
            }

            /// Merges requests into the last: while a request waits, another one with the same
            /// owner, method and target supersedes it. The first is `cancelled`, and the new one
            /// joins the end of the queue. It applies to PUT and DELETE, and for as long as
            /// [`coalesce`](Self::coalesce).
            ///
            /// A request that is superseded again and again does not run until that stops: for
            /// example a document saved every second, behind a queue that takes two, or with a
            /// [`delay`](Self::delay) of two. The new request cannot take the position of the first
            /// one, which precedes requests that the new one may not overtake. If runs in between
            /// are needed, use `coalesce`, which keeps the position of the first request; with a
            /// `delay` it runs once in that time.
            #[must_use]
            pub fn supersede(self) -> Self {
                Self { gate: self.gate.supersede() }
            }
        }

        // Requests with an `Idempotency-Key`.
        impl DeferLayer {
            /// Time for which an `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header) is
            /// stored, from acceptance. At least a second, at most a year. Default: one day, longer
            /// than clients retry.
            ///
            /// The key is stored longer in these cases:
            ///
            /// - while its request waits, for at most thirty days, or this time if that is longer
            /// - while the ended request is kept
            /// - if its request was merged into an earlier one ([`coalesce`](Self::coalesce)), as
            ///   long as that one's key; this applies to at most thirty merged keys, and further
            ///   ones are stored for this time alone
            ///
            /// If the key outlives the stored request, a retry gets 410 and does not run again.
            ///
            /// A key belongs to its owner, method, route and lock. The route is the pattern of the
            /// router, so processes share keys only if they spell it alike (`/orders/{id}` differs
            /// from `/orders/{id:[0-9]+}`) and if all of them apply the layer to the routes, or all
            /// around them.
            #[must_use]
            pub fn idempotency_ttl(self, life: ::std::time::Duration) -> Self {
                Self { gate: self.gate.idempotency_ttl(life) }
            }

            /// Applies `Idempotency-Key` also to requests that run directly: one key is one
            /// execution, deferred or not. Default: only deferred requests. It costs a direct
            /// request two calls to the store, and one more for each third of its lock's `lease`
            /// that it runs.
            ///
            /// **The run** has a task of its own (in actix-web a local one, on its thread), so it
            /// continues when its client disconnects. Its response is stored: a retry gets 202 with
            /// the `Location` of the status resource, which returns that response.
            ///
            /// - A client that disconnects before the run has started, while it waits for the lock,
            ///   ends it.
            /// - During the run a retry gets the busy response with `Retry-After`.
            /// - The run ends with its lock, according to [`OnLoss`](::lockgate::OnLoss); without a
            ///   client also at `max_hold`.
            /// - [`max_direct_runs`](Self::max_direct_runs) limits such runs.
            ///   [`Store::wait_for_direct_runs`](::lockgate::Store::wait_for_direct_runs) and
            ///   [`Store::shutdown`](::lockgate::Store::shutdown) wait for them.
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
            /// [`max_attempts`](Self::max_attempts) of 1 the middle column applies to all methods.
            /// The rules are those of a deferred run, except for 401 and 403, with which a deferred
            /// run is dead, since it never gets a new token.
            ///
            /// A `LockLayer` or `RateLimitLayer` inside refuses a request because of a busy lock,
            /// an exceeded quota or an unavailable store. A status such as 429 counts as a refusal
            /// only if one of these layers responded with it, since a handler may respond so after
            /// its work is done. A middleware that rebuilds the request, and loses its extensions,
            /// hides the refusals of the layers inside it: they count as responses of the handler.
            ///
            /// A crash is detected by the first retry after the lease of the run, which is the
            /// lease of its lock.
            ///
            /// A truncated body, of a client that disconnected during the upload, is an error to
            /// the handler that reads it. If the response is an error, the complete request was not
            /// executed, so a retry is not locked out. A handler that does part of its work before
            /// it has the whole body must tolerate doing that part twice.
            ///
            /// **The response:** a body of known length of up to
            /// [`direct_response_limit`](Self::direct_response_limit) is read before the head is
            /// sent. A body of unknown length is forwarded as it arrives, and is read to its end
            /// even if the client has disconnected, since the handler may work while it streams. A
            /// longer body is passed through: the key records that the request has run, its status,
            /// and that the body was not stored. Of `text/event-stream`, which has no end, the head
            /// is the outcome.
            ///
            /// It also works under several locks or a permit, where nothing is deferred, but not
            /// under a lock that is shared by a delegation (`LockLayer::trust_delegation`).
            ///
            /// **The fingerprint** of the request is computed while the handler reads the body;
            /// nothing is buffered. A retry with the same key and another body or target gets 422
            /// after that. Nothing is compared, and the retry counts as the same request:
            ///
            /// - during the run
            /// - if the handler has not read all of the body
            /// - if the body is longer than [`body_limit`](Self::body_limit)
            /// - if the type of the body cannot be wrapped (see `LockLayer::body_read_timeout`)
            #[must_use]
            pub fn idempotent_direct(self) -> Self {
                Self { gate: self.gate.idempotent_direct() }
            }

            /// Most direct runs under [`idempotent_direct`](Self::idempotent_direct) at once in
            /// this process. All runs of one [`Store`](::lockgate::Store) handle are counted
            /// together; each layer compares them with its own limit. Default: 1024; with the
            /// largest responses they take 64 MiB, as bodies in the
            /// [`buffer_budget`](Self::buffer_budget) do.
            ///
            /// Beyond it a request is handled as if its lock were busy: it is deferred or gets the
            /// busy response.
            #[must_use]
            pub fn max_direct_runs(self, most: usize) -> Self {
                Self { gate: self.gate.max_direct_runs(most) }
            }

            /// Most bytes of a response body that are stored for a direct run under
            /// [`idempotent_direct`](Self::idempotent_direct). Default: 64 KiB, as for a request,
            /// since most clients have received the response, and a day of responses is stored. A
            /// longer response reaches its client, but is not stored.
            #[must_use]
            pub fn direct_response_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.direct_response_limit(bytes) }
            }
        }
    };
}
