//! Hosts and addresses, and how they answered.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use tokio::time::Instant;

/// Most addresses of one host that are judged: whoever has the name says how many it has.
const ADDRESSES: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// Name or address, and port.
    Host(Arc<str>),
    /// An IPv4 address, or the /64 of an IPv6 one: the least that a site has.
    Network(IpAddr),
}

/// How the last call to a place ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Last {
    /// Never called, or it failed at once.
    #[default]
    Unknown,
    Prompt,
    /// It was answered, after more than `SLOW`.
    Slow,
    /// It was not answered, after more than `SLOW`.
    Silent,
}

pub(super) struct Standing {
    /// Calls that are under way.
    pub(super) calls: usize,
    pub(super) last: Last,
    /// When the last one ended.
    pub(super) called: Instant,
    /// Of a host.
    pub(super) addresses: Vec<Place>,
}

impl Default for Standing {
    fn default() -> Self {
        Self { calls: 0, last: Last::Unknown, called: Instant::now(), addresses: Vec::new() }
    }
}

impl Standing {
    /// The last call was answered in time.
    pub(super) fn is_proven(&self) -> bool {
        self.last == Last::Prompt
    }

    /// Whether one more call may go there, of a place that has so many while it is slow. A slow one may have more while
    /// nobody else waits; a silent one never has, since the next to come would find no room.
    pub(super) fn admits(&self, most: usize, crowded: bool) -> bool {
        let is_bound = match self.last {
            Last::Silent => true,
            Last::Slow => crowded,
            Last::Prompt | Last::Unknown => false,
        };
        !is_bound || self.calls < most
    }

    /// Returns true if there is nothing to remember. The addresses of a host are kept after a call that one of them had no turn
    /// for: without them it would be claimed again before that address has a turn.
    pub(super) fn is_idle(&self) -> bool {
        self.calls == 0 && self.last == Last::Unknown && self.addresses.is_empty()
    }
}

/// The places of these addresses, each once.
pub(super) fn places(addresses: &[SocketAddr]) -> Vec<Place> {
    let networks: BTreeSet<_> = addresses.iter().map(|address| network(address.ip())).collect();
    networks.into_iter().take(ADDRESSES).map(Place::Network).collect()
}

fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}
