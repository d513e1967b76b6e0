//! `RequestView`, actix-web's implementation of `GateRequest`: route, path parameters, headers,
//! store and extensions of a request.

use std::{
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
};

use actix_web::{
    HttpMessage as _, HttpRequest,
    dev::ServiceRequest,
    http::{
        header::{HeaderMap, HeaderName, HeaderValue},
        uri::Authority,
    },
    web,
};
use lockgate::{
    Reply, Store,
    driver::{DuplicateHeader, GateRequest, HttpRequestHead, PathParamError, RouteMatch},
};

use crate::route_pattern_and_params::{decode_param, matched_pattern, raw_param};

/// Request as a gate sees it.
///
/// It borrows only an `HttpRequest`, so the layers, which have a `ServiceRequest`, and the status
/// resource, which is a handler, pass the same type to the application's closures.
#[derive(Debug)]
pub(crate) struct RequestView<'a> {
    request: &'a HttpRequest,
    header_changes: HeaderChanges,
}

/// Headers to set, or to remove (`None`), once the request is no longer borrowed.
pub(crate) type HeaderChanges = Vec<(HeaderName, Option<HeaderValue>)>;

impl<'a> RequestView<'a> {
    pub(crate) fn new(request: &'a HttpRequest) -> Self {
        Self { request, header_changes: Vec::new() }
    }

    pub(crate) fn into_header_changes(self) -> HeaderChanges {
        self.header_changes
    }
}

/// An outer layer keeps a clone of the request, so it cannot be modified.
#[derive(Debug)]
pub(crate) struct SharedRequestError;

impl SharedRequestError {
    pub(crate) fn reply(&self) -> Reply {
        lockgate::driver::log_shared_request();
        Reply::misconfigured()
    }
}

/// Applies the header changes of a gate.
///
/// As with every middleware that modifies a request, no other one may keep a clone of it: actix
/// panics then, and a client must not be able to cause that by a header. The panic is caught; a
/// panic hook still sees it, and with `panic = "abort"` the process ends.
pub(crate) fn apply_header_changes(
    changes: HeaderChanges,
    request: &mut ServiceRequest,
) -> Result<(), SharedRequestError> {
    if changes.is_empty() {
        return Ok(());
    }
    let apply = || {
        let headers = request.headers_mut();
        for (name, value) in changes {
            match value {
                Some(value) => drop(headers.insert(name, value)),
                None => drop(headers.remove(name)),
            }
        }
    };
    // actix panics before it changes anything.
    catch_unwind(AssertUnwindSafe(apply)).map_err(|_| SharedRequestError)
}

// No borrow of the request's extensions outlives a method, since actix shares them in a `RefCell`.
impl GateRequest for RequestView<'_> {
    type NativeRequest = HttpRequest;

    fn native_request(&mut self) -> &HttpRequest {
        self.request
    }

    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    fn route(&mut self) -> RouteMatch {
        matched_pattern(self.request).map_or(RouteMatch::Unmatched, RouteMatch::Matched)
    }

    fn path_param(&mut self, name: &str) -> Result<Option<String>, PathParamError> {
        let Some(value) = raw_param(self.request, name)? else { return Ok(None) };
        let value = decode_param(&value)?;
        // actix replaces bytes that are not UTF-8 by U+FFFD, which would give many URLs one key.
        decode_param(self.request.path()).map(|_| Some(value))
    }

    fn header_values(&self, name: &str) -> Vec<&[u8]> {
        let values = self.request.headers().get_all(name);
        values.map(HeaderValue::as_bytes).collect()
    }

    // A lookup by text parses and copies the name; scanning the few headers is faster.
    fn single_header(&self, name: &http::HeaderName) -> Result<Option<&[u8]>, DuplicateHeader> {
        let headers = self.request.headers().iter();
        let mut values = headers.filter(|(found, _)| found.as_str() == name.as_str());
        match (values.next(), values.next()) {
            (value, None) => Ok(value.map(|(_, value)| value.as_bytes())),
            _ => Err(DuplicateHeader),
        }
    }

    fn authority(&self) -> Option<&str> {
        self.request.uri().authority().map(Authority::as_str)
    }

    fn target_len(&self) -> usize {
        path_and_query(self.request).len()
    }

    fn has_any_header(&self, names: &[&str]) -> bool {
        self.request.headers().keys().any(|name| names.contains(&name.as_str()))
    }

    fn header_names(&self) -> Vec<&str> {
        self.request.headers().keys().map(HeaderName::as_str).collect()
    }

    fn set_header(&mut self, name: &str, value: Option<&str>) {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { return };
        match value.map(HeaderValue::from_str) {
            Some(Ok(value)) => self.header_changes.push((name, Some(value))),
            Some(Err(_)) => {}
            None => self.header_changes.push((name, None)),
        }
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.request.peer_addr()
    }

    fn store(&self) -> Option<Store> {
        let data = self.request.app_data::<web::Data<Store>>();
        data.map(|store| Store::clone(store))
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.request.extensions().get().cloned()
    }

    fn insert_extension<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.request.extensions_mut().insert(value);
    }

    fn update_extension<T: Clone + Send + Sync + 'static>(
        &mut self,
        change: impl FnOnce(&mut T),
    ) -> bool {
        self.request.extensions_mut().get_mut().map(change).is_some()
    }

    fn remove_extension<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        self.request.extensions_mut().remove()
    }
}

/// Returns path and query in the stored form.
fn path_and_query(request: &HttpRequest) -> &str {
    request.uri().path_and_query().map_or("/", |target| target.as_str())
}

/// Returns the head in the stored form.
pub(crate) fn request_head(request: &HttpRequest) -> HttpRequestHead {
    HttpRequestHead::new(
        request.method().as_str(),
        path_and_query(request),
        header_pairs(request.headers()),
        request.peer_addr(),
    )
    .with_host(request.uri().authority().map(Authority::as_str))
}

/// Returns the headers as a gate sees them: in order, with repetitions.
pub(crate) fn header_pairs(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let headers = headers.iter();
    headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use lockgate::Key;

    use super::*;
    use crate::KeyPart;

    /// HTTP/2 has the host only in the URI.
    #[test]
    fn host_key_falls_back_to_the_uri() {
        let key = |request: TestRequest| {
            let request = request.to_http_request();
            KeyPart::header("host").read(&mut RequestView::new(&request)).ok()
        };
        let request = || TestRequest::with_uri("https://me:secret@one.example:8443/a");
        assert_eq!(key(request()), Some(Key::header("host", b"one.example:8443")));
        let other = request().insert_header(("host", "two.example"));
        assert_eq!(key(other), Some(Key::header("host", b"two.example")));
    }

    #[test]
    fn single_header_rejects_a_repeated_header() {
        let request = TestRequest::default()
            .append_header(("x-key", "one"))
            .append_header(("x-twice", "one"))
            .append_header(("x-twice", "two"))
            .append_header(("host", "here"))
            .to_http_request();
        let view = RequestView::new(&request);
        let single = |name: &'static str| view.single_header(&http::HeaderName::from_static(name));
        assert_eq!(single("x-key"), Ok(Some(&b"one"[..])));
        assert_eq!(single("host"), Ok(Some(&b"here"[..])), "a standard header");
        assert_eq!(single("x-none"), Ok(None));
        assert_eq!(single("x-twice"), Err(DuplicateHeader));
    }
}
