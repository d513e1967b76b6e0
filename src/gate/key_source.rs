//! `KeySource`: the origin of a request's key.
//!
//! A request without a key is refused, and the reason is logged if it is a misconfiguration.
//! Admitting the request would bypass the lock; a shared "unknown" key would let unrelated clients
//! block each other.

mod functions;
mod trait_impls;

use std::{fmt, str::FromStr, sync::Arc};

use super::{
    address::ClientAddress,
    gate_request::{DuplicateHeader, GateRequest, RouteMatch, single_header_or_host},
    key_error::KeyError,
    named_source::{NamedSource, ParamGroup, canonicalize, read_param},
    request_kind::RequestKind,
};
use crate::key::{Key, credential_value};

/// Origin of a key: one part, or several that are combined. The integrations call it `KeyPart`.
///
/// The `by_...` constructors of the layers cover the common keys; `by` takes any source. A tuple of
/// up to four sources is one key: another value of any part is another key.
/// `RateLimitLayer::by((KeyPart::ip(), KeyPart::header("x-api-key")), quota)` is one quota for each
/// API key at each address.
pub struct KeySource<R: RequestKind>(KeySourceKind<R>);

type KeyFn<N> = dyn Fn(&N) -> Option<String> + Send + Sync;
type KeyListFn<N> = dyn Fn(&N) -> Vec<String> + Send + Sync;

/// Most keys of one request. Each is a lock to acquire, and clients may choose their number.
const MAX_KEYS: usize = 32;

enum KeySourceKind<R: RequestKind> {
    ClientAddress(Arc<ClientAddress>),
    PathParam(Arc<NamedSource>),
    PathParams(Arc<ParamGroup>),
    Header(Arc<NamedSource>),
    Route,
    /// The prefix of the keys, which contains the name of the source, and the function.
    Function(Arc<str>, Arc<KeyFn<R::Native>>),
    /// Like `Function`, for a value that the application puts into every request; the last text is
    /// the log message for a missing value.
    Extension(Arc<str>, Arc<KeyFn<R::Native>>, Arc<str>),
    Functions(Arc<str>, Arc<KeyListFn<R::Native>>),
    Combined(Arc<(KeySource<R>, KeySource<R>)>),
}

impl<R: RequestKind> KeySource<R> {
    /// The address of the peer's socket; IPv6 by /64 networks. Headers are ignored.
    #[must_use]
    pub fn ip() -> Self {
        Self::client(ClientAddress::peer())
    }

    /// The address of the client, also behind proxies: [`Key::network`].
    #[must_use]
    pub fn client(address: ClientAddress) -> Self {
        Self(KeySourceKind::ClientAddress(Arc::new(address)))
    }

    /// The text of a parameter of the matched route: [`Key::path_param`]. `7`, `07` and `+7` are
    /// three keys: use [`path_param_as`](Self::path_param_as) for values that the handler parses.
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
    /// `to`. Each gives a key: [`Key::path_param`], named by the parameter names, sorted and joined
    /// by commas.
    ///
    /// # Panics
    ///
    /// If `names` is empty.
    pub(crate) fn path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(KeySourceKind::PathParams(ParamGroup::new(names, None)))
    }

    /// Like [`path_params`](Self::path_params), for parameters of type `T`: see
    /// [`path_param_as`](Self::path_param_as).
    ///
    /// # Panics
    ///
    /// If `names` is empty.
    pub(crate) fn path_params_as<T: FromStr + fmt::Display>(
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        Self(KeySourceKind::PathParams(ParamGroup::new(names, Some(canonicalize::<T>))))
    }

    /// A header, which must occur exactly once: [`Key::header`]. Without a `Host` header, the host
    /// is that of the URI, as in HTTP/2.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name: no request would ever have it.
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self(KeySourceKind::Header(NamedSource::header(&super::header_name::parse_header_name(
            "by_header",
            name,
        ))))
    }

    /// The matched route: [`Key::route`].
    #[must_use]
    pub fn route() -> Self {
        Self(KeySourceKind::Route)
    }

    /// Joins two parts to one key: another value of either part is another key. See [`Key::and`].
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        Self(KeySourceKind::Combined(Arc::new((self, other.into()))))
    }

    /// Reads all keys of a request in their order, each once; at least one.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if the request has none, or more than 32.
    pub fn read_all<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<Vec<Key>, KeyError> {
        let mut keys = match &self.0 {
            KeySourceKind::PathParams(all) => {
                let ParamGroup { param_names: names, canonicalize: form, joined_name: joint } =
                    &**all;
                let key = |name: &String| {
                    Ok(Key::path_param(name, &read_param(name, *form, view)?).named(joint))
                };
                names.iter().map(key).collect::<Result<Vec<_>, _>>()?
            }
            KeySourceKind::Functions(prefix, f) => {
                let key = |value: &String| Key::with_value(prefix, value.as_bytes());
                f(view.native_request()).iter().map(key).collect::<Vec<_>>()
            }
            KeySourceKind::Combined(both) => {
                let (these, those) = (both.0.read_all(view)?, both.1.read_all(view)?);
                these.iter().flat_map(|a| those.iter().map(|b| a.and(b))).collect()
            }
            _ => return Ok(vec![self.read(view)?]),
        };
        dedup_keys(&mut keys);
        match keys.len() {
            0 if view.route() == RouteMatch::Unmatched => Err(KeyError::Unmatched),
            0 => Err(KeyError::BadRequest("The request can't be identified")),
            n if n > MAX_KEYS => Err(KeyError::BadRequest("The request names too many resources")),
            _ => Ok(keys),
        }
    }

    /// Reads the key of a request; several keys are combined into one.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if the request has none.
    pub fn read<V: GateRequest<NativeRequest = R::Native>>(
        &self,
        view: &mut V,
    ) -> Result<Key, KeyError> {
        match &self.0 {
            KeySourceKind::Combined(both) if !self.has_multiple_keys() => {
                Ok(both.0.read(view)?.and(&both.1.read(view)?))
            }
            KeySourceKind::PathParams(_)
            | KeySourceKind::Functions(..)
            | KeySourceKind::Combined(_) => {
                let keys = self.read_all(view)?.into_iter();
                keys.reduce(|all, key| all.and(&key))
                    .ok_or(KeyError::BadRequest("The request can't be identified"))
            }
            KeySourceKind::ClientAddress(address) => address.key(view),
            KeySourceKind::PathParam(named) => {
                let value = read_param(&named.name, named.canonicalize, view)?;
                Ok(Key::with_value(&named.key_prefix, value.as_bytes()))
            }
            KeySourceKind::Header(named) => {
                let sent = match &named.header_name {
                    Some(field) => single_header_or_host(&*view, field),
                    // Not a valid header name, so no request has it.
                    None => Ok(None),
                };
                let missing = match sent {
                    Ok(Some(value)) => {
                        return Ok(match credential_value(&named.name, value) {
                            Some(credential_value) => {
                                Key::with_hashed_value(&named.key_prefix, &credential_value)
                            }
                            None => Key::with_value(&named.key_prefix, value),
                        });
                    }
                    Ok(None) => "A required header field is missing",
                    Err(DuplicateHeader) => "A header field was sent more than once",
                };
                match view.route() {
                    RouteMatch::Unmatched => Err(KeyError::Unmatched),
                    _ => Err(KeyError::BadRequest(missing)),
                }
            }
            KeySourceKind::Route => match view.route() {
                RouteMatch::Matched(pattern) => Ok(Key::route(&pattern)),
                RouteMatch::Unmatched => Err(KeyError::Unmatched),
                RouteMatch::Unknown => Err(KeyError::Misconfigured(
                    "by_route() found no route; put the layer inside the router".to_owned(),
                )),
            },
            KeySourceKind::Function(prefix, f) => match f(view.native_request()) {
                Some(value) => Ok(Key::with_value(prefix, value.as_bytes())),
                None if view.route() == RouteMatch::Unmatched => Err(KeyError::Unmatched),
                None => Err(KeyError::BadRequest("The request can't be identified")),
            },
            KeySourceKind::Extension(prefix, f, fix) => match f(view.native_request()) {
                Some(value) => Ok(Key::with_value(prefix, value.as_bytes())),
                None if view.route() == RouteMatch::Unmatched => Err(KeyError::Unmatched),
                None => Err(KeyError::Misconfigured(fix.to_string())),
            },
        }
    }

    /// Returns the client's address, if it is the key or a part of it.
    pub(crate) fn client_address(&self) -> Option<&ClientAddress> {
        match &self.0 {
            KeySourceKind::ClientAddress(address) => Some(address),
            KeySourceKind::Combined(both) => {
                both.0.client_address().or_else(|| both.1.client_address())
            }
            _ => None,
        }
    }

    /// Returns this source if every request that passes has a key.
    ///
    /// # Panics
    ///
    /// If a request could pass without one: with
    /// [`MissingAddress::Skip`](super::MissingAddress::Skip), it would bypass the lock.
    pub(crate) fn require_key(self) -> Self {
        assert!(
            !self.may_lack_key(),
            "MissingAddress::Skip: a request without an address would pass without the lock; use \
             another MissingAddress"
        );
        self
    }

    fn may_lack_key(&self) -> bool {
        match &self.0 {
            KeySourceKind::ClientAddress(address) => address.may_lack_address(),
            KeySourceKind::Combined(both) => both.0.may_lack_key() || both.1.may_lack_key(),
            _ => false,
        }
    }

    /// Returns true if a request can have several keys.
    fn has_multiple_keys(&self) -> bool {
        match &self.0 {
            KeySourceKind::PathParams(_) | KeySourceKind::Functions(..) => true,
            KeySourceKind::Combined(both) => {
                both.0.has_multiple_keys() || both.1.has_multiple_keys()
            }
            _ => false,
        }
    }
}

/// Removes duplicates and keeps the order.
pub(crate) fn dedup_keys(keys: &mut Vec<Key>) {
    if keys.len() < 2 {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
}
