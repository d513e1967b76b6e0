//! Sets of addresses, as CIDR blocks.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::key::canonical_ip;

/// Addresses, in ranges that don't overlap: looked up in the logarithm of their number, since a deny list
/// may be long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkSet(Vec<(AddressPoint, AddressPoint)>);

/// An address among all others: IPv4 first, whichever way it is written ([`canonical`]).
type AddressPoint = (bool, u128);

impl NetworkSet {
    /// Reads blocks such as `10.0.0.0/8`, and single addresses.
    ///
    /// # Panics
    ///
    /// If one is neither; `caller` stands in the sentence.
    pub(crate) fn parse<S: AsRef<str>>(caller: &str, blocks: impl IntoIterator<Item = S>) -> Self {
        Self::merge_ranges(
            blocks.into_iter().map(|text| parse_range(caller, text.as_ref())).collect(),
        )
    }

    /// What is in either.
    pub(crate) fn union(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        Self::merge_ranges(self.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a point of partition that is not 0 has one before it"
    )]
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let at = address_point(address);
        let after = self.0.partition_point(|(first, _)| *first <= at);
        after.checked_sub(1).is_some_and(|before| at <= self.0[before].1)
    }

    fn merge_ranges(mut ranges: Vec<(AddressPoint, AddressPoint)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(AddressPoint, AddressPoint)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }
}

/// Bits of an address in front of an IPv4 one that is written as IPv6.
const MAPPED_PREFIX_LEN: u8 = 96;

#[expect(clippy::panic, reason = "a slip in the wiring, told as the service starts")]
fn parse_range(caller: &str, text: &str) -> (AddressPoint, AddressPoint) {
    let text = text.trim();
    let block = text.parse::<IpNet>().ok();
    let Some(block) = block.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)) else {
        panic!("{caller}: `{text}` is no address and no block of them, such as 10.0.0.0/8")
    };
    if covers_nat64(&block) {
        panic!(
            "{caller}: `{text}` is all of IPv4, behind NAT64; name IPv4 blocks, such as 10.0.0.0/8"
        )
    }
    match block {
        // Larger than all of IPv4, such as `::/0`: of IPv6 alone, or it would trust the other half too.
        IpNet::V6(block) if block.prefix_len() < MAPPED_PREFIX_LEN => {
            ((true, block.network().into()), (true, block.broadcast().into()))
        }
        _ => (address_point(block.network()), address_point(block.broadcast())),
    }
}

/// Returns true if the block has the whole NAT64 prefix `64:ff9b::/96` (RFC 6052), whose addresses count as the IPv4 ones in
/// them, and was written for it. `::/0` and the like are blocks of IPv6 alone.
fn covers_nat64(block: &IpNet) -> bool {
    const NAT64: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
    let IpNet::V6(block) = block else { return false };
    block.prefix_len() <= MAPPED_PREFIX_LEN
        && block.contains(&NAT64)
        && block.network().segments().first() == NAT64.segments().first()
}

fn address_point(address: IpAddr) -> AddressPoint {
    match canonical_ip(address) {
        IpAddr::V4(v4) => (false, u32::from(v4).into()),
        IpAddr::V6(v6) => (true, v6.into()),
    }
}
