//! `DeferLayer`: what is deferred.

/// `DeferLayer`, for `__defer_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer_layer {
    ($native:ty) => {
        /// Accepts requests whose resource is busy: 202 now, and a run later, once, in order.
        ///
        /// See [`lockgate::defer`](::lockgate::defer) for what happens to a request, and the crate
        /// documentation for an example. Put it outside the `LockLayer`; jobs live in that layer's
        /// store, beside its lock.
        ///
        /// Whatever can't be deferred gets the `LockLayer`'s plain busy answer, with its `Retry-After`:
        /// a body or a line that is too long, an upgrade, a credential that may not be stored, a lock that is
        /// shared, a permit or several keys.
        #[derive(Debug, Clone, Default)]
        pub struct DeferLayer {
            pub(crate) gate: ::lockgate::defer::DeferGate<$native>,
        }

        impl DeferLayer {
            /// Defers unsafe requests with bodies of up to 64 KiB, as soon as their lock is busy.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Where the status resource is mounted. Default `/deferred`. As clients see it, with what
            /// `Router::nest`, `web::scope` or a proxy puts before: it becomes the `Location`, and nothing
            /// checks that something is mounted there.
            ///
            /// # Panics
            ///
            /// If it is not as a URL has it: other characters percent-encoded, without a query.
            #[must_use]
            pub fn status_path(self, path: &str) -> Self {
                Self { gate: self.gate.status_path(path) }
            }

            /// Defers these methods alone. Default: all but the safe ones (GET, HEAD, OPTIONS, TRACE),
            /// which never are: who reads wants the answer now.
            ///
            /// # Panics
            ///
            /// If there are none, or one of them is no method's name, or safe.
            #[must_use]
            pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
                Self { gate: self.gate.methods(methods) }
            }

            /// Has an address called when a deferred request has ended, however it has: the function says which,
            /// by the request as it was sent, or `None` for no call. The worker has to have
            /// `.callbacks(..)`, of the feature `webhook`; what is sent, and where it may go, is told in
            /// [`lockgate::defer::callback`](::lockgate::defer::callback).
            ///
            /// An address that clients choose is one that attackers choose: take one from a field only
            /// if that is meant.
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

            /// Whom a request belongs to (an account, a tenant): scopes `Idempotency-Key` and what
            /// [`coalesce`](Self::coalesce) and [`supersede`](Self::supersede) take for the same
            /// request, and is what [`DeferredRoutes::visible_to`] compares with.
            ///
            /// Default: the identity of the snapshot that is carried by [`carry_as`](Self::carry_as); without one, nobody's. All
            /// requests without an owner, those of which the function returns `None` too, share one space of keys: a
            /// client that sends another's `Idempotency-Key` with the same request (with
            /// [`idempotent_direct`](Self::idempotent_direct), where nothing is compared, with any) gets that one's job and
            /// response, and `supersede` supersedes any other request. Set it, and `visible_to`, wherever clients do not
            /// trust each other: also where their credentials are [kept](Self::keep_header).
            #[must_use]
            pub fn owner(
                self,
                owner: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.owner(owner) }
            }
        }

        // When a request is deferred.
        impl DeferLayer {
            /// How long a request stands in line for its lock before it is deferred. Default: not at all.
            /// Most locks are busy for milliseconds: with a short wait most clients get their answer at
            /// once, and only the others have to ask for it later. The `LockLayer`'s own `wait` doesn't
            /// count here. At most ten minutes.
            ///
            /// A client's `Prefer: wait=N` takes its place, within [`max_preferred_wait`](Self::max_preferred_wait).
            #[must_use]
            pub fn wait_up_to(self, wait: ::std::time::Duration) -> Self {
                Self { gate: self.gate.wait_up_to(wait) }
            }

            /// Longest wait that a client gets by `Prefer: wait=N` (RFC 7240); the 202 says in
            /// `Preference-Applied` which it got. Default 30 s: what proxies usually wait for an answer;
            /// at most ten minutes, as [`wait_up_to`](Self::wait_up_to). Zero: the preference is ignored, and [`wait_up_to`](Self::wait_up_to) holds for all.
            #[must_use]
            pub fn max_preferred_wait(self, max: ::std::time::Duration) -> Self {
                Self { gate: self.gate.max_preferred_wait(max) }
            }

            /// Heeds `Prefer: respond-async` (RFC 7240): such a request is accepted at once, whether its lock
            /// is free or not, or after the wait of its `wait=N`. Default: the preference is ignored, since
            /// it takes requests away from a lock that is free.
            ///
            /// What its head shows to be not deferrable is treated as ever. If it is found out later (a body
            /// of unknown length that is too long, a line that is full), the answer is the busy one.
            #[must_use]
            pub fn honor_respond_async(self) -> Self {
                Self { gate: self.gate.honor_respond_async() }
            }

            /// Never tries the lock: every request is deferred, for work that is only ever done in the
            /// background. What can't be deferred is not run either, but told that the resource is busy.
            ///
            /// There has to be a `LockLayer` inside that locks the request, or nobody could say under which lock
            /// it runs. Whether there is one is known only when the request has passed: if a handler has been
            /// reached without one, the answer is 500 in place of its own, and a log line names the fix.
            #[must_use]
            pub fn defer_always(self) -> Self {
                Self { gate: self.gate.defer_always() }
            }

            /// Defers nothing while no worker is alive to run it. Default: jobs wait for one to come.
            #[must_use]
            pub fn require_worker(self) -> Self {
                Self { gate: self.gate.require_worker() }
            }
        }

        // What is stored of it, and how much.
        impl DeferLayer {
            /// Most bytes of a body; a longer one gets the plain busy answer. Default 64 KiB: a form or a
            /// document; files belong elsewhere than in Redis. A body is
            /// read only when its lock was busy, and refused before it is read where the client says how
            /// long it is.
            ///
            /// With its head it has to fit into half of the [`buffer_budget`](Self::buffer_budget), which is the
            /// share of a client that is alone: a longer one is never deferred. If the two limits allow more than
            /// that, the log says so where the layer is put around a service.
            #[must_use]
            pub fn body_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.body_limit(bytes) }
            }

            /// Most bytes of a head that is stored: names and values of its header fields, path, query
            /// and [owner](Self::owner), but nothing of fields that are [not stored](Self::keep_header). A longer one gets
            /// the plain busy answer. Default 16 KiB: as much as common servers and proxies let in, and
            /// a quarter of the longest body. Without a bound a client fills the line of a resource
            /// with a few requests, since hyper lets in heads of 400 KiB. The head counts into
            /// [`max_resource_bytes`](Self::max_resource_bytes) and the other bounds of bytes, as the body does.
            #[must_use]
            pub fn head_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.head_limit(bytes) }
            }

            /// Most bytes that the requests being read and stored in this process take together, head
            /// and body, those of all its `DeferLayer`s; each layer compares with its own number.
            /// Default 64 MiB. Beyond it the answer is the plain busy one: nobody waits for room.
            ///
            /// Reserved is what has arrived of a body and 8 KiB for the next chunk, whatever its
            /// `Content-Length` says. A [client](Self::client_address) takes no more than it leaves free: half
            /// of the budget if it is alone, a third if there are two that take so much. So no client
            /// keeps the bodies of others out.
            #[must_use]
            pub fn buffer_budget(self, bytes: usize) -> Self {
                Self { gate: self.gate.buffer_budget(bytes) }
            }

            /// Who a client is that has a share of the [`buffer_budget`](Self::buffer_budget). Default
            /// the socket's other end, IPv6 by networks of 64 bits. Behind a proxy that is the proxy
            /// for all clients, who have one share together then: name it here, as for `by_client`.
            /// Requests whose address can't be told have one share together.
            ///
            /// Example: `.client_address(ClientAddress::behind_proxies(["10.0.0.0/8"]))`.
            #[must_use]
            pub fn client_address(self, client: ::lockgate::ClientAddress) -> Self {
                Self { gate: self.gate.client_address(client) }
            }

            /// How long the body of a request may take to arrive, from when its lock was found busy. A slower
            /// one gets the plain busy answer, and what it took of the [`buffer_budget`](Self::buffer_budget)
            /// is free again. Default 10 s: 64 KiB by a poor mobile link, twice over.
            #[must_use]
            pub fn body_read_timeout(self, time: ::std::time::Duration) -> Self {
                Self { gate: self.gate.body_read_timeout(time) }
            }

            /// Stores a field that is dropped by default, because it carries a credential. A request that
            /// carries one is otherwise not deferred, unless the layer [carries](Self::carry) whose it
            /// is; the log says so once of each. A stored credential lies in the store for as long as the
            /// request waits, and a run shows it was: it may have expired by then. It names no
            /// [owner](Self::owner): where the layer carries a snapshot as well, and the request has none, its
            /// `Idempotency-Key` is answered with 500.
            ///
            /// Credentials are, of any case:
            ///
            /// - `Authorization`, `Proxy-Authorization`, and what ends with `-Authorization`: copies by proxies;
            /// - `Cookie`;
            /// - `Api-Key`, `ApiKey`, `Api-Token`, `Auth-Key`, `Access-Key`, `Secret-Key`, `Client-Secret`,
            ///   `Auth-Token`, `Authentication-Token`, `Authorization-Token`, `Access-Token`, `Refresh-Token`,
            ///   `Id-Token`, `Bearer-Token`, `Session-Token`, `User-Token`, `Subject-Token`, `Service-Token`,
            ///   `Storage-Token`, `Jwt`, `Jwt-Token` and `Jwt-Assertion`, and what ends with a hyphen and one
            ///   of these, such as `X-Api-Key` and `X-Forwarded-Access-Token`;
            /// - `X-Token`;
            /// - `X-Amz-Security-Token` and `X-Amzn-Oidc-*` of AWS, `X-Ms-Token-*`,
            ///   `X-Ms-Authorization-Auxiliary`, `X-Functions-Key` and `Ocp-Apim-Subscription-Key` of
            ///   Azure, `X-RapidApi-Key`;
            /// - `Private-Token`, `Job-Token`, `Deploy-Token` and `X-Gitlab-Token` of GitLab,
            ///   `X-Vault-Token` and `X-Consul-Token` of HashiCorp;
            /// - those of [`credential_header`](Self::credential_header).
            ///
            /// CSRF tokens are stored: without the cookie they open nothing.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            #[must_use]
            pub fn keep_header(self, name: &str) -> Self {
                Self { gate: self.gate.keep_header(name) }
            }

            /// Takes this field, such as an `X-Pass`, for a credential, as `Authorization` and the others of
            /// [`keep_header`](Self::keep_header) are: it is not stored, and a request that carries it is
            /// deferred only if it [carries](Self::carry) whose it is as well, or the field is kept.
            /// Without this it is a field like others, and is stored with the request.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            #[must_use]
            pub fn credential_header(self, name: &str) -> Self {
                Self { gate: self.gate.credential_header(name) }
            }

            /// Most requests that wait for one resource; beyond it the plain busy answer. Default 1000: at a tenth
            /// of a second each, the last one waits for nearly two minutes. Those of one owner, and of the shard that the
            /// resource lies in, have bounds of their own ([`max_owner_jobs`](Self::max_owner_jobs),
            /// [`max_queue_jobs`](Self::max_queue_jobs)): whoever sets this higher has to set those higher, too.
            #[must_use]
            pub fn max_resource_jobs(self, per_resource: u64) -> Self {
                Self { gate: self.gate.max_resource_jobs(per_resource) }
            }

            /// Most bytes that requests take which wait for one resource, head and body; beyond it the plain
            /// busy answer. Default 8 MiB: 127 bodies of the largest size with their heads, and half of what its shard
            /// takes. Bounded as [`max_resource_jobs`](Self::max_resource_jobs) is, by [`max_owner_bytes`](Self::max_owner_bytes) and
            /// [`max_queue_bytes`](Self::max_queue_bytes).
            #[must_use]
            pub fn max_resource_bytes(self, per_resource: u64) -> Self {
                Self { gate: self.gate.max_resource_bytes(per_resource) }
            }

            /// Most requests that wait in the whole queue, which is the store's namespace; beyond it the plain
            /// busy answer. Default 100,000. Counted in each of 64 shards, for a 64th of it, rounded up (1563): what waits
            /// in all may be more by up to 63, which is much of a small number, and a resource may meet the bound of
            /// its shard, which it has with others, long before. For an exact bound of one resource there is [`max_resource_jobs`](Self::max_resource_jobs).
            ///
            /// A quarter of each shard is reserved: for a resource with fewer than 4 requests, of an
            /// [`owner`](Self::owner) with fewer than 16 in that shard; half of it for those with an owner. The name of a
            /// resource says in which shard it lies, so a client can choose names that fill one. With an owner it keeps no
            /// other owner out by that; without, nothing tells its requests from those of others, and it can keep out the
            /// others without an owner if it uses as many resources. Where there are no accounts, an owner by client
            /// address helps. Nothing is reserved of a shard for fewer than 64 requests (4,033 in all).
            #[must_use]
            pub fn max_queue_jobs(self, jobs: u64) -> Self {
                Self { gate: self.gate.max_queue_jobs(jobs) }
            }

            /// Most bytes that the whole queue takes: requests that wait or run, and of each that of the call that
            /// tells of its end. Default 1 GiB, so 16 MiB a shard. Counted as
            /// [`max_queue_jobs`](Self::max_queue_jobs) are, with the same reserve: a resource gets of it if it has at most a 64th of the
            /// shard's bytes then, an owner with at most a 16th, and the first request of either. Nothing is
            /// reserved of a shard for less than 1 MiB (64 MiB in all).
            #[must_use]
            pub fn max_queue_bytes(self, bytes: u64) -> Self {
                Self { gate: self.gate.max_queue_bytes(bytes) }
            }

            /// Most bytes that are kept of requests that have ended, so that results of many, or large ones, do not
            /// fill the server before their time is over: of those that are done and of dead ones, so many each,
            /// with half a KiB for what is told of each of them besides its response or its request. What
            /// [`idempotent_direct`](Self::idempotent_direct) keeps counts too. Default 1 GiB: as much as may wait.
            ///
            /// Beyond it responses are evicted, and counted as trimmed in
            /// [`DeferStats`](::lockgate::defer::DeferStats): the oldest of the same [`owner`](Self::owner), if that has
            /// more than an equal share, else of the owner that has the most. Requests without an owner have one in
            /// common. Of an evicted request a tombstone of some 300 bytes is left for the rest of its time, of one
            /// owner the last 16,384 in each of 64 shards: its status is 410, and a retry under its `Idempotency-Key`
            /// does not run again.
            ///
            /// Counted as [`max_queue_jobs`](Self::max_queue_jobs) are. It is the queue's, so its layers should be given the
            /// same number: that of the latest request counts.
            #[must_use]
            pub fn max_ended_bytes(self, bytes: u64) -> Self {
                Self { gate: self.gate.max_ended_bytes(bytes) }
            }

            /// Most `Idempotency-Key`s of one [`owner`](Self::owner) that are remembered in the whole queue; requests
            /// without an owner have one in common. Beyond it requests with a new key are refused with 429 and do not
            /// run, until the time of an older key is over: a key that was forgotten early would let a retry run twice.
            /// Default 1,048,576: at about 350 bytes each, and 5 MiB in a shard, a third of what is kept of
            /// [responses](Self::max_ended_bytes) there; a dozen requests a second for a day.
            ///
            /// Counted as [`max_queue_jobs`](Self::max_queue_jobs) are, so all keys of one resource count in its shard, for a
            /// 64th of it (16,384).
            #[must_use]
            pub fn max_idempotency_keys(self, keys: u64) -> Self {
                Self { gate: self.gate.max_idempotency_keys(keys) }
            }

            /// A 202 is given only when so many replicas have the request; else the answer is 503 with the
            /// `Location`, as for every request of which it is not known whether it will be there. Default 0.
            /// One more round trip for each request that is deferred (`WAIT`).
            ///
            /// The request is not taken back then: a worker may run it already. A retry with the same
            /// `Idempotency-Key` finds it, and is held to the same rule. As with
            /// [`LockLayer::min_replicas`](::lockgate::lock::LockRequest::min_replicas), a failover may still promote
            /// a replica that has not got it, unless all of them have to.
            #[must_use]
            pub fn min_replicas(self, replicas: u32) -> Self {
                Self { gate: self.gate.min_replicas(replicas) }
            }

            /// Most requests of one [`owner`](Self::owner) that wait in the whole queue, and calls that are to tell how
            /// one ended ([`webhook`](Self::webhook)); beyond it the plain busy answer. Default 64,000: less than two thirds of what the queue
            /// takes, so nobody keeps all others out, and in each shard 1000, which is the line of one resource.
            /// Requests without an owner have no such bound, but seven eighths of each shard
            /// ([`max_queue_jobs`](Self::max_queue_jobs)). Counted as [`max_queue_jobs`](Self::max_queue_jobs) are, in
            /// each shard for a 64th, rounded up: an owner with requests for few resources meets it long before, and one
            /// with requests for many may have 64 where 2 are set.
            #[must_use]
            pub fn max_owner_jobs(self, jobs: u64) -> Self {
                Self { gate: self.gate.max_owner_jobs(jobs) }
            }

            /// Most bytes that the waiting requests of one [`owner`](Self::owner) take. Default 512 MiB: 8 MiB a
            /// shard, as much as one resource takes. Counted as [`max_owner_jobs`](Self::max_owner_jobs) are.
            #[must_use]
            pub fn max_owner_bytes(self, bytes: u64) -> Self {
                Self { gate: self.gate.max_owner_bytes(bytes) }
            }
        }

        // How it runs.
        impl DeferLayer {
            /// Most runs of a PUT or DELETE, at least 1. Default 5: with the default backoff it outlives an outage of some
            /// seconds, and holds up its resource for no longer. Other methods run once, since what has failed may
            /// have done its work; see [`retry_non_idempotent`](Self::retry_non_idempotent).
            #[must_use]
            pub fn max_attempts(self, attempts: u32) -> Self {
                Self { gate: self.gate.max_attempts(attempts) }
            }

            /// Every method runs again after a failure or a crash, POST and PATCH too, also where it ran at once and
            /// [is remembered](Self::idempotent_direct). For handlers that
            /// do nothing twice: because they check the `Idempotency-Key` or the fence, say.
            #[must_use]
            pub fn retry_non_idempotent(self) -> Self {
                Self { gate: self.gate.retry_non_idempotent() }
            }

            /// What is deferred does not run before this time has passed. Default: as soon as its turn comes.
            /// It takes its place in line then, in the order of acceptance. At most a year.
            #[must_use]
            pub fn delay(self, delay: ::std::time::Duration) -> Self {
                Self { gate: self.gate.delay(delay) }
            }

            /// What has not begun to run by then is `expired`, and never runs. Default: it waits for as long
            /// as it takes. A run that goes on is left alone; it is not repeated after the deadline. At most a
            /// year.
            #[must_use]
            pub fn expires_after(self, deadline: ::std::time::Duration) -> Self {
                Self { gate: self.gate.expires_after(deadline) }
            }

            /// What later requests of a resource do while one waits to run again. Default
            /// [`OnFailure::Block`](::lockgate::OnFailure): they wait too, so that the order holds. Live
            /// requests never wait for it.
            #[must_use]
            pub fn on_failure(self, on_failure: ::lockgate::OnFailure) -> Self {
                Self { gate: self.gate.on_failure(on_failure) }
            }

            /// While a request waits, another one of the same owner, method and target is answered with that
            /// one, and not stored, whatever its body is, and nobody is [called](Self::webhook) for it: its address is
            /// that of the first, or none. PUT and DELETE alone: others are kept, each. Of one that has waited for a
            /// day longer than its [`delay`](Self::delay), because no worker lives, later ones know nothing.
            #[must_use]
            pub fn coalesce(self) -> Self {
                Self { gate: self.gate.coalesce() }
            }

            /// While a request waits, another one of the same owner, method and target supersedes it: the
            /// first is `cancelled`, and the new one stands at the end of the line. PUT and DELETE alone, and for as
            /// long as with [`coalesce`](Self::coalesce).
            ///
            /// So one that comes again before its turn, each time, does not run until that stops: such as what is saved every
            /// second, behind a line that takes two, or with a [`delay`](Self::delay) of two. The new one has no right to the
            /// place of the first, which was accepted before others that it may not pass. Where something has to run in
            /// between, take `coalesce`, whose first one keeps its place; with a `delay` it runs once in that time.
            #[must_use]
            pub fn supersede(self) -> Self {
                Self { gate: self.gate.supersede() }
            }
        }

        // `Idempotency-Key`.
        impl DeferLayer {
            /// How long an `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header) is remembered, from
            /// acceptance on. Default a day: longer than any client retries. It is remembered in any case as long as its
            /// request waits (but no longer than thirty days, or this time), and as long as its end is kept; that of a request
            /// that was merged into an earlier one ([`coalesce`](Self::coalesce)) as long as that one, if there are no more
            /// than thirty of them, else for this time alone. Where it outlives that, a retry is answered with 410 and not
            /// run again. At least a second, at most a year.
            ///
            /// A key is remembered for its owner, method, route and lock. The route is the pattern as the router has it:
            /// processes know each other's keys where they write it alike (`/orders/{id}` is another one than
            /// `/orders/{id:[0-9]+}`), and have the layer on the routes, or around all of them, alike.
            #[must_use]
            pub fn idempotency_ttl(self, life: ::std::time::Duration) -> Self {
                Self { gate: self.gate.idempotency_ttl(life) }
            }

            /// Remembers also requests with an `Idempotency-Key` that ran at once: one key is one execution, whether its
            /// request was deferred or not. Default: only those that were deferred. It costs such a request two calls to
            /// the store, and one more for each third of its lock's `lease` that it runs.
            ///
            /// **The run.** It has a task of its own (in actix-web a local one, on its thread), so it goes on when its client
            /// leaves, and what it answers is kept for the retry: 202 with the `Location` of the status resource, which has
            /// the response. A client that leaves before the run has begun, while it waits for the lock, ends it. While it
            /// runs, a retry gets the busy answer with `Retry-After`. It ends with its lock, as
            /// [`OnLoss`](::lockgate::OnLoss) says; without a client also at `max_hold`. [`max_direct_runs`](Self::max_direct_runs)
            /// bounds such runs, and [`Store::wait_for_direct_runs`](::lockgate::Store::wait_for_direct_runs) waits for them, as
            /// [`Store::shutdown`](::lockgate::Store::shutdown) does.
            ///
            /// **Its outcome**, kept for [`idempotency_ttl`](Self::idempotency_ttl):
            ///
            /// | what happened | a retry of a POST or PATCH | of a PUT, a DELETE, or with [`retry_non_idempotent`](Self::retry_non_idempotent) |
            /// |---|---|---|
            /// | answered, but for the next three rows; by 409 and 423 too | gets that response | gets that response |
            /// | refused by a `LockLayer` or a `RateLimitLayer` within: a busy lock, a spent quota, a store that is away | runs | runs |
            /// | 401, 403 | runs, since it may bring a new token | runs |
            /// | 408, 425, 429, 5xx, an error, an answer that broke off | is told `dead`, `failed, may have run` | runs |
            /// | panic, timeout of a layer in between, lost lock | is told `dead`, `stopped, may have run` | runs |
            /// | the process died, or stood still for a lease | is told `dead`, `crashed, may have run` | runs |
            /// | its body was cut off, and it answered 4xx or 5xx | runs | runs |
            ///
            /// With [`max_attempts`](Self::max_attempts) of 1, nothing runs again: then the middle column holds for all methods.
            /// A status that says that the request was not let in, such as 429, counts as a refusal only if one of our layers
            /// answered it: the handler may answer the same when its work is done. A middleware that rebuilds the request, and
            /// so loses its extensions, hides the refusals of the layers within it: they count as answers of the handler. All
            /// of this is as of a deferred run, but for 401 and 403, by which that is dead: nobody brings it a new token.
            ///
            /// A death is found by the first retry after the run's lease, which is that of its lock. A body that is cut off
            /// (the client vanished in the middle of an upload) is an error to the handler that reads it: where that is
            /// answered by an error, nothing of the whole request was executed, so a retry is not locked out. A
            /// handler that does part of its work before it has the whole body should be able to do that part twice.
            ///
            /// **The response.** A body of known length of up to [`direct_response_limit`](Self::direct_response_limit) is
            /// read before the head goes out. One of unknown length is handed on as it comes, and read to its end though the
            /// client has left, since the handler may work as it streams. A longer one is passed through: the key says that it
            /// has run and with which status, and that the body was not kept. Of `text/event-stream`, which has no end, the
            /// head is the outcome.
            ///
            /// It holds under several locks or a permit as well, where nothing is deferred; not under a lock that another
            /// service lends (`LockLayer::trust_delegation`).
            ///
            /// The fingerprint of its body is taken while the handler reads it; nothing is buffered. The same key
            /// with another body or target gets 422 from then on. Nothing is compared while it runs, nor where
            /// the handler has not read all of the body, where that is longer than
            /// [`body_limit`](Self::body_limit), or of a type that nothing can be put around (see
            /// `LockLayer::body_read_timeout`): then it is taken for the same request.
            #[must_use]
            pub fn idempotent_direct(self) -> Self {
                Self { gate: self.gate.idempotent_direct() }
            }

            /// Most requests that [are remembered](Self::idempotent_direct) and run at once in this process, those of one
            /// [`Store`](::lockgate::Store) handle together; each layer compares with its own number. Default 1024: with
            /// the largest responses they take 64 MiB, as bodies in the
            /// [`buffer_budget`](Self::buffer_budget) do. Beyond it nothing runs: a request is treated as if its lock
            /// were busy, so it is deferred, or told so.
            #[must_use]
            pub fn max_direct_runs(self, most: usize) -> Self {
                Self { gate: self.gate.max_direct_runs(most) }
            }

            /// Most bytes of a response's body that are kept of a request that
            /// [is remembered](Self::idempotent_direct) and ran at once. Default 64 KiB, as of a request: most clients have
            /// seen it, and a day of them is kept. A longer one reaches its client all the same, and is not kept.
            #[must_use]
            pub fn direct_response_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.direct_response_limit(bytes) }
            }
        }
    };
}
