//! Recognition of requests that ask for another protocol, which are not deferred.

/// Upgrade offers to another version of HTTP or to TLS. Clients send them with ordinary requests,
/// and servers may ignore them (RFC 9110 section 7.8).
const OPTIONAL_UPGRADES: [&str; 3] = ["h2c", "http", "tls"];

/// Returns true if the request asks for another protocol: such a request has no response to store.
pub(super) fn requires_upgrade(method: &str, upgrade: &[&[u8]]) -> bool {
    let is_required = |protocol: &[u8]| {
        let name = protocol.split(|&b| b == b'/').next().unwrap_or_default().trim_ascii();
        !name.is_empty()
            && !OPTIONAL_UPGRADES.iter().any(|offer| name.eq_ignore_ascii_case(offer.as_bytes()))
    };
    method == "CONNECT"
        || upgrade.iter().flat_map(|value| value.split(|&b| b == b',')).any(is_required)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// curl offers `h2c` with each request over plain TCP; such an offer requires no upgrade.
    #[test]
    fn http_version_offer_is_not_an_upgrade() {
        let needs_upgrade = |values: &[&str]| {
            requires_upgrade(
                "POST",
                &values.iter().map(|value| value.as_bytes()).collect::<Vec<_>>(),
            )
        };
        for offer in [&[][..], &["h2c"], &["H2C, HTTP/3.0", "TLS/1.0"], &[" , "]] {
            assert!(!needs_upgrade(offer), "{offer:?}");
        }
        for protocol in [&["websocket"][..], &["h2c, WebSocket"], &["h2c", "connect-udp"]] {
            assert!(needs_upgrade(protocol), "{protocol:?}");
        }
        assert!(requires_upgrade("CONNECT", &[]));
    }
}
