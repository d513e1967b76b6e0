//! Constructors of `RateLimitLayer`, by the key that has a quota.

use std::{fmt::Display, str::FromStr};

use actix_web::HttpRequest;
use lockgate::{ClientAddress, Policy};

use super::RateLimitLayer;

impl RateLimitLayer {
    /// One quota for each client address: the address of the peer's socket.
    ///
    /// Layers of two routes share a counter if their policies have the same quota and no name: see
    /// the core's [`by_ip`](lockgate::rate_limit::RateLimitLayer::by_ip).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use actix_web::App;
    /// # use lockgate_actix_web::{Quota, RateLimitLayer};
    /// let quota = Quota::requests(100).per(Duration::from_secs(60));
    /// let app = App::new().wrap(RateLimitLayer::by_ip(quota).policy_name("api"));
    /// # drop(app);
    /// ```
    #[must_use]
    pub fn by_ip(policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_ip(policy) }
    }

    /// One quota for each client address, also behind proxies: see
    /// [`ClientAddress`](crate::ClientAddress) for the trusted headers.
    ///
    /// See the core's [`by_client`](lockgate::rate_limit::RateLimitLayer::by_client).
    #[must_use]
    pub fn by_client(address: ClientAddress, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_client(address, policy) }
    }

    /// One quota for each value of a header, such as an API key.
    ///
    /// See the core's [`by_header`](lockgate::rate_limit::RateLimitLayer::by_header).
    #[must_use]
    pub fn by_header(name: &str, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_header(name, policy) }
    }

    /// Like [`by_header`](Self::by_header), for a name from a configuration.
    ///
    /// See the core's [`try_by_header`](lockgate::rate_limit::RateLimitLayer::try_by_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_by_header(name: &str, policy: impl Into<Policy>) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::rate_limit::RateLimitLayer::try_by_header(name, policy)? })
    }

    /// One quota for each text of a parameter of the matched route.
    ///
    /// See the core's [`by_path_param`](lockgate::rate_limit::RateLimitLayer::by_path_param).
    #[must_use]
    pub fn by_path_param(name: &str, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_path_param(name, policy) }
    }

    /// One quota for each value of a parameter that the handler parses as a `T`, such as a number
    /// or a UUID.
    ///
    /// See the core's [`by_path_param_as`](lockgate::rate_limit::RateLimitLayer::by_path_param_as).
    #[must_use]
    pub fn by_path_param_as<T>(name: &str, policy: impl Into<Policy>) -> Self
    where
        T: FromStr + Display,
    {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_path_param_as::<T>(name, policy) }
    }

    /// One quota for each route, shared by all clients.
    ///
    /// See the core's [`by_route`](lockgate::rate_limit::RateLimitLayer::by_route).
    #[must_use]
    pub fn by_route(policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_route(policy) }
    }

    /// One quota for each value of type `T` that an outer layer has put into the request's
    /// extensions, such as the account of an authentication.
    ///
    /// See the core's [`by_extension`](lockgate::rate_limit::RateLimitLayer::by_extension).
    #[must_use]
    pub fn by_extension<T>(name: &str, policy: impl Into<Policy>) -> Self
    where
        T: Display + Send + Sync + 'static,
    {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_extension::<T>(name, policy) }
    }

    /// Like [`by_extension`](Self::by_extension), for a name from a configuration.
    ///
    /// See the core's [`try_by_extension`](lockgate::rate_limit::RateLimitLayer::try_by_extension).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_extension<T>(
        name: &str,
        policy: impl Into<Policy>,
    ) -> Result<Self, lockgate::Error>
    where
        T: Display + Send + Sync + 'static,
    {
        let inner = lockgate::rate_limit::RateLimitLayer::try_by_extension::<T>(name, policy)?;
        Ok(Self { inner })
    }

    /// One quota for each value that the function returns.
    ///
    /// See the core's [`by_key`](lockgate::rate_limit::RateLimitLayer::by_key).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use actix_web::{App, HttpRequest};
    /// # use lockgate_actix_web::{Quota, RateLimitLayer};
    /// let tenant = |request: &HttpRequest| {
    ///     let tenant = request.headers().get("x-tenant")?;
    ///     Some(tenant.to_str().ok()?.to_owned())
    /// };
    /// let quota = Quota::requests(100).per(Duration::from_secs(60));
    /// let app = App::new().wrap(RateLimitLayer::by_key("tenant", tenant, quota));
    /// # drop(app);
    /// ```
    #[must_use]
    pub fn by_key(
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
        policy: impl Into<Policy>,
    ) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by_key(name, key, policy) }
    }

    /// Like [`by_key`](Self::by_key), for a name from a configuration.
    ///
    /// See the core's [`try_by_key`](lockgate::rate_limit::RateLimitLayer::try_by_key).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_key(
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
        policy: impl Into<Policy>,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::rate_limit::RateLimitLayer::try_by_key(name, key, policy)? })
    }
}
