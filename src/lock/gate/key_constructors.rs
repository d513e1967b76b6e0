//! Constructors of `LockLayer`, by the key that names the lock.

use std::{fmt, str::FromStr};

use super::LockLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{ClientAddress, KeySource, RequestKind},
};

impl<R: RequestKind> LockLayer<R> {
    /// One lock for each text of a parameter of the matched route.
    ///
    /// `7`, `07` and `+7` (also sent as `%2B7`) are three locks but one order to a handler with
    /// `Path<u64>`, so a client that spells the number differently is not excluded. Use
    /// [`by_path_param_as`](Self::by_path_param_as) for numbers, UUIDs and other values that the
    /// handler parses, and this constructor for values that stay texts, such as codes with
    /// significant leading zeros.
    ///
    /// The text is percent-decoded and otherwise unchanged: neither its case nor its Unicode form
    /// (`é` as one character or as two) is normalized. If the handler ignores either, normalize in
    /// [`by_key`](Self::by_key).
    ///
    /// - A route without this parameter, or with two parameters of this name (`nest` or `scope`
    ///   with a prefix that has one too), is a misconfiguration: the response is 500, and a log
    ///   message names the fix.
    /// - A value that is not valid UTF-8 gets 400.
    /// - A request that matches no route passes without a lock.
    #[must_use]
    pub fn by_path_param(name: &str) -> Self {
        Self::by(KeySource::path_param(name))
    }

    /// One lock for each value of a parameter that the handler parses as a `T`, such as a number or
    /// a UUID.
    ///
    /// The spelling does not matter: with `by_path_param_as::<u64>("id")`, `/orders/7`,
    /// `/orders/07` and `/orders/+7` take the same lock, as they are one order to a handler with
    /// `Path<u64>`. Use the type that the handler parses.
    ///
    /// The lock is the one of [`by_path_param`](Self::by_path_param) for the value's
    /// [`Display`](std::fmt::Display) text. A value that is not a `T` gets 400. Everything else is
    /// as in `by_path_param`.
    ///
    /// ```
    /// # use lockgate::{Key, Store, lock::LockLayer, middleware::PlainHttp};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_path_param_as::<u64>("id").store(&store);
    ///
    /// // Code without a layer acquires the lock of `/orders/7` and `/orders/07`.
    /// let guard = store.lock(Key::path_param("id", "7")).acquire().await?;
    /// # drop((lock, guard));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn by_path_param_as<T>(name: &str) -> Self
    where
        T: FromStr + fmt::Display,
    {
        Self::by(KeySource::path_param_as::<T>(name))
    }

    /// One lock for each value of a header. A request without the header gets 400.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_by_header`](Self::try_by_header).
    #[must_use]
    pub fn by_header(name: &str) -> Self {
        expect_setting(Self::try_by_header(name))
    }

    /// Like [`by_header`](Self::by_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_by_header(name: &str) -> Result<Self, Error> {
        Ok(Self::by(KeySource::try_header(name)?))
    }

    /// One lock for each client address: the address of the peer's socket. IPv6 addresses of one
    /// /64 network share a lock.
    ///
    /// In axum the server has to provide the address
    /// (`into_make_service_with_connect_info::<SocketAddr>()`); otherwise every request gets 500.
    #[must_use]
    pub fn by_ip() -> Self {
        Self::by(KeySource::ip())
    }

    /// One lock for each client address, also behind proxies: see
    /// [`ClientAddress`](crate::ClientAddress) for the trusted headers.
    ///
    /// # Panics
    ///
    /// If a request may have no key: see [`MissingAddress::Skip`](crate::MissingAddress). For an
    /// address from a configuration use [`try_by_client`](Self::try_by_client).
    #[must_use]
    pub fn by_client(address: ClientAddress) -> Self {
        expect_setting(Self::try_by_client(address))
    }

    /// Like [`by_client`](Self::by_client), for an address from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if a request may have no key.
    pub fn try_by_client(address: ClientAddress) -> Result<Self, Error> {
        Self::try_by(KeySource::client(address))
    }

    /// One lock for each route.
    #[must_use]
    pub fn by_route() -> Self {
        Self::by(KeySource::route())
    }

    /// One lock for each value of type `T` that an outer layer has put into the request's
    /// extensions. A request without the value is a misconfiguration: the response is 500, and a
    /// message is logged. A deferred request runs with the value that the worker's routes put
    /// there.
    ///
    /// The name identifies the kind of the values and is part of the key, so user 7 and tenant 7
    /// are two locks: see [`Key::extension`](crate::Key::extension).
    ///
    /// # Panics
    ///
    /// If the name is empty. For a name from a configuration use
    /// [`try_by_extension`](Self::try_by_extension).
    #[must_use]
    pub fn by_extension<T>(name: &str) -> Self
    where
        T: fmt::Display + Send + Sync + 'static,
    {
        expect_setting(Self::try_by_extension::<T>(name))
    }

    /// Like [`by_extension`](Self::by_extension), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_extension<T>(name: &str) -> Result<Self, Error>
    where
        T: fmt::Display + Send + Sync + 'static,
    {
        Ok(Self::by(KeySource::try_extension::<T>(name)?))
    }

    /// One lock for each value that the function returns. `None` gets 400.
    ///
    /// The name identifies the kind of the values and is part of the key, so user 7 and tenant 7
    /// are two locks. The key is a [`Key::custom`](crate::Key::custom) with this
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
    ) -> Self {
        expect_setting(Self::try_by_key(name, key))
    }

    /// Like [`by_key`](Self::by_key), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_key(
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Ok(Self::by(KeySource::try_from_fn(name, key)?))
    }
}
