//! Key sources by a function of the application, each with a name of its own.

use std::{fmt, sync::Arc};

use super::{KeySource, KeySourceKind};
use crate::{gate::key_error::missing_extension_message, key::Key};

impl<N: ?Sized> KeySource<N> {
    /// Uses the function's value: [`Key::custom`], which has the text as the whole key. `None`
    /// refuses the request with 400.
    #[must_use]
    pub fn function(f: impl Fn(&N) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(KeySourceKind::Function(Key::prefix("c", "").into(), Arc::new(f)))
    }

    /// Like [`function`](Self::function), under a name for the kind of value: [`Key::custom`],
    /// [named](Key::named). Functions of different names never share a key, whatever they return.
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn named_function(
        name: &str,
        f: impl Fn(&N) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(KeySourceKind::Function(named_key_prefix("by_key", "c", name), Arc::new(f)))
    }

    /// Uses a value that the function finds in the request: [`Key::extension`] of this name. A
    /// missing value is a misconfiguration: the request is refused with 500, and `fix`, which names
    /// the fix, is logged.
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn extension_with(
        name: &str,
        fix: &str,
        f: impl Fn(&N) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(KeySourceKind::Extension(
            named_key_prefix("by_extension", "e", name),
            Arc::new(f),
            fix.into(),
        ))
    }

    /// Uses each of the function's values: [`Key::custom`]. An empty list, or more than 32 values,
    /// refuses the request with 400.
    #[must_use]
    pub fn functions(f: impl Fn(&N) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self(KeySourceKind::Functions(Key::prefix("c", "").into(), Arc::new(f)))
    }

    /// Like [`functions`](Self::functions), under a name: see
    /// [`named_function`](Self::named_function).
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn named_functions(
        name: &str,
        f: impl Fn(&N) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        Self(KeySourceKind::Functions(named_key_prefix("by_keys", "c", name), Arc::new(f)))
    }
}

impl KeySource<http::request::Parts> {
    /// Uses a value that an outer layer put into the request's extensions, such as the account of
    /// an authentication layer: [`Key::extension`] of this name.
    ///
    /// # Panics
    ///
    /// If the name is empty.
    #[must_use]
    pub fn extension<T: fmt::Display + Send + Sync + 'static>(name: &str) -> Self {
        let find = |parts: &http::request::Parts| parts.extensions.get::<T>().map(T::to_string);
        Self::extension_with(name, &missing_extension_message::<T>(name), find)
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
    fn key_source_with_an_empty_name_is_refused() {
        type Parts = http::request::Parts;
        let makes: [fn() -> KeySource<Parts>; 4] = [
            || KeySource::extension::<u64>(""),
            || KeySource::extension_with("", "fix", |_| None),
            || KeySource::named_function("", |_| None),
            || KeySource::named_functions("", |_| Vec::new()),
        ];
        for make in makes {
            assert!(std::panic::catch_unwind(make).is_err());
        }
    }
}
