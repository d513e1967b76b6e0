//! Keys of client addresses: full IPv4 addresses, and IPv6 networks.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv6Addr},
};

use super::{
    Key,
    embedded_ipv4::{canonical_ip, is_local_nat64},
};

impl Key {
    /// Creates the key of a client address.
    ///
    /// - An IPv4-mapped address is treated as IPv4. So is a NAT64 address under the well-known
    ///   prefix (`64:ff9b::/96`, RFC 6052).
    /// - An IPv6 address is reduced to its /64, because a single host can usually choose among all
    ///   addresses of a /64.
    /// - An address of `64:ff9b:1::/48` (RFC 8215) is used in full: a translator of the local
    ///   network has embedded one IPv4 host in it, in a format known to that translator only.
    #[must_use]
    pub fn ip(address: IpAddr) -> Self {
        Self::network(address, 64)
    }

    /// Like [`ip`](Self::ip), with another IPv6 prefix length, in bits (at most 128). The prefix
    /// length is part of the key, so networks of different sizes have different keys.
    #[must_use]
    pub fn network(address: IpAddr, ipv6_prefix: u8) -> Self {
        // Digits, dots and dashes need no escapes. The longest text has 48 bytes.
        let mut text = String::with_capacity(48);
        let _ = match canonical_ip(address) {
            // The most common key. Its formatting is a tenth of the cost of a refusal.
            IpAddr::V4(v4) => {
                let mut separator = "a:::";
                for octet in v4.octets() {
                    text.push_str(separator);
                    text.push_str(itoa::Buffer::new().format(octet));
                    separator = ".";
                }
                Ok(())
            }
            IpAddr::V6(v6) => {
                let is_full = is_local_nat64(v6);
                let prefix = if is_full { 128 } else { u32::from(ipv6_prefix.min(128)) };
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                let [a, b, c, d, e, f, g, h] = Ipv6Addr::from(u128::from(v6) & mask).segments();
                let _ = write!(text, "a:::{a:x}-{b:x}-{c:x}-{d:x}");
                match prefix {
                    64 => Ok(()),
                    _ => write!(text, "-{e:x}-{f:x}-{g:x}-{h:x}_{prefix}"),
                }
            }
        };
        Self(text.into())
    }

    /// Returns the key shared by all clients without a known address.
    pub(crate) fn unknown_address() -> Self {
        Self::build("a", "", b"none")
    }
}
