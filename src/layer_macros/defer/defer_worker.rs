//! `DeferWorker`, which runs the jobs.

/// Defines `DeferWorker`, for `__define_defer`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer_worker {
    ($put:ident) => {
        /// Runs deferred requests. Several processes may each run a worker; they share the jobs.
        #[derive(Debug)]
        #[must_use = "a worker does nothing until `run` is awaited or spawned"]
        pub struct DeferWorker {
            pub(crate) inner: ::lockgate::defer::DeferWorker,
        }

        impl DeferWorker {
            /// Creates a worker that runs the jobs of this store by another means than routes of
            /// this process, such as `lockgate::remote::HttpReplayer`.
            pub fn with_replayer(
                store: &::lockgate::Store,
                replayer: impl ::lockgate::defer::Replayer,
            ) -> Self {
                Self { inner: ::lockgate::defer::DeferWorker::new(store, replayer) }
            }

            /// Most requests that run at once in this worker, at least 1. Requests for one resource
            /// never run at once.
            ///
            /// Default: 16, beside the clients' requests that the process serves.
            pub fn concurrency(self, most: usize) -> Self {
                Self { inner: self.inner.concurrency(most) }
            }

            /// Most requests that run at once in all workers of this queue, at least 1. Default:
            /// the sum of the workers' [`concurrency`](Self::concurrency).
            ///
            /// Set the same number in every worker. It costs two calls for each chain of runs under
            /// one lock. A run of a crashed worker counts until its lease ends.
            pub fn queue_concurrency(self, most: u32) -> Self {
                Self { inner: self.inner.queue_concurrency(most) }
            }

            /// Most requests that all workers of this queue start in this time, evenly spread and
            /// at most a tenth of them at once. Default: no limit. Set the same rate in every
            /// worker.
            ///
            /// # Panics
            ///
            /// If either value is zero, or if the time is longer than a year.
            pub fn queue_rate(self, requests: u64, per: ::std::time::Duration) -> Self {
                Self { inner: self.inner.queue_rate(requests, per) }
            }

            /// Time for which runs may continue after the shutdown signal. Default: 10 s of the 30
            /// s that orchestrators usually grant, so that the server has time left.
            ///
            /// Runs that have not ended by then are abandoned:
            ///
            /// - A run that may be repeated returns to its queue uncharged. That applies to PUT and
            ///   DELETE, unless [`max_attempts`](DeferLayer::max_attempts) is 1, and to the other
            ///   methods with [`retry_non_idempotent`](DeferLayer::retry_non_idempotent).
            /// - A run that has not reached its lock yet returns to its queue uncharged too.
            /// - All other runs become dead letters.
            /// - A run in another process is left to its lease, as if this worker had crashed.
            pub fn drain_timeout(self, deadline: ::std::time::Duration) -> Self {
                Self { inner: self.inner.drain_timeout(deadline) }
            }

            /// Delivers the webhooks of [`DeferLayer::webhook`]. A worker without this setting
            /// leaves them to workers that have it.
            ///
            /// A worker delivers a quarter as many webhooks at once as it runs requests, and at
            /// least two, in addition to the requests.
            /// [`queue_concurrency`](Self::queue_concurrency) and [`queue_rate`](Self::queue_rate)
            /// do not apply to them, since a receiver may be arbitrarily slow.
            #[cfg(feature = "webhook")]
            pub fn webhooks(self, callbacks: ::lockgate::defer::Webhooks) -> Self {
                Self { inner: self.inner.webhooks(callbacks) }
            }

            /// Time for which a run outlives its process; its lease is the lease of the lock. At
            /// least 100 ms; renewed at a third. Default: 10 s, as for a lock.
            pub fn lease(self, lease: ::std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// Longest run; a longer one is lost, as in a crash. At least 100 ms, at most a year.
            ///
            /// Default: 5 minutes. No client waits for the response, but the resource is locked
            /// meanwhile.
            pub fn max_run_time(self, max: ::std::time::Duration) -> Self {
                Self { inner: self.inner.max_run_time(max) }
            }

            /// Delay after a failed run: a random time between zero and `base`, doubled after each
            /// further failure, at most `cap` ("full jitter": AWS Architecture Blog, "Exponential
            /// Backoff And Jitter", 2015).
            ///
            /// Default: 1 s, the time of a restart, and 5 minutes. The cap bounds how often a long
            /// outage is probed, and how long the resource waits after its end.
            pub fn backoff(self, base: ::std::time::Duration, cap: ::std::time::Duration) -> Self {
                Self { inner: self.inner.backoff(base, cap) }
            }

            /// Longest `Retry-After` of a failed run that is honored; a longer one counts as this.
            /// Default: one hour, since a handler that responds with "next year" must not block its
            /// resource for that long.
            pub fn max_retry_after(self, longest: ::std::time::Duration) -> Self {
                Self { inner: self.inner.max_retry_after(longest) }
            }
        }

        // Stored responses and extension snapshots.
        impl DeferWorker {
            /// Most bytes of a response body that are stored. Default: 1 MiB, which stays in Redis
            /// for a day. Of a longer body, and of a stream, only status and headers are stored.
            ///
            /// A body that is not stored is still read to its end, since the handler may do its
            /// work meanwhile; an endless body takes the whole time of the run. The exception is
            /// `text/event-stream`: its body is not read, and the run ends with the head.
            pub fn response_limit(self, bytes: usize) -> Self {
                Self { inner: self.inner.response_limit(bytes) }
            }

            /// Stores this response header too. By default only headers are stored that describe
            /// the body or restrict the use that a browser may make of it. `Set-Cookie` is stored
            /// only if it is named here, since a reader of the status resource is not necessarily
            /// its recipient.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            pub fn keep_response_header(self, name: &str) -> Self {
                Self { inner: self.inner.keep_response_header(name) }
            }

            /// Time for which finished requests and their responses are kept. Default: one day, for
            /// clients that ask again after a night.
            ///
            /// At least a minute: the stored job distinguishes a new request from a repeated call
            /// of an enqueue that got no reply.
            ///
            /// Each of the 64 shards of a store keeps the newest that fit into a 64th of
            /// [`max_ended_bytes`](DeferLayer::max_ended_bytes), 16 MiB by default. Beyond that the
            /// oldest one of the largest owner is evicted early and leaves a tombstone. That is
            /// room for 15 responses of 1 MiB, the default [limit](Self::response_limit).
            pub fn done_retention(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.done_retention(retention) }
            }

            /// Time for which dead letters are kept. Default: one week, to survive a weekend until
            /// an operator looks. At least a minute, as [`done_retention`](Self::done_retention).
            ///
            /// Each of the 64 shards of a store keeps the newest 10,000, within a 64th of
            /// [`max_ended_bytes`](DeferLayer::max_ended_bytes); beyond that the oldest is evicted
            /// early.
            pub fn dead_retention(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.dead_retention(retention) }
            }

            /// Puts the snapshot of this type, which a layer
            /// [carries](DeferLayer::carry_extension), into the extensions of a run.
            ///
            /// A request with a snapshot that this worker does not restore returns to its queue
            /// uncharged, with the reason `unknown snapshot`, for a worker that does.
            pub fn restore_extension<T: ::lockgate::ExtensionSnapshot>(self) -> Self {
                Self { inner: self.inner.restore_with::<T, _>($put::<T>) }
            }

            /// Authorizes each run before it starts. Default: every run may start, so a request
            /// still runs if its user has lost the right to it in the meantime. The snapshot that
            /// the layer [carries](DeferLayer::carry_extension) is from the arrival of the request.
            ///
            /// The function gets the stored request with its snapshots, and returns:
            ///
            /// - `Granted`: the run starts.
            /// - `Denied`: final. The handler is not called, the request becomes a dead letter with
            ///   the reason `not authorized any more`, and its response is 403.
            /// - `Unknown`: the request returns to its queue uncharged. A check that panics, or
            ///   that has not ended after half of [`max_run_time`](Self::max_run_time), counts as
            ///   this.
            ///
            /// The lock of the request is held during the check, and the check counts toward
            /// `max_run_time`. Deliveries of [`DeferLayer::webhook`] are not checked.
            ///
            /// See [the worker of the core crate](::lockgate::defer::DeferWorker::authorize) for an
            /// example.
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
            /// Runs jobs until `shutdown` resolves, then drains. Dropping the future aborts the
            /// current runs, as a crash would.
            pub async fn run(self, shutdown: impl ::std::future::Future<Output = ()>) {
                self.inner.run(shutdown).await;
            }
        }

        impl From<DeferWorker> for ::lockgate::defer::DeferWorker {
            /// Converts to the worker without a framework, which a test kit takes.
            fn from(worker: DeferWorker) -> Self {
                worker.inner
            }
        }
    };
}
