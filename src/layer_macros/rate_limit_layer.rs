//! `RateLimitLayer`: where a quota's key comes from, and what it can be set to.

/// Defines `RateLimitLayer`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_rate_limit_layer {
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
            /// clients would share a quota, use [`by_client`](Self::by_client). In axum the server has to say
            /// who is calling (`into_make_service_with_connect_info::<SocketAddr>()`), or every request is
            /// answered with 500.
            #[must_use]
            pub fn by_ip(policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::ip(), policy)
            }

            /// A quota for each value of a header field, such as an API key. A request without it, or
            /// with more than one, is answered with 400.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            #[must_use]
            pub fn by_header(name: &str, policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::header(name), policy)
            }

            /// A quota for each text of a parameter of the matched route.
            ///
            /// `7`, `07` and `+7` (also sent as `%2B7`) are three quotas, and one order to a handler with
            /// `Path<u64>`: a client that spells the order differently gets another quota. For numbers, UUIDs and whatever else the
            /// handler parses, use [`by_path_param_as`](Self::by_path_param_as). This one is for values that
            /// stay texts; neither their case nor their Unicode form is normalized.
            ///
            /// A route without this parameter, or with two of this name, is a fault of the wiring: 500, and a log
            /// line that names the fix. A value whose bytes are not UTF-8 is answered with 400. A request that
            /// matches no route passes uncounted.
            #[must_use]
            pub fn by_path_param(name: &str, policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::path_param(name), policy)
            }

            /// The same for a parameter that is a `T` to the handler, such as a number or a UUID: one quota for each
            /// of these, however it is spelt. As texts `7`, `07` and `007` would each have one. What is no `T` is
            /// answered with 400, uncounted.
            #[must_use]
            pub fn by_path_param_as<T>(name: &str, policy: impl Into<::lockgate::Policy>) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                Self::by(::lockgate::gate::KeySource::path_param_as::<T>(name), policy)
            }

            /// One quota for each route, whoever asks.
            #[must_use]
            pub fn by_route(policy: impl Into<::lockgate::Policy>) -> Self {
                Self::by(::lockgate::gate::KeySource::route(), policy)
            }

            /// A quota for each value the function returns; `None` is answered with 400.
            ///
            /// The name says what the values are, and is part of the key, so that user 7 and tenant 7 have two
            /// quotas: [`Key::custom`](::lockgate::Key::custom), [named](::lockgate::Key::named) so.
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

            /// And this layer's policies: a request has to be within all of them, and is charged to all or
            /// to none. Settings of a policy are those of the one that was named last, so give the other
            /// one its own before it is handed over; a name above all, for clients cannot tell two that are
            /// called `default` apart.
            ///
            /// Policies whose keys are the same for a request, and all of a [group](Self::group_by), are
            /// decided in one call. Others are asked one after the other; if one refuses, what was charged to
            /// those before is given back. Of lists, fields and answers, those of the outer one count.
            #[must_use]
            pub fn and(self, other: RateLimitLayer) -> Self {
                Self { gate: self.gate.and(other.gate) }
            }

            /// Counts all policies of this layer under one key, so that one call decides about all of
            /// them. What is counted in one group is not seen in another: a policy for all clients together
            /// needs a group that they have in common. Default: each policy under its own key.
            #[must_use]
            pub fn group_by(self, keys: impl Into<KeyPart>) -> Self {
                Self { gate: self.gate.group_by(keys.into().into()) }
            }

            /// Uses this store, whatever the request brings along.
            #[must_use]
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store) }
            }
        }

        // Settings of the policy that was named last.
        impl RateLimitLayer {
            /// The policy's name, which clients see and counters are kept under: see
            /// [`Policy::name`](::lockgate::Policy::name). Default: clients read `default`, and layers count
            /// together for a key only if their quotas are the same.
            #[must_use]
            pub fn policy_name(self, name: &str) -> Self {
                Self { gate: self.gate.policy_name(name) }
            }

            /// What to do while the store is away. Default [`RateLimitOutage::LocalRateStatus`](::lockgate::RateLimitOutage): a limiter
            /// that is down should not take the service down with it, nor leave it without a limit.
            #[must_use]
            pub fn on_outage(self, outage: ::lockgate::RateLimitOutage) -> Self {
                Self { gate: self.gate.on_outage(outage) }
            }

            /// Decides and reports, and lets the request pass: see
            /// [`Policy::shadow`](::lockgate::Policy::shadow). Clients are not told of it.
            #[must_use]
            pub fn shadow(self) -> Self {
                Self { gate: self.gate.shadow() }
            }

            /// What a request costs; 0 charges nothing. Default: what the policy says, 1. A request that
            /// costs more than the quota ever lets in at once is answered with 403.
            #[must_use]
            pub fn cost_by(self, cost: impl Fn(&$native) -> u64 + Send + Sync + 'static) -> Self {
                Self { gate: self.gate.cost_by(cost) }
            }

            /// A quota that depends on the request, such as its client's plan: the function looks at the
            /// request, and what it returns may ask somebody else. Default: the layer's quota, for all.
            ///
            /// What it says is good for every request of that key for 10 s (see
            /// [`quota_ttl`](Self::quota_ttl)), in this layer and its clones, for at most 65,536 keys;
            /// requests that come while it is asked ask as well. (In actix-web a layer that is made in the closure of
            /// `HttpServer::new` is one for each thread: make it outside, and clone it.) It has no deadline but its own. What was
            /// spent stays spent when a quota changes, except between fixed windows, sliding ones and GCRA,
            /// which count apart. Refusals are remembered for 100 ms, not to the end of the window.
            #[must_use]
            pub fn quota_by<F>(self, quota: impl Fn(&$native) -> F + Send + Sync + 'static) -> Self
            where
                F: ::std::future::Future<Output = ::lockgate::Quota> + Send + 'static,
            {
                Self { gate: self.gate.quota_by(quota) }
            }

            /// How long a quota is used without asking for it again. Default 10 s: as long as a client who has
            /// changed plans may wait for it. Zero asks each time; more than a year is a year.
            ///
            /// # Panics
            ///
            /// If there is no [`quota_by`](Self::quota_by) before it.
            #[must_use]
            pub fn quota_ttl(self, fresh: ::std::time::Duration) -> Self {
                Self { gate: self.gate.quota_ttl(fresh) }
            }

            /// Gives back what a request was charged if the response has such a status. An error of the inner
            /// service counts as 500; in actix-web as the status that it has as a response. Default: never.
            ///
            /// The response waits until that is done, but for no store that is away: then it is tried again behind it, for
            /// five minutes at most, and for 1,024 counters at once. What can't be given back by then, or within the
            /// shutdown, stays charged until its window ends, and so does what the store has not answered in
            /// time: it may have been given back. A refund lapses with the window that it was charged
            /// in. A request that is dropped keeps its charge. Refusals are remembered for 100 ms, not to
            /// the end of the window. Inside another layer that asks the same this one charges the request as well, since
            /// it gives back what it has charged itself.
            #[must_use]
            pub fn refund_on(self, refund: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
                Self { gate: self.gate.refund_on(refund) }
            }

            /// Lets the handler say what its request has cost, with
            /// [`RateStatus::set_cost`](::lockgate::RateStatus::set_cost). Default: it can't.
            ///
            /// More than was charged when it came counts even beyond the limit, up to
            /// [ten times the quota](::lockgate::Quota::max_charge); less is given back as by
            /// [`refund_on`](Self::refund_on), which goes before. What the handler has said counts also if
            /// its request is dropped after that. While the store is away it is as with refunds: what can't be charged
            /// in time never is. Nor is it left out inside another layer that asks the same.
            #[must_use]
            pub fn handler_sets_cost(self) -> Self {
                Self { gate: self.gate.handler_sets_cost() }
            }
        }
    };
}
