//! How a driver shows a request to a gate.

use std::{fmt, net::SocketAddr};

use http::HeaderName;

use crate::store::Store;

/// Where the router stands with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteMatch {
    /// It matched this pattern, such as `/orders/{id}`.
    Matched(String),
    /// The router matched nothing: this will be a 404.
    Unmatched,
    /// There is no router, or it has not looked yet.
    Unknown,
}

/// Why a path parameter of the route has no value for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathParamError {
    /// The value's bytes are not UTF-8.
    InvalidUtf8,
    /// The route has two parameters of one name, such as a nested router's and its prefix's. A key of
    /// either value could be that of another resource than the handler changes.
    Duplicate,
}

/// A request's line and fields, in no framework's types: what is stored of a deferred request.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpRequestHead {
    /// The method, as sent.
    pub method: String,
    /// Path and query, as the client sent them.
    pub target: String,
    /// Header fields in order, repeats kept; names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The socket's other end.
    pub peer: Option<SocketAddr>,
}

impl HttpRequestHead {
    /// A head of these parts.
    #[must_use]
    pub fn new(
        method: impl Into<String>,
        target: impl Into<String>,
        headers: Vec<(String, Vec<u8>)>,
        peer: Option<SocketAddr>,
    ) -> Self {
        Self { method: method.into(), target: target.into(), headers, peer }
    }

    /// With the host that the request's URI names, if no field does: HTTP/2 has it there alone (RFC 9113 section
    /// 8.3.1), and a run has to be for the same host. A name and a password before it are left out.
    #[must_use]
    pub fn with_host(mut self, authority: Option<&str>) -> Self {
        let is_told = self.headers.iter().any(|(name, _)| name == "host");
        if let Some(host) = authority.and_then(host_and_port).filter(|_| !is_told) {
            self.headers.push(("host".to_owned(), host.into()));
        }
        self
    }
}

/// The host of an authority, with its port.
fn host_and_port(authority: &str) -> Option<&str> {
    authority.rsplit('@').next().filter(|host| !host.is_empty())
}

impl fmt::Debug for HttpRequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No values, and nothing of the query: they may be anybody's secrets.
        let path = self.target.split('?').next().unwrap_or_default();
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpRequestHead")
            .field("method", &self.method)
            .field("path", &path)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// A header field was sent more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateHeader;

/// A request as a gate sees it, before the inner service has.
///
/// Values are as the client sent them, but path parameters are percent-decoded, whatever the framework
/// does: the same URL must give the same key everywhere.
pub trait GateRequest {
    /// What the framework itself shows of a request; closures of the application get this.
    type NativeRequest: ?Sized;

    /// The framework's own request.
    fn native_request(&mut self) -> &Self::NativeRequest;

    /// The method, as sent.
    fn method(&self) -> &str;

    /// What the router has found.
    fn route(&mut self) -> RouteMatch;

    /// A path parameter, decoded; `None` if the route has none of this name.
    ///
    /// # Errors
    ///
    /// [`PathParamError`] if its bytes are not UTF-8, or if the route has two parameters of this name.
    fn path_param(&mut self, name: &str) -> Result<Option<String>, PathParamError>;

    /// All values of a header field.
    fn header_values(&self, name: &str) -> Vec<&[u8]>;

    /// The value of a header field that makes sense once; `None` if it was not sent.
    ///
    /// # Errors
    ///
    /// [`DuplicateHeader`], or more often.
    fn single_header(&self, name: &HeaderName) -> Result<Option<&[u8]>, DuplicateHeader> {
        match self.header_values(name.as_str())[..] {
            [] => Ok(None),
            [value] => Ok(Some(value)),
            _ => Err(DuplicateHeader),
        }
    }

    /// The authority in the request's URI; `None`, the default, if it is not there, or not known. HTTP/2 has the host there
    /// alone.
    fn authority(&self) -> Option<&str> {
        None
    }

    /// Bytes of path and query, as [`Head::target`] has them. Default 0: not known.
    fn target_len(&self) -> usize {
        0
    }

    /// Whether it has one of these header fields, named in lower case. Most requests have none of those that
    /// are asked for, and one pass over a few names is cheaper than a look-up of each.
    fn has_any_header(&self, names: &[&str]) -> bool {
        names.iter().any(|name| !self.header_values(name).is_empty())
    }

    /// The names of all header fields, in lower case, each once.
    fn header_names(&self) -> Vec<&str>;

    /// Makes a header field have this one value, or none: what inner layers and the handler see. Names
    /// and values that are none change nothing.
    fn set_header(&mut self, name: &str, value: Option<&str>);

    /// The socket's other end.
    fn peer_addr(&self) -> Option<SocketAddr>;

    /// The store that the application gave to the request.
    fn store(&self) -> Option<Store>;

    /// What was put into the request under this type.
    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T>;

    /// Puts a value into the request, for inner layers and for the handler.
    fn insert_extension<T: Clone + Send + Sync + 'static>(&mut self, value: T);

    /// Changes a value that was put into the request; false if there is none.
    fn update_extension<T: Clone + Send + Sync + 'static>(
        &mut self,
        change: impl FnOnce(&mut T),
    ) -> bool;

    /// Takes a value out of the request.
    fn remove_extension<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T>;
}

/// The value of a header field that makes sense once. The host is that of the URI, if no field names it: the same as
/// [`Head::with_host`] has.
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

/// GET, HEAD, OPTIONS and TRACE change nothing (RFC 9110 section 9.2.1). Unknown methods may.
#[inline]
pub(crate) fn is_safe_method(method: &str) -> bool {
    // As bytes they are compared in place.
    matches!(method.as_bytes(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
}
