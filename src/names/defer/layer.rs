//! `DeferLayer`: what is deferred.

/// `DeferLayer`, for `__defer_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __defer_layer_names {
    ($native:ty, $found:ident) => {
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

            /// Stores this value of the request's extensions along with it, such as the user that an
            /// authentication has put there; a worker that [restores](DeferWorker::restore) it puts it into
            /// the extensions of the run. A request that has one and carries a credential is deferred
            /// without the credential. One that does not have it is deferred without it.
            #[must_use]
            pub fn carry<T: ::lockgate::Snapshot>(self) -> Self {
                Self { gate: self.gate.carry::<T>($found::<T>) }
            }
        }
    };
}
