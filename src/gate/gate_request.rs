//! `GateRequest`: a request as a driver shows it to a gate.

use std::{borrow::Cow, fmt, net::SocketAddr};

use http::HeaderName;

use crate::store::{HoldRoute, Store};

/// Result of routing a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteMatch {
    /// The request matched this pattern, such as `/orders/{id}`.
    Matched(String),
    /// The router found no match; the response will be a 404.
    Unmatched,
    /// There is no router, or it has not run yet.
    Unknown,
}

/// Reason why a path parameter of the route has no value for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathParamError {
    /// The value is not UTF-8.
    InvalidUtf8,
    /// The route has two parameters of one name, such as one of a nested router and one of its
    /// prefix. A key of either value could name another resource than the one that the handler
    /// changes.
    Duplicate,
}

/// Request line and headers of a request, independent of the framework; stored with a deferred
/// request.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpRequestHead {
    /// The method, as sent.
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// Headers in order, with repeats; names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Address of the peer of the socket.
    pub peer: Option<SocketAddr>,
}

impl HttpRequestHead {
    /// Creates a head from its parts.
    #[must_use]
    pub fn new(
        method: impl Into<String>,
        target: impl Into<String>,
        headers: Vec<(String, Vec<u8>)>,
        peer: Option<SocketAddr>,
    ) -> Self {
        Self { method: method.into(), target: target.into(), headers, peer }
    }

    /// Adds a `host` header from the request's URI, if the request has none. HTTP/2 sends the host
    /// in the URI alone (RFC 9113 section 8.3.1), and a run must be for the same host. User name
    /// and password of the authority are left out.
    #[must_use]
    pub fn with_host(mut self, authority: Option<&str>) -> Self {
        let has_host = self.headers.iter().any(|(name, _)| name == "host");
        if let Some(host) = authority.and_then(host_and_port).filter(|_| !has_host) {
            self.headers.push(("host".to_owned(), host.into()));
        }
        self
    }
}

/// Returns host and port of an authority.
fn host_and_port(authority: &str) -> Option<&str> {
    authority.rsplit('@').next().filter(|host| !host.is_empty())
}

impl fmt::Debug for HttpRequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without values and query: they may be secret.
        let path = self.target.split('?').next().unwrap_or_default();
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpRequestHead")
            .field("method", &self.method)
            .field("path", &path)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// Error: a header was sent more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateHeader;

/// Request as a gate sees it, before the inner service is called.
///
/// Values are as the client sent them, except that path parameters are percent-decoded in every
/// framework: the same URL must give the same key everywhere.
pub trait GateRequest {
    /// The framework's own view of a request, which closures of the application get.
    type NativeRequest: ?Sized;

    /// Returns the framework's own request.
    fn native_request(&mut self) -> &Self::NativeRequest;

    /// Returns the method, as sent.
    fn method(&self) -> &str;

    /// Returns the result of routing.
    fn route(&mut self) -> RouteMatch;

    /// Returns the pattern of [`route`](Self::route), if it matched one. An implementation that has
    /// the pattern need not copy it. The result is for operators, and no decision depends on it.
    fn route_pattern(&mut self) -> Option<Cow<'_, str>> {
        match self.route() {
            RouteMatch::Matched(pattern) => Some(pattern.into()),
            _ => None,
        }
    }

    /// Returns a path parameter, decoded; `None` if the route has none of this name.
    ///
    /// # Errors
    ///
    /// [`PathParamError`] if the value is not UTF-8, or if the route has two parameters of this
    /// name.
    fn path_param(&mut self, name: &str) -> Result<Option<String>, PathParamError>;

    /// Returns all values of a header.
    fn header_values(&self, name: &str) -> Vec<&[u8]>;

    /// Returns the value of a header that may be sent once; `None` if it was not sent.
    ///
    /// # Errors
    ///
    /// [`DuplicateHeader`] if it was sent more than once.
    fn single_header(&self, name: &HeaderName) -> Result<Option<&[u8]>, DuplicateHeader> {
        match self.header_values(name.as_str())[..] {
            [] => Ok(None),
            [value] => Ok(Some(value)),
            _ => Err(DuplicateHeader),
        }
    }

    /// Returns the authority of the request's URI, if there is one and it is available. Default
    /// `None`. HTTP/2 sends the host here alone.
    fn authority(&self) -> Option<&str> {
        None
    }

    /// Returns the length of path and query in bytes, as in [`HttpRequestHead::target`]. Default 0:
    /// not available.
    fn target_len(&self) -> usize {
        0
    }

    /// Returns true if the request has any of these headers, named in lower case. Most requests
    /// have none of them, and one pass over their few names is cheaper than a lookup of each.
    fn has_any_header(&self, names: &[&str]) -> bool {
        names.iter().any(|name| !self.header_values(name).is_empty())
    }

    /// Returns the names of all headers, in lower case, each once.
    fn header_names(&self) -> Vec<&str>;

    /// Sets a header to a single value, or removes it, for inner layers and the handler. An invalid
    /// name or value changes nothing.
    fn set_header(&mut self, name: &str, value: Option<&str>);

    /// Returns the address of the peer of the socket.
    fn peer_addr(&self) -> Option<SocketAddr>;

    /// Returns the store that the application attached to the request.
    fn store(&self) -> Option<Store>;

    /// Returns the request extension of this type.
    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T>;

    /// Inserts a request extension, for inner layers and the handler.
    fn insert_extension<T: Clone + Send + Sync + 'static>(&mut self, value: T);

    /// Changes a request extension; returns false if there is none of this type.
    fn update_extension<T: Clone + Send + Sync + 'static>(
        &mut self,
        change: impl FnOnce(&mut T),
    ) -> bool;

    /// Removes a request extension and returns it.
    fn remove_extension<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T>;
}

/// Returns the route of a request, to be shown with the locks that it holds.
pub(crate) fn hold_route<V: GateRequest>(view: &mut V) -> Option<HoldRoute> {
    let method = HoldRoute::method_name(view.method());
    view.route_pattern().map(|pattern| HoldRoute::new(method, &pattern))
}

/// Returns the value of a header that may be sent once. Without a `host` header, the host is that
/// of the URI, as in [`HttpRequestHead::with_host`].
pub(super) fn single_header_or_host<'a, V: GateRequest>(
    view: &'a V,
    name: &HeaderName,
) -> Result<Option<&'a [u8]>, DuplicateHeader> {
    match view.single_header(name)? {
        None if name.as_str() == "host" => {
            Ok(view.authority().and_then(host_and_port).map(str::as_bytes))
        }
        sent => Ok(sent),
    }
}

/// Returns true for GET, HEAD, OPTIONS and TRACE, which change nothing (RFC 9110 section 9.2.1).
/// Unknown methods may change something.
#[inline]
pub(crate) fn is_safe_method(method: &str) -> bool {
    // As bytes, they are compared in place.
    matches!(method.as_bytes(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
}
