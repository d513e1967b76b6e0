//! Where a key comes from.
//!
//! A key that can't be had is refused loudly. Letting the request through would be a way around the
//! lock; a shared "unknown" key would let strangers block each other.

use std::{fmt, sync::Arc};

use super::view::{BadParam, Route, View};
use crate::{
    key::Key,
    reply::{Reply, problem},
};

/// Why there is no key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFault {
    /// The router matched nothing, so there is nothing to protect: this will be a 404.
    Unmatched,
    /// The client's request lacks it, or its bytes can't be read.
    Request(&'static str),
    /// The application is wired so that it can't be had; the text names the fix.
    Wiring(String),
}

impl KeyFault {
    /// The answer, or `None` if the request may pass untouched.
    pub(crate) fn answer(self, layer: &str) -> Option<Reply> {
        match self {
            Self::Unmatched => None,
            Self::Request(title) => Some(Reply::problem(400, problem::BAD_KEY, title)),
            Self::Wiring(fix) => {
                tracing::error!(layer, "request refused: {fix}");
                Some(Reply::wiring_fault())
            }
        }
    }
}

/// Where a layer's key comes from. Made by the layers' `by_...` constructors.
pub struct KeySource<N: ?Sized>(Kind<N>);

type Function<N> = dyn Fn(&N) -> Option<String> + Send + Sync;

enum Kind<N: ?Sized> {
    Ip,
    PathParam(Arc<str>),
    Header(Arc<str>),
    Route,
    Function(Arc<Function<N>>),
}

impl<N: ?Sized> KeySource<N> {
    /// The socket's other end: [`Key::ip`].
    #[must_use]
    pub fn ip() -> Self {
        Self(Kind::Ip)
    }

    /// A parameter of the matched route: [`Key::path_param`].
    #[must_use]
    pub fn path_param(name: &str) -> Self {
        Self(Kind::PathParam(name.into()))
    }

    /// A header field, which must be there exactly once: [`Key::header`].
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self(Kind::Header(name.to_ascii_lowercase().into()))
    }

    /// The matched route itself: [`Key::route`].
    #[must_use]
    pub fn route() -> Self {
        Self(Kind::Route)
    }

    /// Whatever the function says: [`Key::custom`]. `None` refuses the request with 400.
    #[must_use]
    pub fn function(f: impl Fn(&N) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Kind::Function(Arc::new(f)))
    }

    /// Reads the key of a request.
    ///
    /// # Errors
    ///
    /// [`KeyFault`], when there is none.
    pub fn read<V: View<Native = N>>(&self, view: &mut V) -> Result<Key, KeyFault> {
        match &self.0 {
            Kind::Ip => view.peer().map(|peer| Key::ip(peer.ip())).ok_or_else(no_peer),
            Kind::PathParam(name) => path_param(name, view),
            Kind::Header(name) => {
                let missing = match view.header(name)[..] {
                    [value] => return Ok(Key::header(name, value)),
                    [] => "A required header field is missing",
                    _ => "A header field was sent more than once",
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
            Kind::Function(f) => match f(view.native()) {
                Some(value) => Ok(Key::custom(&value)),
                None if view.route() == Route::Unmatched => Err(KeyFault::Unmatched),
                None => Err(KeyFault::Request("The request can't be identified")),
            },
        }
    }
}

fn path_param<V: View>(name: &str, view: &mut V) -> Result<Key, KeyFault> {
    match view.param(name) {
        Ok(Some(value)) => Ok(Key::path_param(name, &value)),
        Err(BadParam) => Err(KeyFault::Request("A path segment is not UTF-8")),
        Ok(None) => match view.route() {
            Route::Unmatched => Err(KeyFault::Unmatched),
            Route::Matched(pattern) => Err(KeyFault::Wiring(format!(
                "by_path_param(\"{name}\"): the route {pattern} has no such parameter"
            ))),
            Route::Unknown => Err(KeyFault::Wiring(format!(
                "by_path_param(\"{name}\") sees no route here; put the layer inside the router"
            ))),
        },
    }
}

fn no_peer() -> KeyFault {
    KeyFault::Wiring(
        "by_ip() sees no peer address; in axum serve with \
         into_make_service_with_connect_info::<SocketAddr>()"
            .to_owned(),
    )
}

impl<N: ?Sized> Clone for KeySource<N> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Ip => Kind::Ip,
            Kind::PathParam(name) => Kind::PathParam(Arc::clone(name)),
            Kind::Header(name) => Kind::Header(Arc::clone(name)),
            Kind::Route => Kind::Route,
            Kind::Function(f) => Kind::Function(Arc::clone(f)),
        })
    }
}

impl<N: ?Sized> fmt::Debug for KeySource<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Ip => f.write_str("ip"),
            Kind::PathParam(name) => write!(f, "path_param({name})"),
            Kind::Header(name) => write!(f, "header({name})"),
            Kind::Route => f.write_str("route"),
            Kind::Function(_) => f.write_str("function"),
        }
    }
}
