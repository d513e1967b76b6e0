//! The names at the call site, written once for all integrations.
//!
//! The orphan rule asks for a type of its own in each integration; this macro makes them, so that names,
//! settings and their documentation can't drift apart. An integration adds what makes them layers of
//! its framework, and nothing else.

mod defer;
mod key_part;
mod lock_settings;
mod rate_limit_layer;

/// Defines `RateLimitLayer`, `LockLayer`, `DeferLayer`, `DeferWorker` and `DeferredRoutes` over the
/// framework's own request type, which closures get to see. The integration's functions: `extension::<T>(name)`
/// makes a `KeySource` of what lies in a request's extensions, `found::<T>(&native)` finds it there, and
/// `put(value)` makes what its replayer puts there.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_layers {
    ($native:ty, $extension:ident, $found:ident, $put:ident) => {
        ::lockgate::__define_rate_limit_layer!($native);

        ::lockgate::__define_key_part!($native, $extension);

        /// Serializes requests per resource: 409 with `Retry-After` while another one changes it, or a
        /// wait in line.
        ///
        /// See [`lockgate::lock`](::lockgate::lock) for what happens to a request, and the crate
        /// documentation for an example. A lock is named by the kind of its key, the parameter's name,
        /// its scope and its value, never by the layer: two routes with the same parameter and value
        /// share a lock, which is the safe side.
        #[derive(Debug, Clone)]
        pub struct LockLayer {
            pub(crate) gate: ::lockgate::lock::LockGate<$native>,
        }

        impl LockLayer {
            /// A lock for each text of a parameter of the matched route.
            ///
            /// `7`, `07` and `+7` (also sent as `%2B7`) are three locks, and one order to a handler with
            /// `Path<u64>`: a client that spells the order differently is not excluded. For numbers, UUIDs and whatever else the
            /// handler parses, use [`by_path_param_as`](Self::by_path_param_as). This one is for values that
            /// stay texts, such as codes whose leading zeros count.
            ///
            /// The text is percent-decoded and otherwise taken as it is: neither its case nor its Unicode form
            /// (`é` as one character or as two) is normalized. Where the handler ignores either, normalize in
            /// [`by_key`](Self::by_key).
            ///
            /// A route without this parameter, or with two of this name (`nest` or `scope` with a prefix that
            /// has one too), is a fault of the wiring: 500, and a log line that names the fix. A value whose
            /// bytes are not UTF-8 is answered with 400. A request that matches no route passes without a lock.
            #[must_use]
            pub fn by_path_param(name: &str) -> Self {
                Self::by(::lockgate::gate::KeySource::path_param(name))
            }

            /// A lock for each value of a parameter that is a `T` to the handler, such as a number or a UUID, however
            /// the client spells it: to `by_path_param_as::<u64>("id")`, `/orders/7`, `/orders/07` and `/orders/+7` are
            /// one lock, as they are one order to a handler with `Path<u64>`.
            ///
            /// Use the type that the handler parses. Otherwise as [`by_path_param`](Self::by_path_param).
            ///
            /// The lock is that of [`by_path_param`](Self::by_path_param) for the value as its
            /// [`Display`](std::fmt::Display) writes it. What is no `T` is answered with 400.
            #[must_use]
            pub fn by_path_param_as<T>(name: &str) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self::by(::lockgate::gate::KeySource::path_param_as::<T>(name))
            }

            /// A lock for each value of a header field. A request without it is answered with 400.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            #[must_use]
            pub fn by_header(name: &str) -> Self {
                Self::by(::lockgate::gate::KeySource::header(name))
            }

            /// A lock for each client address: the socket's other end, IPv6 by /64, so neighbours share one. In
            /// axum the server has to say who is calling (`into_make_service_with_connect_info::<SocketAddr>()`),
            /// or every request is answered with 500.
            #[must_use]
            pub fn by_ip() -> Self {
                Self::by(::lockgate::gate::KeySource::ip())
            }

            /// One lock for each route.
            #[must_use]
            pub fn by_route() -> Self {
                Self::by(::lockgate::gate::KeySource::route())
            }

            /// A lock for each value the function returns; `None` is answered with 400.
            ///
            /// The name says what the values are, and is part of the key, so that user 7 and tenant 7 are two
            /// locks: [`Key::custom`](::lockgate::Key::custom), [named](::lockgate::Key::named) so.
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

            /// Keeps keys of one kind apart: with scopes, `/orders/7` and `/users/7` are two locks.
            #[must_use]
            pub fn scope(self, scope: &str) -> Self {
                Self { gate: self.gate.scope(scope) }
            }

            /// Stand in line for at most this long (at most ten minutes) before the busy answer.
            /// Default: don't. With a `DeferLayer` outside, that says how long.
            #[must_use]
            pub fn wait(self, wait: ::std::time::Duration) -> Self {
                Self { gate: self.gate.wait(wait) }
            }

            /// How long the lock outlives its process; renewed at a third. Default 10 s: long enough to survive
            /// pauses and short outages, short enough to wait for. At least 100 ms.
            #[must_use]
            pub fn lease(self, lease: ::std::time::Duration) -> Self {
                Self { gate: self.gate.lease(lease) }
            }

            /// How long a request may hold it in all. Default 60 s: bounds a handler that never ends. At least
            /// 100 ms.
            #[must_use]
            pub fn max_hold(self, max_hold: ::std::time::Duration) -> Self {
                Self { gate: self.gate.max_hold(max_hold) }
            }

            /// Locks safe methods too. Default: GET, HEAD, OPTIONS and TRACE take no lock.
            #[must_use]
            pub fn all_methods(self) -> Self {
                Self { gate: self.gate.all_methods() }
            }

            /// Uses this store, whatever the request brings along.
            #[must_use]
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store) }
            }

            /// What to do while the store is away. Default
            /// [`LockOutage::Refuse`](::lockgate::LockOutage): two changes at once are worse than none.
            #[must_use]
            pub fn on_outage(self, outage: ::lockgate::LockOutage) -> Self {
                Self { gate: self.gate.on_outage(outage) }
            }
        }

        // How the lock ends.
        impl LockLayer {
            /// What becomes of a request that loses its lock while its handler runs. Default
            /// [`OnLoss::Cancel`](::lockgate::OnLoss): a handler that is cut off is better than two at
            /// once. Of nested layers of one key each acts on the loss of the one lock. A deferred
            /// request that loses its lock is abandoned, whatever is set here.
            #[must_use]
            pub fn on_loss(self, on_loss: ::lockgate::OnLoss) -> Self {
                Self { gate: self.gate.on_loss(on_loss) }
            }

            /// How long a request keeps its lock. Default
            /// [`HoldUntil::Answered`](::lockgate::HoldUntil): until the handler has answered. Of nested
            /// layers of one key the outer one decides.
            #[must_use]
            pub fn hold_until(self, hold_until: ::lockgate::HoldUntil) -> Self {
                Self { gate: self.gate.hold_until(hold_until) }
            }

            /// How long a handler under the lock may wait for the body of its request, in all. Default
            /// 5 s: a client that dribbles must not hold what others wait for, and a body that takes
            /// longer should be taken in before the lock is. Beyond it the handler is dropped, and the
            /// answer is 408, whatever it was about to be.
            ///
            /// Counted is the time in which the handler has asked for more of the body and nothing
            /// came; not the time it spends otherwise, and nothing once it has read the body to its
            /// end. `Duration::MAX` counts nothing. Of nested layers of one key the outer one counts.
            #[must_use]
            pub fn body_read_timeout(self, deadline: ::std::time::Duration) -> Self {
                Self { gate: self.gate.body_read_timeout(deadline) }
            }

            /// Gives the lock back while the answer goes out already, which saves the answer a round
            /// trip. Default: the answer waits until the lock is given back.
            ///
            /// What it costs: a client that acts on the answer at once may still meet its own lock, and
            /// be told 409 or stand in line for it; and that the store did not take the lock back, or
            /// that it had been lost meanwhile, is no longer known when the answer goes out.
            #[must_use]
            pub fn release_in_background(self) -> Self {
                Self { gate: self.gate.release_in_background() }
            }
        }

        ::lockgate::__define_lock_settings!($native);

        ::lockgate::__define_defer!($native, $found, $put);
    };
}
