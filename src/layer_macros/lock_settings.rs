//! What a `LockLayer` can be set to beyond what most need.

/// Settings of `LockLayer`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_lock_settings {
    ($native:ty) => {
        impl LockLayer {
            /// Several locks: one for each of these parameters, which name resources of one kind, such as
            /// the two accounts of a transfer.
            ///
            /// Each value is a text, so `7` and `07` are two locks: for numbers and UUIDs use
            /// [`by_path_params_as`](Self::by_path_params_as).
            ///
            /// They are taken in an order that all processes share, so requests that name them the other
            /// way round wait for each other and never in a circle; a wait is for all of them together. Two
            /// that have the same value are one lock. Which parameter a value came from does not count: the
            /// locks are named by all the names together, sorted and joined by commas, and
            /// [`named`](Self::named) gives them that of another route's parameter. Requests with more than
            /// one lock are not deferred.
            ///
            /// # Panics
            ///
            /// If there are no names.
            #[must_use]
            pub fn by_path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
                Self::by(::lockgate::gate::KeySource::path_params(names))
            }

            /// The same for parameters that are each a `T` to the handler: see
            /// [`by_path_param_as`](Self::by_path_param_as).
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

            /// Several locks: one for each value the function returns, at most 32. Otherwise as
            /// [`by_path_params`](Self::by_path_params). No value, or more than that, is answered with 400.
            /// The name is part of each key: see [`by_key`](Self::by_key).
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

            /// Makes one lock of both, the key so far and this parameter of the route: another value of
            /// either is another lock. The value is a text, so `7` and `07` are two: for numbers and UUIDs use
            /// [`and_path_param_as`](Self::and_path_param_as).
            #[must_use]
            pub fn and_path_param(self, name: &str) -> Self {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::path_param(name)) }
            }

            /// The same with a parameter that is a `T` to the handler: see
            /// [`by_path_param_as`](Self::by_path_param_as).
            #[must_use]
            pub fn and_path_param_as<T>(self, name: &str) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::path_param_as::<T>(name)) }
            }

            /// Makes one lock of both, the key so far and this header field, say that of a tenant. A
            /// request without it is answered with 400.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            #[must_use]
            pub fn and_header(self, name: &str) -> Self {
                Self { gate: self.gate.and(::lockgate::gate::KeySource::header(name)) }
            }

            /// Makes one lock of both, the key so far and what the function returns; `None` is answered
            /// with 400. The name is part of the key: see [`by_key`](Self::by_key).
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

            /// Names the lock by this in the place of the parameter or header, so that `/orders/{id}` and
            /// `/payments/{order}` share one: see [`Key::named`](::lockgate::Key::named).
            #[must_use]
            pub fn named(self, name: &str) -> Self {
                Self { gate: self.gate.named(name) }
            }

            /// Maps all keys of this kind, name and scope onto so many locks: fewer of them in the store,
            /// and resources that have nothing to do with each other wait for each other now and then.
            /// Every layer that is to exclude another one must have the same number: see
            /// [`Key::stripe`](::lockgate::Key::stripe).
            ///
            /// # Panics
            ///
            /// If `n` is not within 1 to 65,536.
            #[must_use]
            pub fn stripes(self, n: u32) -> Self {
                Self { gate: self.gate.stripes(n) }
            }

            /// Readers share: GET and HEAD take the lock together, everything else takes it alone. OPTIONS
            /// and TRACE, which are not about what the resource is, take none unless
            /// [`all_methods`](Self::all_methods) is set. Requests that share a lock are not deferred.
            ///
            /// Layers with and without this exclude each other as they should: one without it always
            /// takes the lock alone. Inside a layer of one key that shares it, one that takes it alone is
            /// answered with 500 and a log line.
            #[must_use]
            pub fn read_write(self) -> Self {
                Self { gate: self.gate.read_write() }
            }

            /// Lets up to `most` requests in at once, instead of one; replaces
            /// [`read_write`](Self::read_write), as that replaces this, with the methods it takes. A layer without it takes the same
            /// lock alone, and waits for all of them. Requests under a permit are not deferred. Inside a layer of
            /// the same key, a layer of fewer permits is answered with 500 and a log line: it would let in as many
            /// as the outer one does.
            ///
            /// # Panics
            ///
            /// If `most` is 0.
            #[must_use]
            pub fn permits(self, most: u32) -> Self {
                Self { gate: self.gate.permits(most) }
            }

            /// Puts the fence into the request under this name, for upstreams that a handler passes the
            /// request's header on to; several locks have theirs joined by commas, in the order they are
            /// named in. What a client sends under this name is taken out of every request that comes by
            /// here, also of those that take no lock.
            ///
            /// # Panics
            ///
            /// If it is no header field's name.
            #[must_use]
            pub fn fence_header(self, name: &str) -> Self {
                Self { gate: self.gate.fence_header(name) }
            }

            /// Takes the word of services that know this secret for it that the caller has the lock: the
            /// request then runs under it, without waiting for its own caller. Given more than once,
            /// each of them counts, so that secrets can change. Default: nobody's word.
            ///
            /// The caller signs with [`HeldLock::delegation_header`](::lockgate::HeldLock::delegation_header), and the field
            /// `Lockgate-Held` goes from one to the other; it is taken out of what the handler sees, trusted or
            /// not. So is `Lockgate-Replay`, by which a request says that it is a run of a deferred one, unless
            /// a word came along that is trusted: then the handler has it, to be checked. Mind
            /// what it is: how long the caller was sure when it signed. It isn't renewed, so the lock counts
            /// as lost here when that time is over, and whoever can read it can use it until then.
            ///
            /// It counts for locks of the same server, database and namespace, whichever address both services
            /// have for that. A server that was started from a copy of another one's data counts as the same:
            /// delete the key `meta` of the namespace in the copy before it is used.
            #[must_use]
            pub fn trust_delegation(self, secret: &::lockgate::SharedSecret) -> Self {
                Self { gate: self.gate.trust_delegation(secret) }
            }

            /// Don't wait: the busy answer at once. The default.
            #[must_use]
            pub fn reject(self) -> Self {
                Self { gate: self.gate.reject() }
            }

            /// Ask again up to `times` times, `every` apart (at least 10 ms), before the busy answer. The
            /// first attempt is not counted: `retry(3, every)` asks four times at most, and waits for
            /// three pauses, or for ten minutes if that is less.
            ///
            /// Nobody who asks like this has a place in line: whoever [waits](Self::wait) is served
            /// first, and of two that retry the one that happens to ask in time. Of `reject`, `wait` and
            /// `retry` the last one set counts. With a `DeferLayer` outside nobody asks again: the request is
            /// deferred.
            #[must_use]
            pub fn retry(self, times: u32, every: ::std::time::Duration) -> Self {
                Self { gate: self.gate.retry(times, every) }
            }

            /// Locks requests of these methods alone, safe ones included; `GET` stands for `HEAD` too. Default: every method but GET,
            /// HEAD, OPTIONS and TRACE.
            ///
            /// # Panics
            ///
            /// If there are none, or a name is none, or is a known method in lower case: names are
            /// case-sensitive, so it would match nothing and lock nothing.
            #[must_use]
            pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
                Self { gate: self.gate.methods(methods) }
            }

            /// The status of the busy answer, also after a wait. Default
            /// [`BusyStatus::Conflict`](::lockgate::BusyStatus), 409.
            #[must_use]
            pub fn busy_status(self, status: ::lockgate::BusyStatus) -> Self {
                Self { gate: self.gate.busy_status(status) }
            }
        }

        impl LockLayer {
            /// A lease that is never renewed: the lock ends after it, whatever the handler does, which is then
            /// treated by [`on_loss`](Self::on_loss). At least 100 ms, and never longer than
            /// [`max_hold`](Self::max_hold), 60 s by default: set that too for a longer one.
            #[must_use]
            pub fn fixed_lease(self, lease: ::std::time::Duration) -> Self {
                Self { gate: self.gate.fixed_lease(lease) }
            }

            /// How the lock may pass from one request of this process to the next without asking the
            /// store: at most this often (at most 32 times), within this time after a word from it.
            /// Default 16 times within 10 ms. Requests that came first to other processes may be passed so, once. See
            /// [`LockRequest::handover_limits`](::lockgate::lock::LockRequest::handover_limits).
            #[must_use]
            pub fn handover_limits(self, most: u32, within: ::std::time::Duration) -> Self {
                Self { gate: self.gate.handover_limits(most, within) }
            }

            /// Never passes the lock on without asking the store: the order of asking holds across
            /// processes, as far as times within a round trip can be told apart, at a call for each request.
            #[must_use]
            pub fn strict_order(self) -> Self {
                self.handover_limits(0, ::std::time::Duration::ZERO)
            }

            /// Most requests that may wait for one lock in this process; beyond it the busy answer comes
            /// at once, and the store is not asked, unless for an `Idempotency-Key`. With 0 nobody waits. Default 1024: who stands behind so
            /// many would be served after most clients have gone. For all locks of a store and its clones together 16,384 may wait,
            /// which is no setting.
            #[must_use]
            pub fn max_waiters(self, most: usize) -> Self {
                Self { gate: self.gate.max_waiters(most) }
            }

            /// Grants count only when so many replicas have them; else the store counts as away. Default
            /// 0. See [`LockRequest::min_replicas`](::lockgate::lock::LockRequest::min_replicas).
            #[must_use]
            pub fn min_replicas(self, replicas: u32) -> Self {
                Self { gate: self.gate.min_replicas(replicas) }
            }
        }
    };
}
