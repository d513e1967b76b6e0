//! Hosts and addresses, and how they answered.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use tokio::time::Instant;

/// Most addresses of one host that are judged: whoever has the name says how many it has.
const MAX_ADDRESSES: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ReceiverId {
    /// Name or address, and port.
    Host(Arc<str>),
    /// An IPv4 address, or the /64 of an IPv6 one: the least that a site has.
    Network(IpAddr),
}

/// How the last call to a place ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LastResponse {
    /// Never called, or it failed at once.
    #[default]
    Unknown,
    Prompt,
    /// It was answered, after more than `SLOW_THRESHOLD`.
    Slow,
    /// It was not answered, after more than `SLOW_THRESHOLD`.
    Unresponsive,
}

pub(super) struct ReceiverHealth {
    /// Calls that are under way.
    pub(super) active_calls: usize,
    pub(super) last_response: LastResponse,
    /// When the last one ended.
    pub(super) last_call_ended_at: Instant,
    /// Of a host.
    pub(super) networks: Vec<ReceiverId>,
}

impl Default for ReceiverHealth {
    fn default() -> Self {
        Self {
            active_calls: 0,
            last_response: LastResponse::Unknown,
            last_call_ended_at: Instant::now(),
            networks: Vec::new(),
        }
    }
}

impl ReceiverHealth {
    /// The last call was answered in time.
    pub(super) fn is_proven(&self) -> bool {
        self.last_response == LastResponse::Prompt
    }

    /// Whether one more call may go there, of a place that has so many while it is slow. A slow one may have more while
    /// nobody else waits; a silent one never has, since the next to come would find no room.
    pub(super) fn allows_call(&self, most: usize, crowded: bool) -> bool {
        let is_bound = match self.last_response {
            LastResponse::Unresponsive => true,
            LastResponse::Slow => crowded,
            LastResponse::Prompt | LastResponse::Unknown => false,
        };
        !is_bound || self.active_calls < most
    }

    /// Returns true if there is nothing to remember. The addresses of a host are kept after a call that one of them had no turn
    /// for: without them it would be claimed again before that address has a turn.
    pub(super) fn is_idle(&self) -> bool {
        self.active_calls == 0
            && self.last_response == LastResponse::Unknown
            && self.networks.is_empty()
    }
}

/// The places of these addresses, each once.
pub(super) fn receiver_networks(addresses: &[SocketAddr]) -> Vec<ReceiverId> {
    let networks: BTreeSet<_> =
        addresses.iter().map(|address| network_prefix(address.ip())).collect();
    networks.into_iter().take(MAX_ADDRESSES).map(ReceiverId::Network).collect()
}

fn network_prefix(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}
