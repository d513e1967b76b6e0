//! Settings of `LockLayer` that add a part to the key.

use std::{fmt, str::FromStr};

use super::LockLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{KeySource, RequestKind},
};

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
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_and_header`](Self::try_and_header).
    #[must_use]
    pub fn and_header(self, name: &str) -> Self {
        expect_setting(self.try_and_header(name))
    }

    /// Like [`and_header`](Self::and_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_and_header(self, name: &str) -> Result<Self, Error> {
        Ok(self.and(KeySource::try_header(name)?))
    }

    /// Adds the value that the function returns to the key. `None` gets 400. The name is part of
    /// the key: see [`by_key`](Self::by_key).
    ///
    /// # Panics
    ///
    /// If the name is empty. For a name from a configuration use
    /// [`try_and_key`](Self::try_and_key).
    #[must_use]
    pub fn and_key(
        self,
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        expect_setting(self.try_and_key(name, key))
    }

    /// Like [`and_key`](Self::and_key), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_and_key(
        self,
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Ok(self.and(KeySource::try_from_fn(name, key)?))
    }
}
