//! `FakeGateRequest`: a request without a framework, for tests of gates.

use std::net::SocketAddr;

use super::gate_request::{GateRequest, PathParamError, RouteMatch};
use crate::store::Store;

/// Unsafe request to a matched route. A clone is the second request of a retry layer.
#[derive(Clone)]
pub(crate) struct FakeGateRequest {
    pub(crate) method: &'static str,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// More headers, with arbitrary bytes.
    pub(crate) binary_headers: Vec<(&'static str, Vec<u8>)>,
    pub(crate) peer_addr: Option<SocketAddr>,
    extensions: http::Extensions,
}

impl FakeGateRequest {
    pub(crate) fn new(method: &'static str) -> Self {
        let (headers, binary_headers, extensions) = Default::default();
        Self { method, headers, binary_headers, peer_addr: None, extensions }
    }
}

impl GateRequest for FakeGateRequest {
    type NativeRequest = ();

    fn native_request(&mut self) -> &() {
        &()
    }

    fn method(&self) -> &str {
        self.method
    }

    fn route(&mut self) -> RouteMatch {
        RouteMatch::Matched("/orders/{id}".to_owned())
    }

    fn path_param(&mut self, _: &str) -> Result<Option<String>, PathParamError> {
        Ok(None)
    }

    fn header_values(&self, name: &str) -> Vec<&[u8]> {
        let headers = self.headers.iter().map(|(n, value)| (*n, value.as_bytes()));
        let binary_headers = self.binary_headers.iter().map(|(n, value)| (*n, &**value));
        headers.chain(binary_headers).filter(|(n, _)| *n == name).map(|(_, value)| value).collect()
    }

    fn header_names(&self) -> Vec<&str> {
        let names = self.headers.iter().map(|(name, _)| *name);
        let mut names: Vec<_> =
            names.chain(self.binary_headers.iter().map(|(name, _)| *name)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn set_header(&mut self, name: &str, value: Option<&str>) {
        self.headers.retain(|(n, _)| *n != name);
        // Leaks: tests are short.
        let leak = |text: &str| &*text.to_owned().leak();
        self.headers.extend(value.map(|value| (leak(name), leak(value))));
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer_addr
    }

    fn store(&self) -> Option<Store> {
        None
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.extensions.get().cloned()
    }

    fn insert_extension<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }

    fn update_extension<T: Clone + Send + Sync + 'static>(
        &mut self,
        change: impl FnOnce(&mut T),
    ) -> bool {
        self.extensions.get_mut().map(change).is_some()
    }

    fn remove_extension<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        self.extensions.remove()
    }
}
