//! `AddressPolicy`: the URLs and addresses that webhooks may be sent to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use url::{Host, Url};

/// Targets that are allowed besides `https` to public addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct AddressPolicy {
    pub(super) allow_http: bool,
    pub(super) allowed_networks: Vec<IpNet>,
}

/// Parsed URL with a host that may be resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WebhookTarget {
    pub(super) url: Url,
    pub(super) host: Host<String>,
    pub(super) port: u16,
}

impl AddressPolicy {
    /// Parses a URL as a browser does: a number in any notation is the IPv4 address that it
    /// denotes.
    pub(super) fn parse_target(&self, text: &str) -> Result<WebhookTarget, &'static str> {
        let url = Url::parse(text).map_err(|_| "not a URL")?;
        if url.scheme() != "https" && !(self.allow_http && url.scheme() == "http") {
            return Err("the scheme is not https");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL contains a user or a password");
        }
        let host = url.host().ok_or("the URL has no host")?.to_owned();
        let port = url.port_or_known_default().ok_or("the URL has no port")?;
        Ok(WebhookTarget { url, host, port })
    }

    /// Checks the resolved addresses. One forbidden address rejects all: a name with an internal
    /// address is no public receiver.
    pub(super) fn check_addresses(&self, addresses: &[SocketAddr]) -> Result<(), &'static str> {
        let is_allowed = |address: &SocketAddr| {
            let ip = address.ip().to_canonical();
            is_public(ip) || self.allowed_networks.iter().any(|network| network.contains(&ip))
        };
        if addresses.is_empty() {
            return Err("the host has no address");
        }
        if addresses.iter().all(is_allowed) {
            Ok(())
        } else {
            Err("the host has a non-public address")
        }
    }
}

/// Returns true for an address of the public internet.
///
/// Excluded are the special-purpose registries of RFC 6890, and addresses of cloud metadata
/// services. Most of those lie in special ranges: 169.254.169.254 and fd00:ec2::254,
/// 100.100.100.200 (Alibaba), 192.0.0.192 (Oracle).
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    !matches!(
        ip.octets(),
        [0 | 10 | 127 | 224..=255, ..]
            | [100, 64..=127, ..]
            // Azure's wire server, which returns the configuration of virtual machines.
            | [168, 63, 129, 16]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    )
}

/// Returns true for global unicast (2000::/3) without these ranges:
///
/// - protocol assignments with Teredo (2001::/23),
/// - documentation (2001:db8::/32, 3fff::/20),
/// - 6to4 (2002::/16), which leads to an IPv4 address.
///
/// Mapped, translated and compatible IPv4 addresses lie outside of 2000::/3.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.segments();
    let special = (first == 0x2001 && (second < 0x200 || second == 0xdb8))
        || first == 0x2002
        || (first == 0x3fff && second < 0x1000);
    (0x2000..=0x3fff).contains(&first) && !special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed_address(text: &str) -> bool {
        AddressPolicy::default()
            .check_addresses(&[SocketAddr::new(text.parse().expect("an address"), 443)])
            .is_ok()
    }

    #[test]
    fn only_public_addresses_are_allowed() {
        for yes in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "168.63.129.15",
            "168.63.129.17",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_allowed_address(yes), "{yes}");
        }
        for no in [
            "0.0.0.0",
            "10.0.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:168.63.129.16",
            "::127.0.0.1",
            "::168.63.129.16",
            "64:ff9b::7f00:1",
            "64:ff9b::168.63.129.16",
            "64:ff9b::169.254.169.254",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:a83f:8110::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a83f:8110::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_allowed_address(no), "{no}");
        }
    }

    #[test]
    fn one_private_address_refuses_the_target() {
        let both = ["8.8.8.8:443", "127.0.0.1:443"].map(|text| text.parse().expect("an address"));
        assert!(AddressPolicy::default().check_addresses(&both).is_err());
        assert!(AddressPolicy::default().check_addresses(&[]).is_err());
        let networks = vec!["127.0.0.0/8".parse().expect("a network")];
        let rules = AddressPolicy { allowed_networks: networks, ..AddressPolicy::default() };
        assert!(rules.check_addresses(&both).is_ok());
        let mapped = "[::ffff:127.0.0.1]:443".parse().expect("an address");
        assert!(rules.check_addresses(&[mapped]).is_ok(), "as the IPv4 address that it is");
    }

    #[test]
    fn obfuscated_targets_are_refused_or_decoded() {
        let rules = AddressPolicy::default();
        for no in [
            "http://example.com/",
            "ftp://example.com/",
            "file:///etc/passwd",
            "example.com",
            "https://user@example.com/",
            "https://:pw@example.com/",
            "https://example.com@127.0.0.1/",
            "https://[fe80::1%25eth0]/",
            "https://[fe80::1%eth0]/",
            "https://",
            "gopher://x/",
        ] {
            assert!(rules.parse_target(no).is_err(), "{no}");
        }
        for local in [
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://127.1/",
            "https://%31%32%37.0.0.1/",
            "https://\u{ff11}27.0.0.1/",
        ] {
            let host = rules.parse_target(local).expect("it is an address").host;
            assert_eq!(host, Host::<String>::Ipv4(Ipv4Addr::LOCALHOST), "{local}");
        }
        let http = AddressPolicy { allow_http: true, ..AddressPolicy::default() };
        assert_eq!(http.parse_target("http://example.com").map(|target| target.port), Ok(80));
        assert_eq!(
            http.parse_target("https://example.com:8443/x?y").map(|target| target.port),
            Ok(8443)
        );
    }
}
