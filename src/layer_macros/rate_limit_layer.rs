//! `RateLimitLayer`: its constructors, and the settings of its policies.

/// Defines `RateLimitLayer`, for `__define_layers`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_rate_limit_layer {
    ($native:ty) => {
        /// Limits requests per client: 429 beyond the quota, `RateLimit` headers within it.
        ///
        /// See [`lockgate::rate_limit`](::lockgate::rate_limit) for the handling of a request, and
        /// the crate documentation for an example. Put it outside the other layers.
        #[derive(Debug, Clone)]
        pub struct RateLimitLayer {
            pub(crate) gate: ::lockgate::rate_limit::RateLimitGate<$native>,
        }

        impl RateLimitLayer {
            /// One quota for each client address: the address of the peer's socket. IPv6 addresses
            /// of one /64 network share a quota.
            ///
            /// Headers such as `X-Forwarded-For` are ignored, because every client can send them.
            /// Behind a proxy all clients would share the proxy's quota: use
            /// [`by_client`](Self::by_client) there.
            ///
            /// In axum the server has to provide the address
            /// (`into_make_service_with_connect_info::<SocketAddr>()`); otherwise every request
            /// gets 500.
            #[must_use]
            pub fn by_ip(policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::ip(), policy)
            }

            /// One quota for each value of a header, such as an API key. A request without the
            /// header, or with more than one of them, gets 400.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn by_header(name: &str, policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::header(name), policy)
            }

            /// One quota for each text of a parameter of the matched route.
            ///
            /// `7`, `07` and `+7` (also sent as `%2B7`) are three quotas but one order to a handler
            /// with `Path<u64>`, so a client gets another quota by another spelling. Use
            /// [`by_path_param_as`](Self::by_path_param_as) for numbers, UUIDs and other values
            /// that the handler parses, and this constructor for values that stay texts. Neither
            /// their case nor their Unicode form is normalized.
            ///
            /// - A route without this parameter, or with two parameters of this name, is a
            ///   misconfiguration: the response is 500, and a log message names the fix.
            /// - A value that is not valid UTF-8 gets 400.
            /// - A request that matches no route passes uncounted.
            #[must_use]
            pub fn by_path_param(name: &str, policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::path_param(name), policy)
            }

            /// One quota for each value of a parameter that the handler parses as a `T`, such as a
            /// number or a UUID.
            ///
            /// All spellings of a value share its quota: as texts, `7`, `07` and `007` would each
            /// have one. A value that is not a `T` gets 400, uncounted. Everything else is as in
            /// [`by_path_param`](Self::by_path_param).
            #[must_use]
            pub fn by_path_param_as<T>(name: &str, policy: impl Into<::lockgate::Policy>) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self::by(::lockgate::gate::KeySource::path_param_as::<T>(name), policy)
            }

            /// One quota for each route, shared by all clients.
            #[must_use]
            pub fn by_route(policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::route(), policy)
            }

            /// One quota for each value that the function returns. `None` gets 400.
            ///
            /// The name identifies the kind of the values and is part of the key, so user 7 and
            /// tenant 7 have two quotas. The key is a [`Key::custom`](::lockgate::Key::custom) with
            /// this [name](::lockgate::Key::named).
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn by_key(
                name: &str,
                key: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
                policy: impl Into<::lockgate::Policy>,
            ) -> Self {
                Self::by(::lockgate::gate::KeySource::named_function(name, key), policy)
            }

            /// Adds the policies of another layer: a request has to be within all policies, and is
            /// charged to all of them or to none.
            ///
            /// Setters of a policy apply to the last policy added, so set those of the other layer
            /// before you pass it here. Above all set its [name](Self::policy_name): clients cannot
            /// distinguish two policies that are both called `default`.
            ///
            /// Policies with the same key for a request, and all policies of a
            /// [group](Self::group_by), are decided in one call. Other policies are asked one after
            /// the other; if one refuses, the charges of the earlier ones are refunded. The access
            /// lists, rate headers and refusal responses are those of the outer layer.
            #[must_use]
            pub fn and(self, other: RateLimitLayer) -> Self {
                Self { gate: self.gate.and(other.gate) }
            }

            /// Counts all policies of this layer under one key, so that one call decides all of
            /// them. Default: each policy under its own key.
            ///
            /// Each group has counters of its own: a policy for all clients together needs a group
            /// that all clients share.
            #[must_use]
            pub fn group_by(self, keys: impl Into<KeyPart>) -> Self {
                Self { gate: self.gate.group_by(keys.into().into()) }
            }

            /// Uses this store instead of the one that the request provides.
            #[must_use]
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store) }
            }
        }

        // Settings of the last policy added.
        impl RateLimitLayer {
            /// Name of the policy, which clients see and counters are stored under: see
            /// [`Policy::with_name`](::lockgate::Policy::with_name).
            ///
            /// Default: clients see `default`, and layers share the counter of a key only if their
            /// quotas are equal.
            #[must_use]
            pub fn policy_name(self, name: &str) -> Self {
                Self { gate: self.gate.policy_name(name) }
            }

            /// Reaction to an unavailable store. Default:
            /// [`RateLimitOutage::Local`](::lockgate::RateLimitOutage), in which each process
            /// enforces its share of the quota, so that an outage of the limiter neither stops the
            /// service nor leaves it without a limit.
            #[must_use]
            pub fn on_outage(self, outage: ::lockgate::RateLimitOutage) -> Self {
                Self { gate: self.gate.on_outage(outage) }
            }

            /// Charges and reports, but never refuses: see
            /// [`Policy::shadow`](::lockgate::Policy::shadow). Clients do not see the policy.
            #[must_use]
            pub fn shadow(self) -> Self {
                Self { gate: self.gate.shadow() }
            }

            /// Cost of a request. Default: the cost of the policy, 1.
            ///
            /// A cost of 0 charges nothing. A request that costs more than the quota ever admits at
            /// once gets 403.
            #[must_use]
            pub fn cost_by(self, cost: impl Fn(&$native) -> u64 + Send + Sync + 'static) -> Self {
                Self { gate: self.gate.cost_by(cost) }
            }

            /// Quota that depends on the request, such as on its client's plan. Default: the
            /// layer's quota, for all requests.
            ///
            /// The function reads the request, and the future that it returns may look the quota up
            /// elsewhere; it has no timeout but its own.
            ///
            /// - A quota is cached for 10 s (see [`quota_ttl`](Self::quota_ttl)), for every request
            ///   of its key, in this layer and its clones, and for at most 65,536 keys. Requests
            ///   that arrive during a lookup look it up too. (In actix-web a layer that is created
            ///   in the closure of `HttpServer::new` exists once for each thread: create it outside
            ///   and clone it.)
            /// - Units already spent stay spent when a quota changes, except between fixed windows,
            ///   sliding windows and GCRA, which have separate counters.
            /// - Refusals are cached for 100 ms, not until the end of the window.
            #[must_use]
            pub fn quota_by<F>(self, quota: impl Fn(&$native) -> F + Send + Sync + 'static) -> Self
            where
                F: ::std::future::Future<Output = ::lockgate::Quota> + Send + 'static,
            {
                Self { gate: self.gate.quota_by(quota) }
            }

            /// Time for which the result of `quota_by` is cached. Default: 10 s, the time that a
            /// client may have to wait for a new plan. Zero looks it up for every request; at most
            /// a year.
            ///
            /// # Panics
            ///
            /// If [`quota_by`](Self::quota_by) was not called before.
            #[must_use]
            pub fn quota_ttl(self, fresh: ::std::time::Duration) -> Self {
                Self { gate: self.gate.quota_ttl(fresh) }
            }

            /// Refunds the charge of a request if the function returns true for the status of its
            /// response. Default: no refunds.
            ///
            /// An error of the inner service counts as 500; in actix-web it counts as the status of
            /// its response.
            ///
            /// - The response waits for the refund, unless the store is unavailable. Then the
            ///   refund is retried in the background, for at most five minutes and for at most
            ///   1,024 counters at once. A refund that fails within that time, or within the
            ///   shutdown, leaves the charge in place until its window ends. So does a refund that
            ///   the store did not answer in time, since it may have been executed.
            /// - A refund lapses with the window of its charge.
            /// - A request that is dropped keeps its charge.
            /// - Refusals are cached for 100 ms, not until the end of the window.
            /// - Inside another layer with the same policy this one charges the request as well,
            ///   because it refunds only its own charges.
            #[must_use]
            pub fn refund_on(self, refund: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
                Self { gate: self.gate.refund_on(refund) }
            }

            /// Lets the handler set the cost of its request by
            /// [`RateStatus::set_cost`](::lockgate::RateStatus::set_cost). Default: it cannot.
            ///
            /// - A higher cost than the one charged on arrival is charged even beyond the limit, up
            ///   to [ten times the quota](::lockgate::Quota::max_charge).
            /// - A lower cost is refunded as by [`refund_on`](Self::refund_on), which takes
            ///   precedence.
            /// - A cost that was set applies even if the request is dropped afterwards.
            /// - If the store is unavailable, the rules of refunds apply; a charge that fails for
            ///   too long is dropped.
            /// - Inside another layer with the same policy this one charges the request as well.
            #[must_use]
            pub fn handler_sets_cost(self) -> Self {
                Self { gate: self.gate.handler_sets_cost() }
            }
        }
    };
}
