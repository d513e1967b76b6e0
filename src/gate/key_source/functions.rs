//! Key sources by a function of the application, each with a name of its own.

use std::{fmt, sync::Arc};

use super::{KeySource, KeySourceKind};
use crate::{
    gate::{key_error::missing_extension_message, request_kind::RequestKind},
    key::Key,
};

impl<R: RequestKind> KeySource<R> {
    /// The value that the function returns: [`Key::custom`]. `None` gets 400. The name is part of
    /// the key: functions of different names never share a key, whatever they return.
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn from_fn(
        name: &str,
        key: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(KeySourceKind::Function(named_key_prefix("by_key", "c", name), Arc::new(key)))
    }

    /// A value of type `T` that an outer layer has put into the request's extensions, such as the
    /// account of an authentication: [`Key::extension`] of this name. A request without the value
    /// is a misconfiguration: the response is 500, and a message that names the fix is logged.
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn extension<T: fmt::Display + Send + Sync + 'static>(name: &str) -> Self {
        let read = |request: &R::Native| R::read_extension(request, T::to_string);
        Self(KeySourceKind::Extension(
            named_key_prefix("by_extension", "e", name),
            Arc::new(read),
            missing_extension_message::<T>(name).into(),
        ))
    }

    /// Each of the values that the function returns: [`Key::custom`], [named](Key::named). An empty
    /// list, or more than 32 values, gets 400.
    ///
    /// # Panics
    ///
    /// If the name is empty.
    pub(crate) fn list_from_fn(
        name: &str,
        keys: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        Self(KeySourceKind::Functions(named_key_prefix("by_keys", "c", name), Arc::new(keys)))
    }

    /// Like [`from_fn`](Self::from_fn), with the value as the whole key: [`Key::custom`].
    #[cfg(test)]
    pub(crate) fn function(
        f: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(KeySourceKind::Function(Key::prefix("c", "").into(), Arc::new(f)))
    }

    /// Like `list_from_fn`, with each value as a whole key.
    #[cfg(test)]
    pub(crate) fn functions(f: impl Fn(&R::Native) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self(KeySourceKind::Functions(Key::prefix("c", "").into(), Arc::new(f)))
    }
}

/// Returns the prefix of the keys of an application's source. The name separates sources with equal
/// values, such as user 7 and tenant 7. The type's own name would not do: it may change with each
/// build, and two builds that run side by side would take different locks.
fn named_key_prefix(caller: &str, kind: &str, name: &str) -> Arc<str> {
    assert!(!name.is_empty(), "{caller}: the name is empty; use one such as \"user\"");
    Key::prefix(kind, name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each is refused as the layer is made, and not by its first request.
    #[test]
    fn a_source_without_a_name_is_refused() {
        let makes: [fn() -> KeySource<()>; 3] = [
            || KeySource::extension::<u64>(""),
            || KeySource::from_fn("", |()| None),
            || KeySource::list_from_fn("", |()| Vec::new()),
        ];
        for make in makes {
            assert!(std::panic::catch_unwind(make).is_err());
        }
    }
}
