//! `KeyPart`, the constructors of the layers that take it, and the response options of
//! `RateLimitLayer`.

/// Defines `KeyPart`, the constructors of the layers that take it, and the response options of
/// `RateLimitLayer`, for `__define_layers`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_key_part {
    ($native:ty, $extension:ident) => {
        /// Part of a key, for `by` of the layers.
        ///
        /// A tuple of parts is one key: another value of any part is another key.
        /// `RateLimitLayer::by((KeyPart::ip(), KeyPart::header("x-api-key")), quota)` is one quota
        /// for each API key at each address.
        #[derive(Debug, Clone)]
        pub struct KeyPart {
            source: ::lockgate::gate::KeySource<$native>,
        }

        impl KeyPart {
            /// The address of the peer's socket; IPv6 by /64 networks. Headers are ignored.
            #[must_use]
            pub fn ip() -> Self {
                ::lockgate::gate::KeySource::ip().into()
            }

            /// The address of the client, also behind proxies.
            #[must_use]
            pub fn client(address: ::lockgate::ClientAddress) -> Self {
                ::lockgate::gate::KeySource::client(address).into()
            }

            /// A header, which must occur exactly once.
            ///
            /// # Panics
            ///
            /// If `name` is not a valid header name.
            #[must_use]
            pub fn header(name: &str) -> Self {
                ::lockgate::gate::KeySource::header(name).into()
            }

            /// The text of a parameter of the matched route. `7`, `07` and `+7` are three keys: use
            /// [`path_param_as`](Self::path_param_as) for values that the handler parses.
            #[must_use]
            pub fn path_param(name: &str) -> Self {
                ::lockgate::gate::KeySource::path_param(name).into()
            }

            /// A parameter of the matched route that the handler parses as a `T`: see
            /// `by_path_param_as` of the layers.
            #[must_use]
            pub fn path_param_as<T>(name: &str) -> Self
            where
                T: ::std::str::FromStr + ::std::fmt::Display,
            {
                ::lockgate::gate::KeySource::path_param_as::<T>(name).into()
            }

            /// The matched route.
            #[must_use]
            pub fn route() -> Self {
                ::lockgate::gate::KeySource::route().into()
            }

            /// A value of the request's extensions: see `by_extension` of the layers.
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn extension<T>(name: &str) -> Self
            where
                T: ::std::fmt::Display + Send + Sync + 'static,
            {
                $extension::<T>(name).into()
            }

            /// The value that the function returns. `None` gets 400. The name is part of the key:
            /// see `by_key` of the layers.
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn from_fn(
                name: &str,
                key: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                ::lockgate::gate::KeySource::named_function(name, key).into()
            }

            /// Joins two parts to one key: another value of either part is another key.
            #[must_use]
            pub fn and(self, other: impl Into<KeyPart>) -> Self {
                self.source.and(other.into().source).into()
            }
        }

        impl From<::lockgate::gate::KeySource<$native>> for KeyPart {
            fn from(source: ::lockgate::gate::KeySource<$native>) -> Self {
                Self { source }
            }
        }

        impl From<KeyPart> for ::lockgate::gate::KeySource<$native> {
            fn from(keys: KeyPart) -> Self {
                keys.source
            }
        }

        impl<A: Into<KeyPart>, B: Into<KeyPart>> From<(A, B)> for KeyPart {
            fn from((a, b): (A, B)) -> Self {
                a.into().and(b)
            }
        }

        impl<A: Into<KeyPart>, B: Into<KeyPart>, C: Into<KeyPart>> From<(A, B, C)> for KeyPart {
            fn from((a, b, c): (A, B, C)) -> Self {
                a.into().and(b).and(c)
            }
        }

        impl<A, B, C, D> From<(A, B, C, D)> for KeyPart
        where
            A: Into<KeyPart>,
            B: Into<KeyPart>,
            C: Into<KeyPart>,
            D: Into<KeyPart>,
        {
            fn from((a, b, c, d): (A, B, C, D)) -> Self {
                a.into().and(b).and(c).and(d)
            }
        }

        impl RateLimitLayer {
            /// One quota for each value of this key: one part, or a tuple of up to four.
            #[must_use]
            pub fn by(keys: impl Into<KeyPart>, policy: impl Into<::lockgate::Policy>) -> Self {
                Self {
                    gate: ::lockgate::rate_limit::RateLimitGate::new(keys.into().into(), policy),
                }
            }

            /// One quota for each client address, also behind proxies: see
            /// [`ClientAddress`](::lockgate::ClientAddress) for the trusted headers.
            #[must_use]
            pub fn by_client(
                address: ::lockgate::ClientAddress,
                policy: impl Into<::lockgate::Policy>,
            ) -> Self {
                Self::by(KeyPart::client(address), policy)
            }

            /// One quota for each value of type `T` that an outer layer has put into the request's
            /// extensions, such as the account of an authentication. A request without the value is
            /// a misconfiguration: the response is 500, and a message is logged.
            ///
            /// The name identifies the kind of the values and is part of the key, so user 7 and
            /// tenant 7 have two quotas: `RateLimitLayer::by_extension::<User>("user", quota)`. See
            /// [`Key::extension`](::lockgate::Key::extension).
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn by_extension<T>(name: &str, policy: impl Into<::lockgate::Policy>) -> Self
            where
                T: ::std::fmt::Display + Send + Sync + 'static,
            {
                Self::by(KeyPart::extension::<T>(name), policy)
            }

            /// Admits listed clients without counting, and refuses others with 403. Default: empty
            /// lists. A second call replaces the lists of the first.
            #[must_use]
            pub fn access_lists(self, lists: ::lockgate::AccessLists) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.access_lists(lists)) }
            }

            /// Charges CORS preflights too: OPTIONS with `Origin` and
            /// `Access-Control-Request-Method`.
            ///
            /// Default: they pass uncounted, since browsers send them on their own, cannot read a
            /// refusal, and do not add an API key. A CORS layer answers them cheaply. Every client
            /// can send such requests, so set this if no CORS layer is inside this one and a
            /// handler accepts every method.
            #[must_use]
            pub fn charge_preflights(self) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.charge_preflights()) }
            }

            /// Headers that report the quota to clients. Default:
            /// [`RateHeaders::Draft`](::lockgate::RateHeaders), `RateLimit-Policy` and `RateLimit`.
            #[must_use]
            pub fn rate_headers(self, fields: ::lockgate::RateHeaders) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.headers(fields)) }
            }

            /// Lists the rate headers and `Retry-After` in `Access-Control-Expose-Headers`, so that
            /// scripts of other origins can read them. Default: off.
            ///
            /// A CORS layer inside this one does not see refusals: put it outside.
            #[must_use]
            pub fn expose_headers(self) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.expose_headers()) }
            }

            /// Builds the complete response to a refused request. Default:
            /// [`RateRefusal::reply`](::lockgate::RateRefusal::reply), which the function may call
            /// and modify. It must not block.
            #[must_use]
            pub fn refusal_response(
                self,
                respond: impl Fn(&::lockgate::RateRefusal<'_>) -> ::lockgate::Reply
                + Send
                + Sync
                + 'static,
            ) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.refusal_response(respond)) }
            }

            /// Refuses requests in a form that gRPC clients understand:
            /// [`RateRefusal::grpc_reply`](::lockgate::RateRefusal::grpc_reply).
            #[must_use]
            pub fn grpc_refusals(self) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.grpc_refusals()) }
            }
        }

        impl LockLayer {
            /// One lock for each value of this key: one part, or a tuple of up to four.
            ///
            /// # Panics
            ///
            /// If a request may have no key: see
            /// [`MissingAddress::Skip`](::lockgate::MissingAddress).
            #[must_use]
            pub fn by(keys: impl Into<KeyPart>) -> Self {
                Self { gate: ::lockgate::lock::LockGate::new(keys.into().into()) }
            }

            /// One lock for each client address, also behind proxies: see
            /// [`ClientAddress`](::lockgate::ClientAddress) for the trusted headers.
            ///
            /// # Panics
            ///
            /// If a request may have no key: see
            /// [`MissingAddress::Skip`](::lockgate::MissingAddress).
            #[must_use]
            pub fn by_client(address: ::lockgate::ClientAddress) -> Self {
                Self::by(KeyPart::client(address))
            }

            /// One lock for each value of type `T` that an outer layer has put into the request's
            /// extensions. A request without the value is a misconfiguration: the response is 500,
            /// and a message is logged. A deferred request runs with the value that the worker's
            /// routes put there.
            ///
            /// The name identifies the kind of the values and is part of the key, so user 7 and
            /// tenant 7 are two locks: see [`Key::extension`](::lockgate::Key::extension).
            ///
            /// # Panics
            ///
            /// If the name is empty.
            #[must_use]
            pub fn by_extension<T>(name: &str) -> Self
            where
                T: ::std::fmt::Display + Send + Sync + 'static,
            {
                Self::by(KeyPart::extension::<T>(name))
            }
        }
    };
}
