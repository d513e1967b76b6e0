//! Less common settings of `LockLayer`.

/// Defines settings of `LockLayer`, for `__define_layers`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_lock_settings {
    ($native:ty) => {
        impl LockLayer {
            /// Several locks: one for each of these parameters, which identify resources of one
            /// kind, such as the two accounts of a transfer.
            ///
            /// Each value is a text, so `7` and `07` are two locks; use
            /// [`by_path_params_as`](Self::by_path_params_as) for numbers and UUIDs.
            ///
            /// - All processes acquire the locks in the same order, so requests that name them in
            ///   another order cannot deadlock.
            /// - A wait covers all of the locks together.
            /// - Two parameters with the same value are one lock; the parameter that a value came
            ///   from does not count.
            /// - The locks are named by all parameter names, sorted and joined by commas.
            ///   [`named`](Self::named) replaces that by the name of another route's parameter.
            /// - A request with more than one lock is never deferred.
            ///
            /// # Panics
            ///
            /// If there are no names.
            #[must_use]
            pub fn by_path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
                Self::by(::lockgate::gate::KeySource::path_params(names))
            }

            /// Like [`by_path_params`](Self::by_path_params), for parameters that the handler
            /// parses as a `T`: see [`by_path_param_as`](Self::by_path_param_as).
            ///
            /// # Panics
            ///
            /// If there are no names.
            #[must_use]
            pub fn by_path_params_as<T>(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self::by(::lockgate::gate::KeySource::path_params_as::<T>(names))
            }

            /// Several locks: one for each value that the function returns, at most 32. No value or
            /// more than 32 values get 400.
            ///
            /// The name is part of each key: see [`by_key`](Self::by_key). Everything else is as in
            /// [`by_path_params`](Self::by_path_params).
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn by_keys(
                name: &str,
                keys: impl Fn(&$native) -> Vec<String> + Send + Sync + 'static,
            ) -> Self {
                Self::by(::lockgate::gate::KeySource::named_functions(name, keys))
            }

            /// Adds a parameter of the route to the key: another value of either part is another
            /// lock.
            ///
            /// The value is a text, so `7` and `07` are two locks; use
            /// [`and_path_param_as`](Self::and_path_param_as) for numbers and UUIDs.
            #[must_use]
            pub fn and_path_param(self, name: &str) -> Self {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::path_param(name)) }
            }

            /// Like [`and_path_param`](Self::and_path_param), for a parameter that the handler
            /// parses as a `T`: see [`by_path_param_as`](Self::by_path_param_as).
            #[must_use]
            pub fn and_path_param_as<T>(self, name: &str) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::path_param_as::<T>(name)) }
            }

            /// Adds a header to the key, such as the one that names a tenant. A request without the
            /// header gets 400.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn and_header(self, name: &str) -> Self {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::header(name)) }
            }

            /// Adds the value that the function returns to the key. `None` gets 400. The name is
            /// part of the key: see [`by_key`](Self::by_key).
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn and_key(
                self,
                name: &str,
                key: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::named_function(name, key)) }
            }

            /// Names the lock by `name` instead of by the parameter or header, so that
            /// `/orders/{id}` and `/payments/{order}` can share a lock: see
            /// [`Key::named`](::lockgate::Key::named).
            #[must_use]
            pub fn named(self, name: &str) -> Self {
                Self { gate: self.gate.named(name) }
            }

            /// Maps all keys of this kind, name and scope onto `n` locks.
            ///
            /// The store then has fewer locks, but unrelated resources sometimes wait for each
            /// other. All layers that have to exclude each other need the same number: see
            /// [`Key::stripe`](::lockgate::Key::stripe).
            ///
            /// # Panics
            ///
            /// If `n` is not within 1 to 65,536.
            #[must_use]
            pub fn stripes(self, n: u32) -> Self {
                Self { gate: self.gate.stripes(n) }
            }

            /// Lets readers share the lock: GET and HEAD acquire it shared, all other methods
            /// acquire it exclusively.
            ///
            /// OPTIONS and TRACE, which do not concern the state of the resource, take no lock
            /// unless [`all_methods`](Self::all_methods) is set. A request with a shared lock is
            /// never deferred.
            ///
            /// Layers with and without this setting exclude each other correctly, since a layer
            /// without it acquires exclusively. An exclusive layer inside a layer with the same key
            /// that holds the lock shared gets 500 and a log message.
            #[must_use]
            pub fn read_write(self) -> Self {
                Self { gate: self.gate.read_write() }
            }

            /// Admits up to `most` requests at once instead of one.
            ///
            /// - It replaces [`read_write`](Self::read_write), including its selection of methods,
            ///   and is replaced by it.
            /// - A layer without this setting acquires the same lock exclusively and waits for all
            ///   permits.
            /// - A request under a permit is never deferred.
            /// - Inside a layer with the same key, a layer with fewer permits gets 500 and a log
            ///   message, because it would admit as many requests as the outer one.
            ///
            /// # Panics
            ///
            /// If `most` is 0.
            #[must_use]
            pub fn permits(self, most: u32) -> Self {
                Self { gate: self.gate.permits(most) }
            }

            /// Sets this request header to the fence, for upstream services to which a handler
            /// forwards the request's headers. The fences of several locks are joined by commas, in
            /// the order of the locks.
            ///
            /// A header of this name that a client sends is removed from every request that passes
            /// this layer, including requests that take no lock.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn fence_header(self, name: &str) -> Self {
                Self { gate: self.gate.fence_header(name) }
            }

            /// Trusts delegations that are signed with this secret: a request from a caller that
            /// holds the lock runs under it, instead of waiting for its caller. Default: no
            /// delegation is trusted.
            ///
            /// Several calls add secrets, so that secrets can be rotated.
            ///
            /// The caller signs with
            /// [`HeldLock::delegation_header`](::lockgate::HeldLock::delegation_header) and sends
            /// the header `Lockgate-Held`. This layer removes the header from the request that the
            /// handler sees, trusted or not. It also removes `Lockgate-Replay`, which marks a
            /// request as the run of a deferred one, unless a trusted delegation came with it; the
            /// handler can then verify it.
            ///
            /// A delegation ends at the validity time that the caller knew when it signed. It is
            /// not renewed, so the lock counts as lost here after that time, and every reader of
            /// the header can use it until then.
            ///
            /// A delegation is valid for locks of the same server, database and namespace,
            /// independent of the address by which each service reaches them. A server that was
            /// started from a copy of another one's data counts as the same server: delete the key
            /// `meta` of the namespace in the copy before you use it.
            #[must_use]
            pub fn trust_delegation(self, secret: &::lockgate::SharedSecret) -> Self {
                Self { gate: self.gate.trust_delegation(secret) }
            }

            /// Responds that the lock is busy at once, without a wait. This is the default.
            #[must_use]
            pub fn reject(self) -> Self {
                Self { gate: self.gate.reject() }
            }

            /// Asks again up to `times` times, `every` apart (at least 10 ms), before the busy
            /// response. The first attempt is not counted: `retry(3, every)` asks at most four
            /// times and waits for at most three pauses, or for ten minutes if that is less.
            ///
            /// A request that retries has no queue entry: requests that [wait](Self::wait) are
            /// served first, and among requests that retry the order is random. Of `reject`, `wait`
            /// and `retry`, the last one set applies. Inside a `DeferLayer` there are no retries;
            /// the request is deferred.
            #[must_use]
            pub fn retry(self, times: u32, every: ::std::time::Duration) -> Self {
                Self { gate: self.gate.retry(times, every) }
            }

            /// Locks only requests with these methods, safe ones included. `GET` includes `HEAD`.
            /// Default: every method except GET, HEAD, OPTIONS and TRACE.
            ///
            /// # Panics
            ///
            /// If the list is empty, or if a name is not a method or is a known method in lower
            /// case. Methods are case-sensitive, so such a name would match nothing and lock
            /// nothing.
            #[must_use]
            pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
                Self { gate: self.gate.methods(methods) }
            }

            /// Status of the busy response, also after a wait. Default:
            /// [`BusyStatus::Conflict`](::lockgate::BusyStatus), 409.
            #[must_use]
            pub fn busy_status(self, status: ::lockgate::BusyStatus) -> Self {
                Self { gate: self.gate.busy_status(status) }
            }
        }

        impl LockLayer {
            /// Lease that is never renewed: the lock ends after it even if the handler still runs,
            /// and [`on_loss`](Self::on_loss) applies then.
            ///
            /// At least 100 ms, and never longer than [`max_hold`](Self::max_hold), which is 60 s
            /// by default: raise it for a longer lease.
            #[must_use]
            pub fn fixed_lease(self, lease: ::std::time::Duration) -> Self {
                Self { gate: self.gate.fixed_lease(lease) }
            }

            /// Limits handovers, which pass the lock to the next request of this process without a
            /// call to the store: at most `most` of them (at most 32), and only `within` this time
            /// after the last queue snapshot. Default: 16 within 10 ms.
            ///
            /// A handover may overtake older requests of other processes, as a rule each of them
            /// only once. See
            /// [`LockRequest::handover_limits`](::lockgate::lock::LockRequest::handover_limits).
            #[must_use]
            pub fn handover_limits(self, most: u32, within: ::std::time::Duration) -> Self {
                Self { gate: self.gate.handover_limits(most, within) }
            }

            /// Disables handovers, so that requests are served in the order of arrival across
            /// processes, as far as arrivals within a round trip can be distinguished. It costs one
            /// call for each request.
            #[must_use]
            pub fn strict_order(self) -> Self {
                self.handover_limits(0, ::std::time::Duration::ZERO)
            }

            /// Most requests of this process that may wait for one lock. Beyond it a request gets
            /// the busy response at once, without a call to the store unless it has an
            /// `Idempotency-Key`. With 0 no request waits. Default: 1024, since most clients behind
            /// a longer queue would have disconnected before they are served.
            ///
            /// All locks of a store handle and its clones together have at most 16,384 waiters,
            /// which is not configurable.
            #[must_use]
            pub fn max_waiters(self, most: usize) -> Self {
                Self { gate: self.gate.max_waiters(most) }
            }

            /// Requires a grant to reach this number of replicas; otherwise the store counts as
            /// unavailable. Default: 0. See
            /// [`LockRequest::min_replicas`](::lockgate::lock::LockRequest::min_replicas).
            #[must_use]
            pub fn min_replicas(self, replicas: u32) -> Self {
                Self { gate: self.gate.min_replicas(replicas) }
            }
        }
    };
}
