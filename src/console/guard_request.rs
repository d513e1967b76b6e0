//! [`GuardRequest`]: a request as a guard of the console sees it.

use std::{fmt, net::SocketAddr};

use crate::gate::{GateRequest, LoopbackGuard};

/// Peer, host and headers of a request, the same in every framework.
#[derive(Clone)]
#[non_exhaustive]
pub struct GuardRequest {
    /// Address of the peer of the socket; `None` if the server does not provide it.
    pub peer: Option<SocketAddr>,
    /// Host and port that the client asked for, in lower case: the `Host` header, or the authority
    /// of HTTP/2.
    pub host: Option<String>,
    is_local: bool,
    headers: Vec<(String, Vec<u8>)>,
}

impl GuardRequest {
    pub(super) fn new(view: &impl GateRequest) -> Self {
        let names = view.header_names().into_iter();
        let headers = names.flat_map(|name| {
            let values = view.header_values(name).into_iter();
            values.map(move |value| (name.to_owned(), value.to_vec()))
        });
        let mut request = Self {
            peer: view.peer_addr(),
            host: None,
            is_local: LoopbackGuard::check(view).is_ok(),
            headers: headers.collect(),
        };
        let header_host = request.header("host").and_then(|host| str::from_utf8(host).ok());
        request.host = header_host.or(view.authority()).map(str::to_ascii_lowercase);
        request
    }

    /// Returns the value of a header, named in lower case; `None` if it was not sent exactly once.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut values = self.headers.iter().filter(|(sent, _)| sent == name);
        let value = values.next()?;
        values.next().is_none().then_some(value.1.as_slice())
    }

    /// Returns true if a header of this name, in lower case, was sent.
    #[must_use]
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(sent, _)| sent == name)
    }

    /// Returns true if the request came from this machine itself and not through a proxy; see
    /// [`LoopbackGuard`](crate::driver::LoopbackGuard).
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
    }
}

impl fmt::Debug for GuardRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are left out: one of them may be a password.
        let names = Vec::from_iter(self.headers.iter().map(|(name, _)| name));
        formatter
            .debug_struct("GuardRequest")
            .field("peer", &self.peer)
            .field("host", &self.host)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}
