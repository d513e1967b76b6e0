//! `KeySource`: the origin of a request's key.
//!
//! A request without a key is refused, and the reason is logged if it is a misconfiguration.
//! Admitting the request would bypass the lock; a shared "unknown" key would let unrelated clients
//! block each other.

mod description;
mod function_and_extension_sources;
mod read_keys;
mod trait_impls;

use std::{fmt, str::FromStr, sync::Arc};

pub(crate) use self::read_keys::dedup_keys;
use super::{
    address::ClientAddress,
    named_source::{NamedSource, ParamGroup, canonicalize},
    parse_header_name::try_parse_header_name,
    request_kind::RequestKind,
};
use crate::error::{Error, expect_setting};

/// Origin of a key: one part, or several that are combined. The integrations call it `KeyPart`.
///
/// The `by_...` constructors of the layers cover the common keys; `by` takes any source. A tuple of
/// up to four sources is one key: another value of any part is another key.
/// `RateLimitLayer::by((KeyPart::ip(), KeyPart::header("x-api-key")), quota)` is one quota for each
/// API key at each address.
pub struct KeySource<R: RequestKind>(KeySourceKind<R>);

type KeyFn<N> = dyn Fn(&N) -> Option<String> + Send + Sync;
type KeyListFn<N> = dyn Fn(&N) -> Vec<String> + Send + Sync;

enum KeySourceKind<R: RequestKind> {
    ClientAddress(Arc<ClientAddress>),
    PathParam(Arc<NamedSource>),
    PathParams(Arc<ParamGroup>),
    Header(Arc<NamedSource>),
    Route,
    Function {
        /// Prefix of the keys, which contains the name of the source.
        key_prefix: Arc<str>,
        read_value: Arc<KeyFn<R::Native>>,
    },
    /// Like `Function`, for a value that the application puts into every request.
    Extension {
        key_prefix: Arc<str>,
        read_value: Arc<KeyFn<R::Native>>,
        /// Log message for a missing value.
        missing_message: Arc<str>,
    },
    Functions {
        key_prefix: Arc<str>,
        read_values: Arc<KeyListFn<R::Native>>,
    },
    Combined(Arc<(KeySource<R>, KeySource<R>)>),
}

impl<R: RequestKind> KeySource<R> {
    /// The address of the peer's socket; IPv6 by /64 networks. Headers are ignored.
    #[must_use]
    pub fn ip() -> Self {
        Self::client(ClientAddress::peer())
    }

    /// The address of the client, also behind proxies: [`Key::network`](crate::Key::network).
    #[must_use]
    pub fn client(address: ClientAddress) -> Self {
        Self(KeySourceKind::ClientAddress(Arc::new(address)))
    }

    /// The text of a parameter of the matched route: [`Key::path_param`](crate::Key::path_param).
    /// `7`, `07` and `+7` are three keys: use [`path_param_as`](Self::path_param_as) for values
    /// that the handler parses.
    #[must_use]
    pub fn path_param(name: &str) -> Self {
        Self(KeySourceKind::PathParam(NamedSource::path_param(name, None)))
    }

    /// A parameter of the matched route that the handler parses as a `T`: the key has the `Display`
    /// form of the value, however it was spelled. A text that is not a `T` gets 400.
    #[must_use]
    pub fn path_param_as<T: FromStr + fmt::Display>(name: &str) -> Self {
        Self(KeySourceKind::PathParam(NamedSource::path_param(name, Some(canonicalize::<T>))))
    }

    /// Several parameters of the matched route that name resources of one kind, such as `from` and
    /// `to`. Each gives a key: [`Key::path_param`](crate::Key::path_param), named by the parameter
    /// names, sorted and joined by commas.
    ///
    /// # Errors
    ///
    /// If `param_names` is empty.
    pub(crate) fn try_path_params<S: AsRef<str>>(
        param_names: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        Ok(Self(KeySourceKind::PathParams(ParamGroup::try_new(param_names, None)?)))
    }

    /// Like [`try_path_params`](Self::try_path_params), for parameters of type `T`: see
    /// [`path_param_as`](Self::path_param_as).
    ///
    /// # Errors
    ///
    /// If `param_names` is empty.
    pub(crate) fn try_path_params_as<T: FromStr + fmt::Display>(
        param_names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Error> {
        let group = ParamGroup::try_new(param_names, Some(canonicalize::<T>))?;
        Ok(Self(KeySourceKind::PathParams(group)))
    }

    /// A header, which must occur exactly once: [`Key::header`](crate::Key::header). Without a
    /// `Host` header, the host is that of the URI, as in HTTP/2.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name: no request would ever have it. For a name from a
    /// configuration use [`try_header`](Self::try_header).
    #[must_use]
    pub fn header(name: &str) -> Self {
        expect_setting(Self::try_header(name))
    }

    /// Like [`header`](Self::header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_header(name: &str) -> Result<Self, Error> {
        let name = try_parse_header_name("by_header", name)?;
        Ok(Self(KeySourceKind::Header(NamedSource::header(&name))))
    }

    /// The matched route: [`Key::route`](crate::Key::route).
    #[must_use]
    pub fn route() -> Self {
        Self(KeySourceKind::Route)
    }

    /// Joins two parts to one key: another value of either part is another key. See
    /// [`Key::and`](crate::Key::and).
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        Self(KeySourceKind::Combined(Arc::new((self, other.into()))))
    }

    /// Returns the client's address, if it is the key or a part of it.
    pub(crate) fn client_address(&self) -> Option<&ClientAddress> {
        match &self.0 {
            KeySourceKind::ClientAddress(address) => Some(address),
            KeySourceKind::Combined(parts) => {
                parts.0.client_address().or_else(|| parts.1.client_address())
            }
            _ => None,
        }
    }

    /// Returns this source if every request that passes has a key.
    ///
    /// # Errors
    ///
    /// If a request could pass without one: with
    /// [`MissingAddress::Skip`](super::MissingAddress::Skip), it would bypass the lock.
    pub(crate) fn require_key(self) -> Result<Self, Error> {
        if self.may_lack_key() {
            return Err(Error::setting(
                "MissingAddress::Skip: a request without an address would pass without the lock; \
                 use another MissingAddress",
            ));
        }
        Ok(self)
    }

    fn may_lack_key(&self) -> bool {
        match &self.0 {
            KeySourceKind::ClientAddress(address) => address.may_lack_address(),
            KeySourceKind::Combined(parts) => parts.0.may_lack_key() || parts.1.may_lack_key(),
            _ => false,
        }
    }

    /// Returns true if the other source gives each request the same key. A type of a parameter
    /// does not separate keys, and functions are told apart by their names.
    pub(crate) fn reads_same_key(&self, other: &Self) -> bool {
        use KeySourceKind as Kind;
        match (&self.0, &other.0) {
            (Kind::ClientAddress(own), Kind::ClientAddress(other)) => own == other,
            (Kind::PathParam(own), Kind::PathParam(other))
            | (Kind::Header(own), Kind::Header(other)) => own.key_prefix == other.key_prefix,
            (Kind::PathParams(own), Kind::PathParams(other)) => {
                own.param_names == other.param_names
            }
            (Kind::Route, Kind::Route) => true,
            (Kind::Function { key_prefix: own, .. }, Kind::Function { key_prefix: other, .. })
            | (
                Kind::Extension { key_prefix: own, .. },
                Kind::Extension { key_prefix: other, .. },
            )
            | (
                Kind::Functions { key_prefix: own, .. },
                Kind::Functions { key_prefix: other, .. },
            ) => own == other,
            (Kind::Combined(own), Kind::Combined(other)) => {
                own.0.reads_same_key(&other.0) && own.1.reads_same_key(&other.1)
            }
            _ => false,
        }
    }

    /// Returns true if a request can have several keys.
    fn has_multiple_keys(&self) -> bool {
        match &self.0 {
            KeySourceKind::PathParams(_) | KeySourceKind::Functions { .. } => true,
            KeySourceKind::Combined(parts) => {
                parts.0.has_multiple_keys() || parts.1.has_multiple_keys()
            }
            _ => false,
        }
    }
}
