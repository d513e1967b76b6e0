//! What keys are made of, and what a `RateLimitLayer` shows the outside.

/// Defines `KeyPart`, and the layers' methods about keys, lists and answers, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_key_part {
    ($native:ty, $extension:ident) => {
        /// What a key is made of, for the layers' `by`: one thing, or several of which each counts.
        ///
        /// A tuple of them is one key of all: another value of any is another key.
        /// `RateLimitLayer::by((KeyPart::ip(), KeyPart::header("x-api-key")), quota)` is a quota for each API
        /// key at each address.
        #[derive(Debug, Clone)]
        pub struct KeyPart {
            source: ::lockgate::gate::KeySource<$native>,
        }

        impl KeyPart {
            /// The client's address, as the socket shows it; IPv6 by /64. Header fields are not looked at.
            #[must_use]
            pub fn ip() -> Self {
                ::lockgate::gate::KeySource::ip().into()
            }

            /// The client's address, also behind proxies.
            #[must_use]
            pub fn client(address: ::lockgate::ClientAddress) -> Self {
                ::lockgate::gate::KeySource::client(address).into()
            }

            /// A header field, which must be there exactly once.
            ///
            /// # Panics
            ///
            /// If the name is none that a field can have.
            #[must_use]
            pub fn header(name: &str) -> Self {
                ::lockgate::gate::KeySource::header(name).into()
            }

            /// The text of a parameter of the matched route. `7`, `07` and `+7` are three keys: for what the
            /// handler parses, use [`path_param_as`](Self::path_param_as).
            #[must_use]
            pub fn path_param(name: &str) -> Self {
                ::lockgate::gate::KeySource::path_param(name).into()
            }

            /// The same of a parameter that is a `T` to the handler: see `by_path_param_as`.
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

            /// A value in the request's extensions: see `by_extension`.
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

            /// Whatever the function returns; `None` is answered with 400. The name says what that is: see
            /// `by_key`.
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

            /// One key of both: another value of either is another key.
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
            /// A quota for each value of these keys: one of them, or a tuple of up to four.
            #[must_use]
            pub fn by(keys: impl Into<KeyPart>, policy: impl Into<::lockgate::Policy>) -> Self {
                Self {
                    gate: ::lockgate::rate_limit::RateLimitGate::new(keys.into().into(), policy),
                }
            }

            /// A quota for each client address, also behind proxies: see
            /// [`ClientAddress`](::lockgate::ClientAddress) for what is believed of whom.
            #[must_use]
            pub fn by_client(
                address: ::lockgate::ClientAddress,
                policy: impl Into<::lockgate::Policy>,
            ) -> Self {
                Self::by(KeyPart::client(address), policy)
            }

            /// A quota for each value that a layer further out has put into the request's extensions under
            /// this type, such as the account of an authentication. A request without it is a fault of the
            /// wiring: 500, and a log line.
            ///
            /// The name says what the values are, and is part of the key, so that user 7 and tenant 7 have two
            /// quotas: `RateLimitLayer::by_extension::<User>("user", quota)`. See
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

            /// Lets some clients through uncounted, and refuses others with 403. Default: empty lists.
            /// The last ones set count.
            #[must_use]
            pub fn access_lists(self, lists: ::lockgate::AccessLists) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.access_lists(lists)) }
            }

            /// Charges CORS preflights too: OPTIONS with `Origin` and `Access-Control-Request-Method`.
            /// Default: they pass uncounted, since browsers send them unasked, can't read a refusal, and
            /// put no API key into them; a layer for CORS answers them cheaply. Anybody can send requests that look
            /// so: where none is further in, and a handler takes every method, set this.
            #[must_use]
            pub fn charge_preflights(self) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.charge_preflights()) }
            }

            /// Which fields tell clients of their quota. Default
            /// [`RateHeaders::Draft`](::lockgate::RateHeaders): `RateLimit-Policy` and `RateLimit`.
            #[must_use]
            pub fn rate_headers(self, fields: ::lockgate::RateHeaders) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.headers(fields)) }
            }

            /// Names these fields and `Retry-After` in `Access-Control-Expose-Headers`, so that scripts of
            /// other origins can read them. Default: not. A layer for CORS inside this one doesn't see
            /// refusals: put it outside.
            #[must_use]
            pub fn expose_headers(self) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.expose_headers()) }
            }

            /// Makes the whole answer to a refused request. Default:
            /// [`RateRefusal::reply`](::lockgate::RateRefusal::reply), which the function may take and change. It
            /// must not block.
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

            /// Answers refused requests as clients of gRPC understand it:
            /// [`RateRefusal::grpc_reply`](::lockgate::RateRefusal::grpc_reply).
            #[must_use]
            pub fn grpc_refusals(self) -> Self {
                Self { gate: self.gate.response_options(|facing| facing.grpc_refusals()) }
            }
        }

        impl LockLayer {
            /// A lock for each value of these keys: one of them, or a tuple of up to four.
            ///
            /// # Panics
            ///
            /// If requests may be without one: see [`MissingAddress::Skip`](::lockgate::MissingAddress).
            #[must_use]
            pub fn by(keys: impl Into<KeyPart>) -> Self {
                Self { gate: ::lockgate::lock::LockGate::new(keys.into().into()) }
            }

            /// A lock for each client address, also behind proxies: see
            /// [`ClientAddress`](::lockgate::ClientAddress) for what is believed of whom.
            ///
            /// # Panics
            ///
            /// If requests may be without one: see [`MissingAddress::Skip`](::lockgate::MissingAddress).
            #[must_use]
            pub fn by_client(address: ::lockgate::ClientAddress) -> Self {
                Self::by(KeyPart::client(address))
            }

            /// A lock for each value that a layer further out has put into the request's extensions under
            /// this type. A request without it is a fault of the wiring: 500, and a log line. A deferred
            /// request runs with what the worker's routes put there.
            ///
            /// The name says what the values are, and is part of the key, so that user 7 and tenant 7 are two
            /// locks: see [`Key::extension`](::lockgate::Key::extension).
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
