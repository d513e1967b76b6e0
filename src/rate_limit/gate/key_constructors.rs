//! Constructors of `RateLimitLayer`, by the key that has a quota.

use std::{fmt, str::FromStr};

use super::RateLimitLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{ClientAddress, KeySource, RequestKind},
    rate_limit::policy_cost_and_reactions::Policy,
};

impl<R: RequestKind> RateLimitLayer<R> {
    /// One quota for each client address: the address of the peer's socket. IPv6 addresses of one
    /// /64 network share a quota.
    ///
    /// Headers such as `X-Forwarded-For` are ignored, because every client can send them. Behind a
    /// proxy all clients would share the proxy's quota: use [`by_client`](Self::by_client) there.
    ///
    /// Layers whose policies have the same quota and no name share one counter for each address,
    /// also on two routes. For a quota of each route, give each policy a name by
    /// [`policy_name`](Self::policy_name), or use a key with [`KeySource::route`] (`KeyPart::route`
    /// of the integrations).
    ///
    /// In axum the server has to provide the address
    /// (`into_make_service_with_connect_info::<SocketAddr>()`); otherwise every request gets 500.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use std::net::SocketAddr;
    /// # use lockgate::{Quota, Store, middleware::PlainHttp, rate_limit::RateLimitLayer};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let quota = Quota::requests(1).per(Duration::from_secs(60));
    /// let limit = RateLimitLayer::<PlainHttp>::by_ip(quota).store(&Store::memory());
    /// let service = limit.layer(handler);
    ///
    /// // Without a framework, the server puts the peer's address into the extensions.
    /// let request = |peer: &str| {
    ///     let peer: SocketAddr = peer.parse().expect("an address");
    ///     Request::get("/").extension(peer).body(Body::default())
    /// };
    /// assert_eq!(service.clone().oneshot(request("192.0.2.1:4711")?).await?.status(), 200);
    /// assert_eq!(service.clone().oneshot(request("192.0.2.1:4712")?).await?.status(), 429);
    /// assert_eq!(service.oneshot(request("192.0.2.2:4711")?).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn by_ip(policy: impl Into<Policy>) -> Self {
        Self::by(KeySource::ip(), policy)
    }

    /// One quota for each client address, also behind proxies: see
    /// [`ClientAddress`](crate::ClientAddress) for the trusted headers.
    #[must_use]
    pub fn by_client(address: ClientAddress, policy: impl Into<Policy>) -> Self {
        Self::by(KeySource::client(address), policy)
    }

    /// One quota for each value of a header, such as an API key. A request without the header, or
    /// with more than one of them, gets 400.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Quota, Store, middleware::PlainHttp, rate_limit::RateLimitLayer};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let quota = Quota::requests(1).per(Duration::from_secs(60));
    /// let limit = RateLimitLayer::<PlainHttp>::by_header("x-api-key", quota);
    /// let service = limit.store(&Store::memory()).layer(handler);
    ///
    /// let request = |key| Request::get("/").header("x-api-key", key).body(Body::default());
    /// assert_eq!(service.clone().oneshot(request("abc")?).await?.status(), 200);
    /// assert_eq!(service.clone().oneshot(request("xyz")?).await?.status(), 200);
    /// assert_eq!(service.clone().oneshot(Request::default()).await?.status(), 400);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_by_header`](Self::try_by_header).
    #[must_use]
    pub fn by_header(name: &str, policy: impl Into<Policy>) -> Self {
        expect_setting(Self::try_by_header(name, policy))
    }

    /// Like [`by_header`](Self::by_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_by_header(name: &str, policy: impl Into<Policy>) -> Result<Self, Error> {
        Ok(Self::by(KeySource::try_header(name)?, policy))
    }

    /// One quota for each text of a parameter of the matched route.
    ///
    /// `7`, `07` and `+7` (also sent as `%2B7`) are three quotas but one order to a handler with
    /// `Path<u64>`, so a client gets another quota by another spelling. Use
    /// [`by_path_param_as`](Self::by_path_param_as) for numbers, UUIDs and other values that the
    /// handler parses, and this constructor for values that stay texts. Neither their case nor
    /// their Unicode form is normalized.
    ///
    /// - A route without this parameter, or with two parameters of this name, is a
    ///   misconfiguration: the response is 500, and a log message names the fix.
    /// - A value that is not valid UTF-8 gets 400.
    /// - A request that matches no route passes uncounted.
    #[must_use]
    pub fn by_path_param(name: &str, policy: impl Into<Policy>) -> Self {
        Self::by(KeySource::path_param(name), policy)
    }

    /// One quota for each value of a parameter that the handler parses as a `T`, such as a number
    /// or a UUID.
    ///
    /// All spellings of a value share its quota: as texts, `7`, `07` and `007` would each have one.
    /// A value that is not a `T` gets 400, uncounted. Everything else is as in
    /// [`by_path_param`](Self::by_path_param).
    #[must_use]
    pub fn by_path_param_as<T>(name: &str, policy: impl Into<Policy>) -> Self
    where
        T: FromStr + fmt::Display,
    {
        Self::by(KeySource::path_param_as::<T>(name), policy)
    }

    /// One quota for each route, shared by all clients.
    #[must_use]
    pub fn by_route(policy: impl Into<Policy>) -> Self {
        Self::by(KeySource::route(), policy)
    }

    /// One quota for each value of type `T` that an outer layer has put into the request's
    /// extensions, such as the account of an authentication. A request without the value is a
    /// misconfiguration: the response is 500, and a message is logged.
    ///
    /// The name identifies the kind of the values and is part of the key, so user 7 and tenant 7
    /// have two quotas: `RateLimitLayer::by_extension::<User>("user", quota)`. See
    /// [`Key::extension`](crate::Key::extension).
    ///
    /// # Panics
    ///
    /// If the name is empty. For a name from a configuration use
    /// [`try_by_extension`](Self::try_by_extension).
    #[must_use]
    pub fn by_extension<T>(name: &str, policy: impl Into<Policy>) -> Self
    where
        T: fmt::Display + Send + Sync + 'static,
    {
        expect_setting(Self::try_by_extension::<T>(name, policy))
    }

    /// Like [`by_extension`](Self::by_extension), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_extension<T>(name: &str, policy: impl Into<Policy>) -> Result<Self, Error>
    where
        T: fmt::Display + Send + Sync + 'static,
    {
        Ok(Self::by(KeySource::try_extension::<T>(name)?, policy))
    }

    /// One quota for each value that the function returns. `None` gets 400.
    ///
    /// The name identifies the kind of the values and is part of the key, so user 7 and tenant 7
    /// have two quotas. The key is a [`Key::custom`](crate::Key::custom) with this
    /// [name](crate::Key::named).
    ///
    /// # Panics
    ///
    /// If the name is empty. For a name from a configuration use
    /// [`try_by_key`](Self::try_by_key).
    #[must_use]
    pub fn by_key(
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
        policy: impl Into<Policy>,
    ) -> Self {
        expect_setting(Self::try_by_key(name, key, policy))
    }

    /// Like [`by_key`](Self::by_key), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_key(
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
        policy: impl Into<Policy>,
    ) -> Result<Self, Error> {
        Ok(Self::by(KeySource::try_from_fn(name, key)?, policy))
    }
}
