//! Constructors of `LockLayer` for requests that take several locks.

use std::{fmt, str::FromStr};

use super::LockLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{KeySource, RequestKind},
};

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
    /// If there are no names. For names from a configuration use
    /// [`try_by_path_params`](Self::try_by_path_params).
    #[must_use]
    pub fn by_path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        expect_setting(Self::try_by_path_params(names))
    }

    /// Like [`by_path_params`](Self::by_path_params), for names from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if there are no names.
    pub fn try_by_path_params<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        Ok(Self::by(KeySource::try_path_params(names)?))
    }

    /// Like [`by_path_params`](Self::by_path_params), for parameters that the handler parses as a
    /// `T`: see [`by_path_param_as`](Self::by_path_param_as).
    ///
    /// # Panics
    ///
    /// If there are no names. For names from a configuration use
    /// [`try_by_path_params_as`](Self::try_by_path_params_as).
    #[must_use]
    pub fn by_path_params_as<T>(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self
    where
        T: FromStr + fmt::Display,
    {
        expect_setting(Self::try_by_path_params_as::<T>(names))
    }

    /// Like [`by_path_params_as`](Self::by_path_params_as), for names from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if there are no names.
    pub fn try_by_path_params_as<T>(
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Error>
    where
        T: FromStr + fmt::Display,
    {
        Ok(Self::by(KeySource::try_path_params_as::<T>(names)?))
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
    /// If the name is empty. For a name from a configuration use
    /// [`try_by_keys`](Self::try_by_keys).
    #[must_use]
    pub fn by_keys(
        name: &str,
        keys: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        expect_setting(Self::try_by_keys(name, keys))
    }

    /// Like [`by_keys`](Self::by_keys), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_by_keys(
        name: &str,
        keys: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Ok(Self::by(KeySource::try_list_from_fn(name, keys)?))
    }
}
