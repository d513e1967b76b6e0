//! `LoopbackGuard`: admits requests of this machine alone, for pages of its operators.

use http::header::HOST;

use super::gate_request::{DuplicateHeader, GateRequest};
use crate::reply::{Reply, problem};

/// Admits a request of this machine alone. `loopback_only` of the integrations wraps a route with
/// it.
///
/// - The peer of the socket has a loopback address.
/// - The host is `localhost`, `127.0.0.1` or `[::1]`, with or without a port. A page of another
///   site, whose name its owner lets resolve to 127.0.0.1 (DNS rebinding), has another host.
/// - There is no `Forwarded`, `X-Forwarded-*`, `X-Real-IP` or `Via` header: behind a proxy on this
///   machine, every client has its loopback address.
///
/// A local proxy that adds none of these headers and replaces the host can't be recognised: it must
/// not forward such a route.
#[derive(Debug, Clone, Copy)]
pub struct LoopbackGuard;

impl LoopbackGuard {
    /// Returns the 403 for a request that did not come from this machine. It waits for nothing.
    ///
    /// # Errors
    ///
    /// The 403, a problem document.
    pub fn check<V: GateRequest>(request: &V) -> Result<(), Reply> {
        let is_local_peer =
            request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
        let is_forwarded = request.header_names().into_iter().any(is_proxy_header);
        if is_local_peer && has_local_host(request) && !is_forwarded {
            return Ok(());
        }
        let title = "This page is for clients on the server's own machine";
        Err(Reply::problem(403, problem::DENIED, title))
    }
}

/// Returns true if the request names a host, and each name that it has for it is local. A request
/// has up to two: that of its URI and that of its header.
fn has_local_host<V: GateRequest>(request: &V) -> bool {
    let uri_host = request.authority();
    match request.single_header(&HOST) {
        Ok(Some(header)) => {
            str::from_utf8(header).is_ok_and(is_local_host) && uri_host.is_none_or(is_local_host)
        }
        Ok(None) => uri_host.is_some_and(is_local_host),
        Err(DuplicateHeader) => false,
    }
}

/// Returns true if the authority is this machine's, with or without a port.
fn is_local_host(authority: &str) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon of an address in brackets separates no port.
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (authority, ""),
    };
    let is_local = ["127.0.0.1", "[::1]"].contains(&host) || host.eq_ignore_ascii_case("localhost");
    is_local && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true if a proxy has added the header, named in lower case.
fn is_proxy_header(name: &str) -> bool {
    matches!(name, "forwarded" | "x-real-ip" | "via") || name.starts_with("x-forwarded-")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::gate::fake_request::FakeGateRequest;

    const LOCAL: &str = "127.0.0.1:50000";

    fn is_admitted(peer: Option<&str>, headers: &[(&'static str, &'static str)]) -> bool {
        let mut request = FakeGateRequest::new("GET");
        request.peer_addr = peer.map(|peer| peer.parse::<SocketAddr>().expect("an address"));
        request.headers = headers.to_vec();
        match LoopbackGuard::check(&request) {
            Ok(()) => true,
            Err(reply) => {
                assert_eq!(reply.status, 403);
                false
            }
        }
    }

    #[test]
    fn local_peer_with_local_host_is_admitted() {
        for peer in [LOCAL, "127.8.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            for host in ["127.0.0.1:3000", "localhost", "LocalHost:3000", "[::1]", "[::1]:3000"] {
                assert!(is_admitted(Some(peer), &[("host", host)]), "{peer} {host}");
            }
        }
    }

    #[test]
    fn other_or_unknown_peer_is_refused() {
        let others = ["192.0.2.1:1", "10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1"];
        for peer in others.map(Some).into_iter().chain([None]) {
            assert!(!is_admitted(peer, &[("host", "localhost:3000")]), "{peer:?}");
        }
    }

    #[test]
    fn other_missing_or_ambiguous_host_is_refused() {
        let others = [
            "",
            "example.com",
            "localhost.example.com",
            "localhost.",
            "127.0.0.1.example.com:3000",
            "example.com:127.0.0.1",
            "localhost:3000@example.com",
            "example.com@localhost",
            "127.0.0.2",
            "[::2]:3000",
            "[::1",
            "::1",
            ":3000",
        ];
        for host in others {
            assert!(!is_admitted(Some(LOCAL), &[("host", host)]), "{host:?}");
        }
        assert!(!is_admitted(Some(LOCAL), &[]));
        assert!(!is_admitted(Some(LOCAL), &[("host", "localhost"), ("host", "example.com")]));
    }

    #[test]
    fn forwarded_request_is_refused() {
        let headers = ["forwarded", "x-forwarded-for", "x-forwarded-new", "x-real-ip", "via"];
        for header in headers {
            for value in ["", "127.0.0.1"] {
                let headers = [("host", "localhost:3000"), (header, value)];
                assert!(!is_admitted(Some(LOCAL), &headers), "{header}: {value}");
            }
        }
        assert!(is_admitted(Some(LOCAL), &[("host", "localhost:3000"), ("x-request-id", "1")]));
    }
}
