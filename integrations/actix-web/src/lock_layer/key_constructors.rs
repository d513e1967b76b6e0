//! Constructors of `LockLayer`, by the key that names the lock.

use std::{fmt::Display, str::FromStr};

use actix_web::HttpRequest;
use lockgate::ClientAddress;

use super::LockLayer;

impl LockLayer {
    /// One lock for each text of a parameter of the matched route.
    ///
    /// See the core's [`by_path_param`](lockgate::lock::LockLayer::by_path_param).
    #[must_use]
    pub fn by_path_param(name: &str) -> Self {
        Self { inner: lockgate::lock::LockLayer::by_path_param(name) }
    }

    /// One lock for each value of a parameter that the handler parses as a `T`, such as a number or
    /// a UUID.
    ///
    /// See the core's [`by_path_param_as`](lockgate::lock::LockLayer::by_path_param_as).
    #[must_use]
    pub fn by_path_param_as<T>(name: &str) -> Self
    where
        T: FromStr + Display,
    {
        Self { inner: lockgate::lock::LockLayer::by_path_param_as::<T>(name) }
    }

    /// One lock for each value of a header.
    ///
    /// See the core's [`by_header`](lockgate::lock::LockLayer::by_header).
    #[must_use]
    pub fn by_header(name: &str) -> Self {
        Self { inner: lockgate::lock::LockLayer::by_header(name) }
    }

    /// Like [`by_header`](Self::by_header), for a name from a configuration.
    ///
    /// See the core's [`try_by_header`](lockgate::lock::LockLayer::try_by_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_by_header(name: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_header(name)? })
    }

    /// One lock for each client address: the address of the peer's socket.
    ///
    /// See the core's [`by_ip`](lockgate::lock::LockLayer::by_ip).
    #[must_use]
    pub fn by_ip() -> Self {
        Self { inner: lockgate::lock::LockLayer::by_ip() }
    }

    /// One lock for each client address, also behind proxies: see
    /// [`ClientAddress`](crate::ClientAddress) for the trusted headers.
    ///
    /// See the core's [`by_client`](lockgate::lock::LockLayer::by_client).
    #[must_use]
    pub fn by_client(address: ClientAddress) -> Self {
        Self { inner: lockgate::lock::LockLayer::by_client(address) }
    }

    /// Like [`by_client`](Self::by_client), for an address from a configuration.
    ///
    /// See the core's [`try_by_client`](lockgate::lock::LockLayer::try_by_client).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if a request may have no key.
    pub fn try_by_client(address: ClientAddress) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_client(address)? })
    }

    /// One lock for each route.
    ///
    /// See the core's [`by_route`](lockgate::lock::LockLayer::by_route).
    #[must_use]
    pub fn by_route() -> Self {
        Self { inner: lockgate::lock::LockLayer::by_route() }
    }

    /// One lock for each value of type `T` that an outer layer has put into the request's
    /// extensions.
    ///
    /// See the core's [`by_extension`](lockgate::lock::LockLayer::by_extension).
    #[must_use]
    pub fn by_extension<T>(name: &str) -> Self
    where
        T: Display + Send + Sync + 'static,
    {
        Self { inner: lockgate::lock::LockLayer::by_extension::<T>(name) }
    }

    /// Like [`by_extension`](Self::by_extension), for a name from a configuration.
    ///
    /// See the core's [`try_by_extension`](lockgate::lock::LockLayer::try_by_extension).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_extension<T>(name: &str) -> Result<Self, lockgate::Error>
    where
        T: Display + Send + Sync + 'static,
    {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_extension::<T>(name)? })
    }

    /// One lock for each value that the function returns.
    ///
    /// See the core's [`by_key`](lockgate::lock::LockLayer::by_key).
    ///
    /// ```
    /// # use actix_web::{HttpRequest, web};
    /// # use lockgate_actix_web::LockLayer;
    /// let tenant = |request: &HttpRequest| {
    ///     let tenant = request.headers().get("x-tenant")?;
    ///     Some(tenant.to_str().ok()?.to_owned())
    /// };
    /// let lock = LockLayer::by_key("tenant", tenant);
    /// let settings = web::resource("/settings").put(async || "saved").wrap(lock);
    /// # drop(settings);
    /// ```
    #[must_use]
    pub fn by_key(
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: lockgate::lock::LockLayer::by_key(name, key) }
    }

    /// Like [`by_key`](Self::by_key), for a name from a configuration.
    ///
    /// See the core's [`try_by_key`](lockgate::lock::LockLayer::try_by_key).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_key(
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_key(name, key)? })
    }

    /// Several locks: one for each of these parameters, which identify resources of one kind, such
    /// as the two accounts of a transfer.
    ///
    /// See the core's [`by_path_params`](lockgate::lock::LockLayer::by_path_params).
    #[must_use]
    pub fn by_path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { inner: lockgate::lock::LockLayer::by_path_params(names) }
    }

    /// Like [`by_path_params`](Self::by_path_params), for names from a configuration.
    ///
    /// See the core's [`try_by_path_params`](lockgate::lock::LockLayer::try_by_path_params).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if there are no names.
    pub fn try_by_path_params<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_path_params(names)? })
    }

    /// Like [`by_path_params`](Self::by_path_params), for parameters that the handler parses as a
    /// `T`: see [`by_path_param_as`](Self::by_path_param_as).
    ///
    /// See the core's [`by_path_params_as`](lockgate::lock::LockLayer::by_path_params_as).
    #[must_use]
    pub fn by_path_params_as<T>(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self
    where
        T: FromStr + Display,
    {
        Self { inner: lockgate::lock::LockLayer::by_path_params_as::<T>(names) }
    }

    /// Like [`by_path_params_as`](Self::by_path_params_as), for names from a configuration.
    ///
    /// See the core's [`try_by_path_params_as`](lockgate::lock::LockLayer::try_by_path_params_as).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if there are no names.
    pub fn try_by_path_params_as<T>(
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, lockgate::Error>
    where
        T: FromStr + Display,
    {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_path_params_as::<T>(names)? })
    }

    /// Several locks: one for each value that the function returns, at most 32.
    ///
    /// See the core's [`by_keys`](lockgate::lock::LockLayer::by_keys).
    #[must_use]
    pub fn by_keys(
        name: &str,
        keys: impl Fn(&HttpRequest) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: lockgate::lock::LockLayer::by_keys(name, keys) }
    }

    /// Like [`by_keys`](Self::by_keys), for a name from a configuration.
    ///
    /// See the core's [`try_by_keys`](lockgate::lock::LockLayer::try_by_keys).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_keys(
        name: &str,
        keys: impl Fn(&HttpRequest) -> Vec<String> + Send + Sync + 'static,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by_keys(name, keys)? })
    }

    /// Adds a parameter of the route to the key: another value of either part is another lock.
    ///
    /// See the core's [`and_path_param`](lockgate::lock::LockLayer::and_path_param).
    #[must_use]
    pub fn and_path_param(self, name: &str) -> Self {
        Self { inner: self.inner.and_path_param(name) }
    }

    /// Like [`and_path_param`](Self::and_path_param), for a parameter that the handler parses as a
    /// `T`: see [`by_path_param_as`](Self::by_path_param_as).
    ///
    /// See the core's [`and_path_param_as`](lockgate::lock::LockLayer::and_path_param_as).
    #[must_use]
    pub fn and_path_param_as<T>(self, name: &str) -> Self
    where
        T: FromStr + Display,
    {
        Self { inner: self.inner.and_path_param_as::<T>(name) }
    }

    /// Adds a header to the key, such as the one that names a tenant.
    ///
    /// See the core's [`and_header`](lockgate::lock::LockLayer::and_header).
    #[must_use]
    pub fn and_header(self, name: &str) -> Self {
        Self { inner: self.inner.and_header(name) }
    }

    /// Like [`and_header`](Self::and_header), for a name from a configuration.
    ///
    /// See the core's [`try_and_header`](lockgate::lock::LockLayer::try_and_header).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_and_header(self, name: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_and_header(name)? })
    }

    /// Adds the value that the function returns to the key.
    ///
    /// See the core's [`and_key`](lockgate::lock::LockLayer::and_key).
    #[must_use]
    pub fn and_key(
        self,
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.and_key(name, key) }
    }

    /// Like [`and_key`](Self::and_key), for a name from a configuration.
    ///
    /// See the core's [`try_and_key`](lockgate::lock::LockLayer::try_and_key).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_and_key(
        self,
        name: &str,
        key: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_and_key(name, key)? })
    }
}
