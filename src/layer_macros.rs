//! Macros that define the layers of every integration.
//!
//! The orphan rule requires types of its own in each integration. These macros define them, so that
//! the names, the settings and their documentation are the same everywhere. An integration adds
//! only the code that turns them into layers of its framework.

mod defer;
mod key_part;
mod lock_settings;
mod rate_limit_layer;

/// Defines `RateLimitLayer`, `LockLayer`, `DeferLayer`, `DeferWorker`, `DeferredRoutes` and
/// `KeyPart`.
///
/// Arguments:
///
/// - `$native`: the framework's request type, which is passed to closures.
/// - `$extension`: `$extension::<T>(name)` returns a `KeySource` that reads a `T` from the
///   request's extensions.
/// - `$found`: `$found::<T>(&native)` finds a `T` in the request's extensions.
/// - `$put`: `$put(value)` returns the inserter with which the integration's replayer puts the
///   value into the extensions of a run.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_layers {
    ($native:ty, $extension:ident, $found:ident, $put:ident) => {
        ::lockgate::__define_rate_limit_layer!($native);

        ::lockgate::__define_key_part!($native, $extension);

        /// Serializes requests per resource: 409 with `Retry-After` while another request holds the
        /// lock, or a wait in its queue.
        ///
        /// See [`lockgate::lock`](::lockgate::lock) for the handling of a request, and the crate
        /// documentation for an example.
        ///
        /// A lock is named by the kind of its key, the parameter's name, the scope and the value,
        /// never by the layer. Two routes with the same parameter name and value therefore share a
        /// lock, which is the safe default; [`scope`](Self::scope) separates them.
        #[derive(Debug, Clone)]
        pub struct LockLayer {
            pub(crate) gate: ::lockgate::lock::LockGate<$native>,
        }

        impl LockLayer {
            /// One lock for each text of a parameter of the matched route.
            ///
            /// `7`, `07` and `+7` (also sent as `%2B7`) are three locks but one order to a handler
            /// with `Path<u64>`, so a client that spells the number differently is not excluded.
            /// Use [`by_path_param_as`](Self::by_path_param_as) for numbers, UUIDs and other values
            /// that the handler parses, and this constructor for values that stay texts, such as
            /// codes with significant leading zeros.
            ///
            /// The text is percent-decoded and otherwise unchanged: neither its case nor its
            /// Unicode form (`é` as one character or as two) is normalized. If the handler ignores
            /// either, normalize in [`by_key`](Self::by_key).
            ///
            /// - A route without this parameter, or with two parameters of this name (`nest` or
            ///   `scope` with a prefix that has one too), is a misconfiguration: the response is
            ///   500, and a log message names the fix.
            /// - A value that is not valid UTF-8 gets 400.
            /// - A request that matches no route passes without a lock.
            #[must_use]
            pub fn by_path_param(name: &str) -> Self {
                Self::by(::lockgate::gate::KeySource::path_param(name))
            }

            /// One lock for each value of a parameter that the handler parses as a `T`, such as a
            /// number or a UUID.
            ///
            /// The spelling does not matter: with `by_path_param_as::<u64>("id")`, `/orders/7`,
            /// `/orders/07` and `/orders/+7` take the same lock, as they are one order to a handler
            /// with `Path<u64>`. Use the type that the handler parses.
            ///
            /// The lock is the one of [`by_path_param`](Self::by_path_param) for the value's
            /// [`Display`](std::fmt::Display) text. A value that is not a `T` gets 400. Everything
            /// else is as in `by_path_param`.
            #[must_use]
            pub fn by_path_param_as<T>(name: &str) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self::by(::lockgate::gate::KeySource::path_param_as::<T>(name))
            }

            /// One lock for each value of a header. A request without the header gets 400.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn by_header(name: &str) -> Self {
                Self::by(::lockgate::gate::KeySource::header(name))
            }

            /// One lock for each client address: the address of the peer's socket. IPv6 addresses
            /// of one /64 network share a lock.
            ///
            /// In axum the server has to provide the address
            /// (`into_make_service_with_connect_info::<SocketAddr>()`); otherwise every request
            /// gets 500.
            #[must_use]
            pub fn by_ip() -> Self {
                Self::by(::lockgate::gate::KeySource::ip())
            }

            /// One lock for each route.
            #[must_use]
            pub fn by_route() -> Self {
                Self::by(::lockgate::gate::KeySource::route())
            }

            /// One lock for each value that the function returns. `None` gets 400.
            ///
            /// The name identifies the kind of the values and is part of the key, so user 7 and
            /// tenant 7 are two locks. The key is a [`Key::custom`](::lockgate::Key::custom) with
            /// this [name](::lockgate::Key::named).
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn by_key(
                name: &str,
                key: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self::by(::lockgate::gate::KeySource::named_function(name, key))
            }

            /// Separates keys of one kind: with scopes, `/orders/7` and `/users/7` are two locks.
            #[must_use]
            pub fn scope(self, scope: &str) -> Self {
                Self { gate: self.gate.scope(scope) }
            }

            /// Waits in the lock's queue for at most this time before the busy response. At most
            /// ten minutes. Default: no wait.
            ///
            /// Inside a `DeferLayer`, the wait of that layer applies instead.
            #[must_use]
            pub fn wait(self, wait: ::std::time::Duration) -> Self {
                Self { gate: self.gate.wait(wait) }
            }

            /// Time for which the lock outlives its process; it is renewed at a third of that. At
            /// least 100 ms. Default: 10 s, long enough to survive pauses and short outages, short
            /// enough to wait for.
            #[must_use]
            pub fn lease(self, lease: ::std::time::Duration) -> Self {
                Self { gate: self.gate.lease(lease) }
            }

            /// Longest time for which a request may hold the lock. At least 100 ms. Default: 60 s,
            /// which bounds a handler that never ends.
            #[must_use]
            pub fn max_hold(self, max_hold: ::std::time::Duration) -> Self {
                Self { gate: self.gate.max_hold(max_hold) }
            }

            /// Locks requests with safe methods too. Default: GET, HEAD, OPTIONS and TRACE take no
            /// lock.
            #[must_use]
            pub fn all_methods(self) -> Self {
                Self { gate: self.gate.all_methods() }
            }

            /// Uses this store instead of the one that the request provides.
            #[must_use]
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store) }
            }

            /// Reaction to an unavailable store. Default:
            /// [`LockOutage::Refuse`](::lockgate::LockOutage), since two concurrent changes are
            /// worse than none.
            #[must_use]
            pub fn on_outage(self, outage: ::lockgate::LockOutage) -> Self {
                Self { gate: self.gate.on_outage(outage) }
            }
        }

        // Loss and release of the lock.
        impl LockLayer {
            /// Reaction to the loss of the lock while the handler runs. Default:
            /// [`OnLoss::Cancel`](::lockgate::OnLoss), since a cancelled handler is better than two
            /// concurrent ones.
            ///
            /// If layers with the same key are nested, each of them reacts to the loss of the one
            /// lock. A deferred request that loses its lock is always abandoned.
            #[must_use]
            pub fn on_loss(self, on_loss: ::lockgate::OnLoss) -> Self {
                Self { gate: self.gate.on_loss(on_loss) }
            }

            /// End of the hold. Default: [`HoldUntil::Answered`](::lockgate::HoldUntil), until the
            /// handler has responded. If layers with the same key are nested, the setting of the
            /// outer one applies.
            #[must_use]
            pub fn hold_until(self, hold_until: ::lockgate::HoldUntil) -> Self {
                Self { gate: self.gate.hold_until(hold_until) }
            }

            /// Total time that a handler under the lock may wait for the request's body. Default: 5
            /// s, since a slow client must not block the waiters of the lock; receive a body that
            /// takes longer before you take the lock.
            ///
            /// When the time is over, the handler is dropped and the response is 408.
            ///
            /// Only time counts in which the handler has asked for more of the body and none has
            /// arrived, and none after the end of the body was read. `Duration::MAX` disables the
            /// timeout. If layers with the same key are nested, the setting of the outer one
            /// applies.
            #[must_use]
            pub fn body_read_timeout(self, deadline: ::std::time::Duration) -> Self {
                Self { gate: self.gate.body_read_timeout(deadline) }
            }

            /// Releases the lock while the response is already on its way, which saves the response
            /// a round trip. Default: the response waits for the release.
            ///
            /// The cost:
            ///
            /// - A client that acts on the response at once may find the lock busy, and get 409 or
            ///   wait for it.
            /// - The response cannot report that the release failed or that the lock had been lost.
            #[must_use]
            pub fn release_in_background(self) -> Self {
                Self { gate: self.gate.release_in_background() }
            }
        }

        ::lockgate::__define_lock_settings!($native);

        ::lockgate::__define_defer!($native, $found, $put);
    };
}
