//! `NetworkSet`: a set of addresses, built from CIDR blocks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use crate::{error::Error, key::canonical_ip};

/// Set of addresses, as sorted ranges that don't overlap. A lookup is a binary search, since a deny
/// list may be long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkSet(Vec<AddressRange>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AddressRange {
    first: AddressPoint,
    last: AddressPoint,
}

/// Position of an address in the order of all addresses, IPv4 first, after [`canonical_ip`].
type AddressPoint = (bool, u128);

impl NetworkSet {
    /// Parses blocks such as `10.0.0.0/8`, and single addresses.
    ///
    /// # Errors
    ///
    /// If a text is neither; the sentence names `caller`.
    pub(crate) fn try_parse<S: AsRef<str>>(
        caller: &str,
        blocks: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        let ranges = blocks.into_iter().map(|text| parse_range(caller, text.as_ref()));
        Ok(Self::merge_ranges(ranges.collect::<Result<_, _>>()?))
    }

    /// Like `try_parse`, for networks of a test.
    #[cfg(test)]
    pub(crate) fn parse<S: AsRef<str>>(caller: &str, blocks: impl IntoIterator<Item = S>) -> Self {
        crate::error::expect_setting(Self::try_parse(caller, blocks))
    }

    /// Returns the union of both sets.
    pub(crate) fn union(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        Self::merge_ranges(self.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the blocks of the set as text, IPv4 first.
    pub(crate) fn blocks(&self) -> Vec<String> {
        let subnets = self.0.iter().flat_map(|range| {
            let [first, last] = [range.first.1, range.last.1];
            // All points of a range are of one family.
            match (u32::try_from(first), u32::try_from(last)) {
                (Ok(first), Ok(last)) if !range.first.0 => {
                    let [first, last] = [first, last].map(Ipv4Addr::from);
                    IpSubnets::V4(Ipv4Subnets::new(first, last, 0))
                }
                _ => {
                    let [first, last] = [first, last].map(Ipv6Addr::from);
                    IpSubnets::V6(Ipv6Subnets::new(first, last, 0))
                }
            }
        });
        subnets.map(|block| block.to_string()).collect()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a partition point above 0 has an element before it"
    )]
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let point = address_point(address);
        let next_range = self.0.partition_point(|range| range.first <= point);
        next_range.checked_sub(1).is_some_and(|index| point <= self.0[index].last)
    }

    fn merge_ranges(mut ranges: Vec<AddressRange>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<AddressRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(previous) if range.first <= previous.last => {
                    previous.last = previous.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }
}

/// Prefix length of an IPv4 address written as IPv6.
const MAPPED_PREFIX_LEN: u8 = 96;

fn parse_range(caller: &str, text: &str) -> Result<AddressRange, Error> {
    let text = text.trim();
    let block = text.parse::<IpNet>().ok();
    let Some(block) = block.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)) else {
        return Err(Error::setting(format!(
            "{caller}: `{text}` is neither an address nor a network such as 10.0.0.0/8"
        )));
    };
    if covers_nat64(&block) {
        return Err(Error::setting(format!(
            "{caller}: `{text}` contains all of IPv4 through NAT64; name IPv4 networks such as \
             10.0.0.0/8"
        )));
    }
    Ok(match block {
        // A block larger than all of IPv4, such as `::/0`, covers IPv6 alone; otherwise it would
        // trust every IPv4 address too.
        IpNet::V6(block) if block.prefix_len() < MAPPED_PREFIX_LEN => AddressRange {
            first: (true, block.network().into()),
            last: (true, block.broadcast().into()),
        },
        _ => AddressRange {
            first: address_point(block.network()),
            last: address_point(block.broadcast()),
        },
    })
}

/// Returns true if the block was written for the whole NAT64 prefix `64:ff9b::/96` (RFC 6052). Its
/// addresses count as the IPv4 addresses in them, so the block would cover all of IPv4. Blocks such
/// as `::/0` cover IPv6 alone.
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
