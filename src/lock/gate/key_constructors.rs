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
    /// If a request may have no key: see [`MissingAddress::Skip`](crate::MissingAddress).
    #[must_use]
    pub fn by_client(address: ClientAddress) -> Self {
        Self::by(KeySource::client(address))
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
    /// If the name is empty.
    #[must_use]
    pub fn by_extension<T>(name: &str) -> Self
    where
        T: fmt::Display + Send + Sync + 'static,
    {
        Self::by(KeySource::extension::<T>(name))
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

// Several locks.
impl<R: RequestKind> LockLayer<R> {
    /// Several locks: one for each of these parameters, which identify resources of one kind, such
    /// as the two accounts of a transfer.
    ///
    /// Each value is a text, so `7` and `07` are two locks; use
    /// [`by_path_params_as`](Self::by_path_params_as) for numbers and UUIDs.
    ///
    /// - All processes acquire the locks in the same order, so requests that name them in another
    ///   order cannot deadlock.
    /// - A wait covers all of the locks together.
    /// - Two parameters with the same value are one lock; the parameter that a value came from does
    ///   not count.
    /// - The locks are named by all parameter names, sorted and joined by commas.
    ///   [`named`](Self::named) replaces that by the name of another route's parameter.
    /// - A request with more than one lock is never deferred.
    ///
    /// # Panics
    ///
    /// If there are no names.
    #[must_use]
    pub fn by_path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::by(KeySource::path_params(names))
    }

    /// Like [`by_path_params`](Self::by_path_params), for parameters that the handler parses as a
    /// `T`: see [`by_path_param_as`](Self::by_path_param_as).
    ///
    /// # Panics
    ///
    /// If there are no names.
    #[must_use]
    pub fn by_path_params_as<T>(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self
    where
        T: FromStr + fmt::Display,
    {
        Self::by(KeySource::path_params_as::<T>(names))
    }

    /// Several locks: one for each value that the function returns, at most 32. No value or more
    /// than 32 values get 400.
    ///
    /// The name is part of each key: see [`by_key`](Self::by_key). Everything else is as in
    /// [`by_path_params`](Self::by_path_params).
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{HeldLocks, Store, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handler = service_fn(async |request: Request<Body>| {
    ///     let locks = request.extensions().get::<HeldLocks>().expect("a LockLayer is outside");
    ///     assert_eq!(locks.len(), 2);
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let lock = LockLayer::<PlainHttp>::by_keys("account", |parts| {
    ///     let accounts = parts.headers.get_all("account").iter();
    ///     accounts.filter_map(|account| account.to_str().ok()).map(str::to_owned).collect()
    /// });
    /// let service = lock.store(&Store::memory()).layer(handler);
    ///
    /// let transfer = Request::post("/transfers").header("account", "7").header("account", "8");
    /// assert_eq!(service.oneshot(transfer.body(Body::default())?).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn by_keys(
        name: &str,
        keys: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        Self::by(KeySource::list_from_fn(name, keys))
    }
}

// Further parts of the key.
impl<R: RequestKind> LockLayer<R> {
    /// Adds a parameter of the route to the key: another value of either part is another lock.
    ///
    /// The value is a text, so `7` and `07` are two locks; use
    /// [`and_path_param_as`](Self::and_path_param_as) for numbers and UUIDs.
    #[must_use]
    pub fn and_path_param(self, name: &str) -> Self {
        self.and(KeySource::path_param(name))
    }

    /// Like [`and_path_param`](Self::and_path_param), for a parameter that the handler parses as a
    /// `T`: see [`by_path_param_as`](Self::by_path_param_as).
    #[must_use]
    pub fn and_path_param_as<T>(self, name: &str) -> Self
    where
        T: FromStr + fmt::Display,
    {
        self.and(KeySource::path_param_as::<T>(name))
    }

    /// Adds a header to the key, such as the one that names a tenant. A request without the header
    /// gets 400.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name.
    #[must_use]
    pub fn and_header(self, name: &str) -> Self {
        self.and(KeySource::header(name))
    }

    /// Adds the value that the function returns to the key. `None` gets 400. The name is part of
    /// the key: see [`by_key`](Self::by_key).
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn and_key(
        self,
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.and(KeySource::from_fn(name, key))
    }
}
