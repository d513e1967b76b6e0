//! `DeferWorker`: what runs it.

/// `DeferWorker`, for `__defer_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer_worker {
    ($put:ident) => {
        /// Runs deferred requests. Several processes may each have one; they share the work.
        #[derive(Debug)]
        #[must_use = "a worker does nothing until `run` is awaited or spawned"]
        pub struct DeferWorker {
            pub(crate) inner: ::lockgate::defer::DeferWorker,
        }

        impl DeferWorker {
            /// A worker that runs this store's jobs through something else than routes of this process, such as
            /// `lockgate::remote::HttpReplayer`.
            pub fn with_replayer(
                store: &::lockgate::Store,
                replayer: impl ::lockgate::defer::Replayer,
            ) -> Self {
                Self { inner: ::lockgate::defer::DeferWorker::new(store, replayer) }
            }

            /// Most requests that run at once in this worker, at least 1. Default 16: beside the requests of clients, which it
            /// shares the process with. Those of one resource never run at once.
            pub fn concurrency(self, most: usize) -> Self {
                Self { inner: self.inner.concurrency(most) }
            }

            /// Most requests that run at once in all workers of this queue, at least 1. Default: as many
            /// as they have room for. Every worker should be given the same number; it costs two calls
            /// per visit to a line. A run whose worker died counts until its lease ends.
            pub fn queue_concurrency(self, most: u32) -> Self {
                Self { inner: self.inner.queue_concurrency(most) }
            }

            /// Most requests that are started per time by all workers of this queue, evenly, and at most a
            /// tenth of them at once. Default: no limit. Every worker should be given the same.
            ///
            /// # Panics
            ///
            /// If either is zero, or the time is longer than a year.
            pub fn queue_rate(self, requests: u64, per: ::std::time::Duration) -> Self {
                Self { inner: self.inner.queue_rate(requests, per) }
            }

            /// How long runs may go on after the signal to stop. Default 10 s: of the 30 s that orchestrators
            /// usually give, with time left for the server. What still runs then
            /// is abandoned: what may run more than once (PUT and DELETE, unless
            /// [`max_attempts`](DeferLayer::max_attempts) is 1; others with
            /// [`retry_unsafe`](DeferLayer::retry_non_idempotent)), and what has not come to its lock yet, goes back in line
            /// uncharged, all else among the dead letters. What runs in another process is left to its lease, as if
            /// this one had died.
            pub fn drain_timeout(self, deadline: ::std::time::Duration) -> Self {
                Self { inner: self.inner.drain_timeout(deadline) }
            }

            /// Makes the calls of [`DeferLayer::webhook`]. Without it, they are left to workers that
            /// have it. Beside the runs of requests a quarter as many calls are under way at most, and at least two. Neither
            /// [`queue_concurrency`](Self::queue_concurrency) nor [`queue_rate`](Self::queue_rate) is about them: what
            /// is called may be as slow as it likes.
            #[cfg(feature = "webhook")]
            pub fn webhooks(self, callbacks: ::lockgate::defer::Webhooks) -> Self {
                Self { inner: self.inner.webhooks(callbacks) }
            }

            /// How long a run outlives its process. Default 10 s, as that of a lock, which it is. At least 100 ms;
            /// renewed at a third.
            pub fn lease(self, lease: ::std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// Longest run. Default 5 minutes: nobody waits for its answer, but its resource is locked. At least 100 ms, at most a year. A longer one is lost, as in
            /// a crash.
            pub fn max_run_time(self, max: ::std::time::Duration) -> Self {
                Self { inner: self.inner.max_run_time(max) }
            }

            /// How long a request waits after a failed run: between nothing and `base`, twice as much
            /// after each further one, at most `cap` ("full jitter": AWS Architecture Blog,
            /// "Exponential Backoff And Jitter", 2015). Default 1 s, a restart, and 5 minutes: an outage that
            /// lasts is asked about no more often, and the resource waits no longer after its end.
            pub fn backoff(self, base: ::std::time::Duration, cap: ::std::time::Duration) -> Self {
                Self { inner: self.inner.backoff(base, cap) }
            }

            /// Longest `Retry-After` of a failed run that is honoured; a longer one counts as this.
            /// Default an hour: a handler that says "next year" must not hold up its resource for so long.
            pub fn max_retry_after(self, longest: ::std::time::Duration) -> Self {
                Self { inner: self.inner.max_retry_after(longest) }
            }
        }

        // What is kept, and what comes along.
        impl DeferWorker {
            /// Most bytes of a response's body that are kept. Default 1 MiB: it lies in Redis for a day. Of a longer one, and of a
            /// stream, status and fields are. What is not kept is read to its end all the same, since a handler may do its
            /// work meanwhile: an endless body takes the run's whole time. Only that of `text/event-stream` is not read
            /// at all, and its run ends with the head.
            pub fn response_limit(self, bytes: usize) -> Self {
                Self { inner: self.inner.response_limit(bytes) }
            }

            /// Keeps this field of responses, too. Kept are those that say what the body is, and what a browser may do
            /// with it; `Set-Cookie` only if it is named here: whoever reads the status resource is not necessarily whom
            /// it is for.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            pub fn keep_response_header(self, name: &str) -> Self {
                Self { inner: self.inner.keep_response_header(name) }
            }

            /// How long finished requests and their responses are kept. Default a day: for clients that ask again
            /// after a night. At least a minute: what is kept tells a copy of the call that has stored it, sent for
            /// want of an answer, from a new request. Of each shard, of which a store has 64, the newest are that fit into
            /// a 64th of [`ended_bytes`](DeferLayer::max_ended_bytes), by default 16 MiB: beyond that the oldest of the
            /// largest owner goes early, and leaves a tombstone. Of responses of 1 MiB, the longest that are [kept](Self::response_limit), those are the last 15.
            pub fn done_retention(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.done_retention(retention) }
            }

            /// How long dead letters are kept. Default a week: over a weekend, until somebody looks; at least a minute,
            /// as [`done_retention`](Self::done_retention). Of each shard, of
            /// which a store has 64, the newest 10,000 are, and of
            /// [`ended_bytes`](DeferLayer::max_ended_bytes) a 64th: beyond that the oldest goes early.
            pub fn dead_retention(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.dead_retention(retention) }
            }

            /// Puts what a layer [carries](DeferLayer::carry_extension) of this type into the extensions of a run.
            /// A request that carries what this worker does not restore goes back in line, uncharged,
            /// with the reason `unknown snapshot`, for a worker that does.
            pub fn restore_extension<T: ::lockgate::ExtensionSnapshot>(self) -> Self {
                Self { inner: self.inner.restore_with::<T, _>($put::<T>) }
            }

            /// Has this function decide before each run whether it may begin. Default: every run may, so
            /// a user whose rights were revoked while a request waited still runs it: what the layer
            /// [carries](DeferLayer::carry_extension) says what was known when the request came.
            ///
            /// The function gets what was stored, with the snapshots of the request. Denied is final: the
            /// handler is not called, the request ends among the dead letters with the reason `not
            /// authorized any more`, and its response is 403. Where nobody can say, it goes back in line,
            /// uncharged. So it does after a check that panics, or has not ended after half of
            /// [`max_run_time`](Self::max_run_time). The lock of the request is held during the check, which counts into
            /// `max_run_time`. Calls of [`DeferLayer::webhook`] are not checked.
            ///
            /// See [`lockgate::defer::DeferWorker::authorize_fn`](::lockgate::defer::DeferWorker::authorize_fn)
            /// for an example.
            pub fn authorize<F>(
                self,
                check: impl Fn(::lockgate::defer::PendingRun) -> F + Send + Sync + 'static,
            ) -> Self
            where
                F: ::std::future::Future<Output = ::lockgate::defer::RunAuthorization>
                    + Send
                    + 'static,
            {
                Self { inner: self.inner.authorize(check) }
            }
        }

        impl DeferWorker {
            /// Works until `shutdown` resolves, then drains. Dropping the future instead aborts what
            /// runs, as a crash would.
            pub async fn run(self, shutdown: impl ::std::future::Future<Output = ()>) {
                self.inner.run(shutdown).await;
            }
        }

        impl From<DeferWorker> for ::lockgate::defer::DeferWorker {
            /// Without the framework: what a test kit takes.
            fn from(worker: DeferWorker) -> Self {
                worker.inner
            }
        }
    };
}
