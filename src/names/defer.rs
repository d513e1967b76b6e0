//! The names of what defers requests, and runs them.

/// `DeferLayer`, `DeferWorker` and `DeferredRoutes`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __defer_names {
    ($native:ty) => {
        /// Accepts requests whose resource is busy: 202 now, and a run later, once, in order.
        ///
        /// See [`lockgate::defer`](::lockgate::defer) for what happens to a request, and the crate
        /// documentation for an example. Put it outside the `LockLayer`; jobs live in that layer's
        /// store, beside its lock.
        #[derive(Debug, Clone, Default)]
        pub struct DeferLayer {
            pub(crate) gate: ::lockgate::defer::DeferGate<$native>,
        }

        impl DeferLayer {
            /// Defers unsafe requests with bodies of up to 64 KiB.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Where the status resource is mounted. Default `/deferred`.
            #[must_use]
            pub fn status_at(self, path: &str) -> Self {
                Self { gate: self.gate.status_at(path) }
            }

            /// Most bytes of a body; a longer one gets the plain busy answer. Default 64 KiB.
            #[must_use]
            pub fn body_limit(self, bytes: usize) -> Self {
                Self { gate: self.gate.body_limit(bytes) }
            }

            /// Stores a field that is dropped by default: `Authorization`, `Cookie`,
            /// `Proxy-Authorization`. A request that carries one of them is otherwise not deferred,
            /// since it would run as nobody.
            #[must_use]
            pub fn keep_header(self, name: &str) -> Self {
                Self { gate: self.gate.keep_header(name) }
            }

            /// Most runs of a PUT or DELETE. Default 5. Other methods run once.
            #[must_use]
            pub fn max_attempts(self, attempts: u32) -> Self {
                Self { gate: self.gate.max_attempts(attempts) }
            }

            /// Most requests that wait for one resource; beyond it the plain busy answer. Default 1000.
            #[must_use]
            pub fn max_jobs(self, per_resource: u64) -> Self {
                Self { gate: self.gate.max_jobs(per_resource) }
            }

            /// Whom a request belongs to (an account, a tenant): scopes `Idempotency-Key`, and is what
            /// [`DeferredRoutes::visible_to`] compares with.
            #[must_use]
            pub fn owner(
                self,
                owner: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.owner(owner) }
            }
        }

        /// Runs deferred requests. Several processes may each have one; they share the work.
        #[derive(Debug)]
        #[must_use = "a worker does nothing until `run` is awaited or spawned"]
        pub struct DeferWorker {
            pub(crate) inner: ::lockgate::defer::DeferWorker,
        }

        impl DeferWorker {
            /// Most requests that run at once. Default 16; those of one resource never do.
            pub fn concurrency(self, most: usize) -> Self {
                Self { inner: self.inner.concurrency(most) }
            }

            /// How long runs may go on after the signal to stop. Default 10 s. What still runs then
            /// is abandoned: PUT and DELETE go back in line, others among the dead letters.
            pub fn drain(self, deadline: ::std::time::Duration) -> Self {
                Self { inner: self.inner.drain(deadline) }
            }

            /// How long a run outlives its process. Default 10 s; renewed at a third.
            pub fn lease(self, lease: ::std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// Longest run. Default 5 minutes.
            pub fn max_run(self, max: ::std::time::Duration) -> Self {
                Self { inner: self.inner.max_run(max) }
            }

            /// How long finished requests and their responses are kept. Default a day.
            pub fn keep_done(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.keep_done(retention) }
            }

            /// How long dead letters are kept. Default a week.
            pub fn keep_dead(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.keep_dead(retention) }
            }

            /// Works until `shutdown` resolves, then drains. Dropping the future instead aborts what
            /// runs, as a crash would.
            pub async fn run(self, shutdown: impl ::std::future::Future<Output = ()>) {
                self.inner.run(shutdown).await;
            }
        }

        /// The status resource of deferred requests, to be mounted. Made by [`deferred_routes`].
        #[derive(Debug, Clone)]
        #[must_use = "the routes have to be mounted"]
        pub struct DeferredRoutes {
            pub(crate) path: String,
            pub(crate) gate: ::lockgate::defer::StatusGate<$native>,
        }

        /// The status resource, at this path: what the `Location` of a 202 points to.
        pub fn deferred_routes(path: &str) -> DeferredRoutes {
            let path = format!("/{}", path.trim_matches('/'));
            DeferredRoutes { path, gate: ::lockgate::defer::StatusGate::new() }
        }

        impl DeferredRoutes {
            /// Answers from this store, whatever the request brings along.
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store), ..self }
            }

            /// Shows a job only to its [owner](DeferLayer::owner): the function says who asks.
            /// Default: whoever knows the id, which is 128 random bits.
            pub fn visible_to(
                self,
                asker: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.visible_to(asker), ..self }
            }
        }
    };
}
