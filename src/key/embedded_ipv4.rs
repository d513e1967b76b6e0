//! IPv4 addresses written as IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the embedded IPv4 address of an IPv4-mapped address (`::ffff:a.b.c.d`) or of a NAT64
/// address under the well-known prefix (`64:ff9b::a.b.c.d`, RFC 6052 section 2.1). Other addresses
/// are returned unchanged.
pub(crate) fn canonical_ip(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => nat64_embedded_ipv4(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn nat64_embedded_ipv4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = v6.segments() else { return None };
    Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
}

/// Returns true for an address of `64:ff9b:1::/48`, the prefix for local translators (RFC 8215).
pub(super) fn is_local_nat64(v6: Ipv6Addr) -> bool {
    matches!(v6.segments(), [0x64, 0xff9b, 1, ..])
}
