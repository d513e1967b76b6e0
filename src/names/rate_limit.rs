//! `RateLimitLayer`: where a quota's key comes from, and what it can be set to.

/// Defines `RateLimitLayer`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __rate_limit_names {
    ($native:ty) => {
        /// Limits requests per client: 429 beyond the quota, `RateLimit` fields within it.
        ///
        /// See [`lockgate::rate_limit`](::lockgate::rate_limit) for what happens to a request, and the
        /// crate documentation for an example. Put it outside the other layers.
        #[derive(Debug, Clone)]
        pub struct RateLimitLayer {
            pub(crate) gate: ::lockgate::rate_limit::RateLimitGate<$native>,
        }

        impl RateLimitLayer {
            /// A quota for each client address: the socket's other end, IPv6 by /64. Header fields such
            /// as `X-Forwarded-For` are not looked at: anybody can send them. Behind a proxy, where all its
            /// clients would share a quota, use [`by_client`](Self::by_client).
            #[must_use]
            pub fn by_ip(quota: ::lockgate::Quota) -> Self {
                Self::by(::lockgate::gate::KeySource::ip(), quota)
            }

            /// A quota for each value of a header field, such as an API key. A request without it, or
            /// with more than one, is answered with 400.
            #[must_use]
            pub fn by_header(name: &str, quota: ::lockgate::Quota) -> Self {
                Self::by(::lockgate::gate::KeySource::header(name), quota)
            }

            /// A quota for each value of a parameter of the matched route.
            #[must_use]
            pub fn by_path_param(name: &str, quota: ::lockgate::Quota) -> Self {
                Self::by(::lockgate::gate::KeySource::path_param(name), quota)
            }

            /// One quota for each route, whoever asks.
            #[must_use]
            pub fn by_route(quota: ::lockgate::Quota) -> Self {
                Self::by(::lockgate::gate::KeySource::route(), quota)
            }

            /// A quota for each value the function returns; `None` is answered with 400.
            #[must_use]
            pub fn by_key(
                key: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
                quota: ::lockgate::Quota,
            ) -> Self {
                Self::by(::lockgate::gate::KeySource::function(key), quota)
            }

            /// The policy's name, which clients see and counters are kept under. Default `default`.
            #[must_use]
            pub fn name(self, name: &str) -> Self {
                Self { gate: self.gate.name(name) }
            }

            /// Uses this store, whatever the request brings along.
            #[must_use]
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store) }
            }

            /// What to do while the store is away. Default [`Outage::Admit`](::lockgate::Outage): a
            /// limiter that is down should not take the service down with it.
            #[must_use]
            pub fn on_outage(self, outage: ::lockgate::Outage) -> Self {
                Self { gate: self.gate.on_outage(outage) }
            }
        }
    };
}
