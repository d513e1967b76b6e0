//! `PartsView`: the head of an `http` request as a `GateRequest`, and its stored form.

use std::{borrow::Cow, marker::PhantomData, net::SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue, request::Parts, uri::Authority};

use super::framework::Framework;
use crate::{
    gate::{DuplicateHeader, GateRequest, HttpRequestHead, PathParamError, RouteMatch},
    store::Store,
};

/// View of a request's head for a gate.
#[derive(Debug)]
pub struct PartsView<'a, F> {
    parts: &'a mut Parts,
    framework: PhantomData<F>,
}

impl<'a, F> PartsView<'a, F> {
    /// Creates a view of these parts.
    pub fn new(parts: &'a mut Parts) -> Self {
        Self { parts, framework: PhantomData }
    }
}

impl<F: Framework> GateRequest for PartsView<'_, F> {
    type NativeRequest = Parts;

    fn native_request(&mut self) -> &Parts {
        self.parts
    }

    fn method(&self) -> &str {
        self.parts.method.as_str()
    }

    fn route(&mut self) -> RouteMatch {
        F::route(self.parts)
    }

    fn route_pattern(&mut self) -> Option<Cow<'_, str>> {
        F::route_pattern(self.parts)
    }

    fn path_param(&mut self, name: &str) -> Result<Option<String>, PathParamError> {
        F::path_param(self.parts, name)
    }

    fn header_values(&self, name: &str) -> Vec<&[u8]> {
        self.parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    fn single_header(&self, name: &HeaderName) -> Result<Option<&[u8]>, DuplicateHeader> {
        let mut all = self.parts.headers.get_all(name).iter();
        match (all.next(), all.next()) {
            (value, None) => Ok(value.map(HeaderValue::as_bytes)),
            _ => Err(DuplicateHeader),
        }
    }

    fn authority(&self) -> Option<&str> {
        self.parts.uri.authority().map(Authority::as_str)
    }

    fn target_len(&self) -> usize {
        F::target(self.parts).len()
    }

    fn has_any_header(&self, names: &[&str]) -> bool {
        self.parts.headers.keys().any(|name| names.contains(&name.as_str()))
    }

    fn header_names(&self) -> Vec<&str> {
        self.parts.headers.keys().map(HeaderName::as_str).collect()
    }

    fn set_header(&mut self, name: &str, value: Option<&str>) {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { return };
        match value.map(HeaderValue::from_str) {
            Some(Ok(value)) => drop(self.parts.headers.insert(name, value)),
            Some(Err(_)) => {}
            None => drop(self.parts.headers.remove(name)),
        }
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        F::peer_addr(&self.parts.extensions)
    }

    fn store(&self) -> Option<Store> {
        self.parts.extensions.get().cloned()
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.parts.extensions.get().cloned()
    }

    fn insert_extension<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.parts.extensions.insert(value);
    }

    fn update_extension<T: Clone + Send + Sync + 'static>(
        &mut self,
        change: impl FnOnce(&mut T),
    ) -> bool {
        self.parts.extensions.get_mut().map(change).is_some()
    }

    fn remove_extension<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        self.parts.extensions.remove()
    }
}

/// Returns the headers in order, with repeats.
pub(super) fn header_pairs(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let pair = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), value.as_bytes().to_vec())
    };
    headers.iter().map(pair).collect()
}

/// Returns the head in the form that is stored.
pub(super) fn request_head<F: Framework>(parts: &Parts) -> HttpRequestHead {
    HttpRequestHead {
        method: parts.method.as_str().to_owned(),
        target: F::target(parts),
        headers: header_pairs(&parts.headers),
        peer: F::peer_addr(&parts.extensions),
    }
    .with_host(parts.uri.authority().map(Authority::as_str))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::{gate::KeySource, key::Key, middleware::PlainHttp};

    /// HTTP/2 requests have the host only in the URI.
    #[test]
    fn host_key_falls_back_to_the_uri() {
        let key = |uri: &str, host: Option<&str>| {
            let mut request = Request::builder().uri(uri);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let (mut parts, ()) = request.body(()).expect("a request").into_parts();
            KeySource::<PlainHttp>::header("Host")
                .read(&mut PartsView::<PlainHttp>::new(&mut parts))
                .ok()
        };
        let host_key = |host: &str| Some(Key::header("host", host.as_bytes()));
        assert_eq!(key("https://one.example:8443/a", None), host_key("one.example:8443"));
        assert_eq!(key("https://me:secret@one.example/a", None), host_key("one.example"));
        assert_eq!(key("https://one.example/a", Some("two.example")), host_key("two.example"));
        assert_eq!(key("/a", None), None);
    }
}
