//! Key sources by a function of the application, each with a name of its own.

use std::{fmt, sync::Arc};

use super::{KeySource, KeySourceKind};
use crate::{
    error::{Error, expect_setting},
    gate::{key_error::missing_extension_message, request_kind::RequestKind},
    key::Key,
};

impl<R: RequestKind> KeySource<R> {
    /// The value that the function returns: [`Key::custom`]. `None` gets 400. The name is part of
    /// the key: functions of different names never share a key, whatever they return.
    ///
    /// # Panics
    ///
    /// If the name is empty. For a name from a configuration use
    /// [`try_from_fn`](Self::try_from_fn).
    #[must_use]
    pub fn from_fn(
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        expect_setting(Self::try_from_fn(name, key))
    }

    /// Like [`from_fn`](Self::from_fn), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_from_fn(
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let key_prefix = named_key_prefix("by_key", "c", name)?;
        Ok(Self(KeySourceKind::Function { key_prefix, read_value: Arc::new(key) }))
    }

    /// A value of type `T` that an outer layer has put into the request's extensions, such as the
    /// account of an authentication: [`Key::extension`] of this name. A request without the value
    /// is a misconfiguration: the response is 500, and a message that names the fix is logged.
    ///
    /// # Panics
    ///
    /// If the name is empty. For a name from a configuration use
    /// [`try_extension`](Self::try_extension).
    #[must_use]
    pub fn extension<T: fmt::Display + Send + Sync + 'static>(name: &str) -> Self {
        expect_setting(Self::try_extension::<T>(name))
    }

    /// Like [`extension`](Self::extension), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the name is empty.
    pub fn try_extension<T: fmt::Display + Send + Sync + 'static>(
        name: &str,
    ) -> Result<Self, Error> {
        let read_value = |request: &R::Native| R::read_extension(request, T::to_string);
        Ok(Self(KeySourceKind::Extension {
            key_prefix: named_key_prefix("by_extension", "e", name)?,
            read_value: Arc::new(read_value),
            missing_message: missing_extension_message::<T>(name).into(),
        }))
    }

    /// Each of the values that the function returns: [`Key::custom`], [named](Key::named). An empty
    /// list, or more than 32 values, gets 400.
    ///
    /// # Errors
    ///
    /// If the name is empty.
    pub(crate) fn try_list_from_fn(
        name: &str,
        keys: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let key_prefix = named_key_prefix("by_keys", "c", name)?;
        Ok(Self(KeySourceKind::Functions { key_prefix, read_values: Arc::new(keys) }))
    }

    /// Like [`from_fn`](Self::from_fn), with the value as the whole key: [`Key::custom`].
    #[cfg(test)]
    pub(crate) fn function(
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let key_prefix = Key::prefix("c", "").into();
        Self(KeySourceKind::Function { key_prefix, read_value: Arc::new(key) })
    }

    /// Like `try_list_from_fn`, with each value as a whole key.
    #[cfg(test)]
    pub(crate) fn functions(
        keys: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let key_prefix = Key::prefix("c", "").into();
        Self(KeySourceKind::Functions { key_prefix, read_values: Arc::new(keys) })
    }
}

/// Returns the prefix of the keys of an application's source. The name separates sources with equal
/// values, such as user 7 and tenant 7. The type's own name would not do: it may change with each
/// build, and two builds that run side by side would take different locks.
fn named_key_prefix(caller: &str, kind: &str, name: &str) -> Result<Arc<str>, Error> {
    if name.is_empty() {
        let sentence = format!("{caller}: the name is empty; use one such as \"user\"");
        return Err(Error::setting(sentence));
    }
    Ok(Key::prefix(kind, name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source is refused when the layer is built, not at its first request.
    #[test]
    fn a_source_without_a_name_is_refused() {
        let makes: [fn() -> KeySource<()>; 2] =
            [|| KeySource::extension::<u64>(""), || KeySource::from_fn("", |()| None)];
        for make in makes {
            assert!(std::panic::catch_unwind(make).is_err());
        }
        let refused = [
            KeySource::<()>::try_extension::<u64>(""),
            KeySource::<()>::try_from_fn("", |()| None),
            KeySource::<()>::try_list_from_fn("", |()| Vec::new()),
        ];
        for source in refused {
            let error = source.expect_err("it has no name");
            assert_eq!(error.kind(), crate::ErrorKind::Config);
        }
    }
}
