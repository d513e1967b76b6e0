//! Where a key comes from.
//!
//! A key that can't be had is refused loudly. Letting the request through would be a way around the
//! lock; a shared "unknown" key would let strangers block each other.

mod functions;

use std::{fmt, str::FromStr, sync::Arc};

use super::{
    address::ClientAddress,
    fault::KeyFault,
    named::{Named, Names, form, param},
    view::{Route, SentTwice, View, sole_or_host},
};
use crate::key::{Key, credential_value};

/// Where a layer's key comes from. Made by the layers' `by_...` constructors.
pub struct KeySource<N: ?Sized>(Kind<N>);

type Function<N> = dyn Fn(&N) -> Option<String> + Send + Sync;
type Functions<N> = dyn Fn(&N) -> Vec<String> + Send + Sync;

/// Most keys of one request: each is a lock to be taken, and clients may decide how many there are.
const MOST: usize = 32;

enum Kind<N: ?Sized> {
    Client(Arc<ClientAddress>),
    PathParam(Arc<Named>),
    PathParams(Arc<Names>),
    Header(Arc<Named>),
    Route,
    /// The prefix of its keys, which has the name of the source, and the function.
    Function(Arc<str>, Arc<Function<N>>),
    /// As a function, of what the application puts into every request; the last text says what is missing.
    Installed(Arc<str>, Arc<Function<N>>, Arc<str>),
    Functions(Arc<str>, Arc<Functions<N>>),
    Both(Arc<(KeySource<N>, KeySource<N>)>),
}

impl<N: ?Sized> KeySource<N> {
    /// The socket's other end: [`Key::ip`].
    #[must_use]
    pub fn ip() -> Self {
        Self::client(ClientAddress::peer())
    }

    /// The client's address: [`Key::network`].
    #[must_use]
    pub fn client(address: ClientAddress) -> Self {
        Self(Kind::Client(Arc::new(address)))
    }

    /// The text of a parameter of the matched route: [`Key::path_param`]. It is not normalized: for what a
    /// handler parses, see [`path_param_as`](Self::path_param_as).
    #[must_use]
    pub fn path_param(name: &str) -> Self {
        Self(Kind::PathParam(Named::param(name, None)))
    }

    /// The same of a parameter that is a `T`: keyed as that writes itself, however it was spelt. One that is none
    /// refuses the request with 400.
    #[must_use]
    pub fn path_param_as<T: FromStr + fmt::Display>(name: &str) -> Self {
        Self(Kind::PathParam(Named::param(name, Some(form::<T>))))
    }

    /// Parameters of the matched route that name resources of one kind, such as `from` and `to`: a key for
    /// each, [`Key::path_param`] of the names, sorted and joined by commas.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn path_params<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(Kind::PathParams(Names::new(names, None)))
    }

    /// The same of parameters that are each a `T`: see [`path_param_as`](Self::path_param_as).
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn path_params_as<T: FromStr + fmt::Display>(
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        Self(Kind::PathParams(Names::new(names, Some(form::<T>))))
    }

    /// A header field, which must be there exactly once: [`Key::header`]. `Host` is that of the URI where no field names
    /// it, as in HTTP/2.
    ///
    /// # Panics
    ///
    /// If the name is none that a field can have: no request would ever have it.
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self(Kind::Header(Named::field(&super::field::field_name("by_header", name))))
    }

    /// The matched route itself: [`Key::route`].
    #[must_use]
    pub fn route() -> Self {
        Self(Kind::Route)
    }

    /// A key of this and the other, which must both be the same for the whole to be: [`Key::and`].
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Kind::Both(Arc::new((self, other))))
    }

    /// Reads all keys of a request: as they are named, each once, one at least.
    ///
    /// # Errors
    ///
    /// [`KeyFault`], when there is none.
    pub fn read_all<V: View<Native = N>>(&self, view: &mut V) -> Result<Vec<Key>, KeyFault> {
        let mut keys = match &self.0 {
            Kind::PathParams(all) => {
                let Names { names, form, joint } = &**all;
                let key = |name: &String| {
                    Ok(Key::path_param(name, &param(name, *form, view)?).named(joint))
                };
                names.iter().map(key).collect::<Result<Vec<_>, _>>()?
            }
            Kind::Functions(prefix, f) => {
                let key = |value: &String| Key::with_value(prefix, value.as_bytes());
                f(view.native()).iter().map(key).collect::<Vec<_>>()
            }
            Kind::Both(both) => {
                let (these, those) = (both.0.read_all(view)?, both.1.read_all(view)?);
                these.iter().flat_map(|a| those.iter().map(|b| a.and(b))).collect()
            }
            _ => return Ok(vec![self.read(view)?]),
        };
        each_once(&mut keys);
        match keys.len() {
            0 if view.route() == Route::Unmatched => Err(KeyFault::Unmatched),
            0 => Err(KeyFault::Request("The request can't be identified")),
            n if n > MOST => Err(KeyFault::Request("The request names too many resources")),
            _ => Ok(keys),
        }
    }

    /// Reads the key of a request; one of all of them, if there are several.
    ///
    /// # Errors
    ///
    /// [`KeyFault`], when there is none.
    pub fn read<V: View<Native = N>>(&self, view: &mut V) -> Result<Key, KeyFault> {
        match &self.0 {
            Kind::Both(both) if !self.is_several() => {
                Ok(both.0.read(view)?.and(&both.1.read(view)?))
            }
            Kind::PathParams(_) | Kind::Functions(..) | Kind::Both(_) => {
                let keys = self.read_all(view)?.into_iter();
                keys.reduce(|all, key| all.and(&key))
                    .ok_or(KeyFault::Request("The request can't be identified"))
            }
            Kind::Client(address) => address.key(view),
            Kind::PathParam(named) => {
                let value = param(&named.name, named.form, view)?;
                Ok(Key::with_value(&named.prefix, value.as_bytes()))
            }
            Kind::Header(named) => {
                let sent = match &named.field {
                    Some(field) => sole_or_host(&*view, field),
                    // No request has it.
                    None => Ok(None),
                };
                let missing = match sent {
                    Ok(Some(value)) => {
                        return Ok(match credential_value(&named.name, value) {
                            Some(credential_value) => Key::with_hashed_value(&named.prefix, &credential_value),
                            None => Key::with_value(&named.prefix, value),
                        });
                    }
                    Ok(None) => "A required header field is missing",
                    Err(SentTwice) => "A header field was sent more than once",
                };
                match view.route() {
                    Route::Unmatched => Err(KeyFault::Unmatched),
                    _ => Err(KeyFault::Request(missing)),
                }
            }
            Kind::Route => match view.route() {
                Route::Matched(pattern) => Ok(Key::route(&pattern)),
                Route::Unmatched => Err(KeyFault::Unmatched),
                Route::Unknown => Err(KeyFault::Wiring(
                    "by_route() sees no route here; put the layer inside the router".to_owned(),
                )),
            },
            Kind::Function(prefix, f) => match f(view.native()) {
                Some(value) => Ok(Key::with_value(prefix, value.as_bytes())),
                None if view.route() == Route::Unmatched => Err(KeyFault::Unmatched),
                None => Err(KeyFault::Request("The request can't be identified")),
            },
            Kind::Installed(prefix, f, fix) => match f(view.native()) {
                Some(value) => Ok(Key::with_value(prefix, value.as_bytes())),
                None if view.route() == Route::Unmatched => Err(KeyFault::Unmatched),
                None => Err(KeyFault::Wiring(fix.to_string())),
            },
        }
    }

    /// The client's address, if that is the key or a part of it.
    pub(crate) fn address(&self) -> Option<&ClientAddress> {
        match &self.0 {
            Kind::Client(address) => Some(address),
            Kind::Both(both) => both.0.address().or_else(|| both.1.address()),
            _ => None,
        }
    }

    /// This source, if it lets no request pass without a key.
    ///
    /// # Panics
    ///
    /// If it does: [`Absent::Skip`](super::Absent) is a way around whatever is locked.
    #[must_use]
    pub fn never_absent(self) -> Self {
        assert!(
            !self.may_skip(),
            "Absent::Skip: a request without an address would pass without the lock"
        );
        self
    }

    fn may_skip(&self) -> bool {
        match &self.0 {
            Kind::Client(address) => address.may_skip(),
            Kind::Both(both) => both.0.may_skip() || both.1.may_skip(),
            _ => false,
        }
    }

    /// True if a request can have several keys.
    fn is_several(&self) -> bool {
        match &self.0 {
            Kind::PathParams(_) | Kind::Functions(..) => true,
            Kind::Both(both) => both.0.is_several() || both.1.is_several(),
            _ => false,
        }
    }
}

/// Takes out what is there already, and keeps the order.
pub(crate) fn each_once(keys: &mut Vec<Key>) {
    if keys.len() < 2 {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
}

impl<N: ?Sized> Clone for KeySource<N> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Client(address) => Kind::Client(Arc::clone(address)),
            Kind::PathParam(named) => Kind::PathParam(Arc::clone(named)),
            Kind::Header(named) => Kind::Header(Arc::clone(named)),
            Kind::Route => Kind::Route,
            Kind::Function(prefix, f) => Kind::Function(Arc::clone(prefix), Arc::clone(f)),
            Kind::Installed(prefix, f, fix) => {
                Kind::Installed(Arc::clone(prefix), Arc::clone(f), Arc::clone(fix))
            }
            Kind::PathParams(names) => Kind::PathParams(Arc::clone(names)),
            Kind::Functions(prefix, f) => Kind::Functions(Arc::clone(prefix), Arc::clone(f)),
            Kind::Both(both) => Kind::Both(Arc::clone(both)),
        })
    }
}

impl<N: ?Sized> fmt::Debug for KeySource<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Client(address) => write!(f, "{address:?}"),
            Kind::PathParam(named) => write!(f, "path_param({})", named.name),
            Kind::Header(named) => write!(f, "header({})", named.name),
            Kind::Route => f.write_str("route"),
            Kind::Function(prefix, _) | Kind::Functions(prefix, _) => {
                write!(f, "function({prefix})")
            }
            Kind::Installed(prefix, ..) => write!(f, "extension({prefix})"),
            Kind::PathParams(all) => write!(f, "path_params({})", all.joint),
            Kind::Both(both) => write!(f, "{:?} and {:?}", both.0, both.1),
        }
    }
}
