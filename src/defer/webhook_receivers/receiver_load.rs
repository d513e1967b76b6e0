//! `ReceiverLoad`: active calls and last response of a receiver, a host or a network, which limit
//! its calls.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use tokio::time::Instant;

/// Most addresses of one host that are judged: the owner of a name chooses their number.
const MAX_ADDRESSES: usize = 8;

/// Receiver of webhooks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum HostOrNetwork {
    /// Name or address, with the port.
    Host(Arc<str>),
    /// An IPv4 address, or the /64 of an IPv6 address, the least that a site has.
    Network(IpAddr),
}

/// Result of the last call to a receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LastResponse {
    /// Never called, or the call failed within `SLOW_THRESHOLD`.
    #[default]
    Unknown,
    Prompt,
    /// Answered after more than `SLOW_THRESHOLD`.
    Slow,
    /// Not answered, and the call took more than `SLOW_THRESHOLD`.
    Unresponsive,
}

pub(super) struct ReceiverLoad {
    pub(super) active_calls: usize,
    pub(super) last_response: LastResponse,
    pub(super) last_call_ended_at: Instant,
    /// Networks of a host; empty for a network.
    pub(super) networks: Vec<HostOrNetwork>,
}

impl Default for ReceiverLoad {
    fn default() -> Self {
        Self {
            active_calls: 0,
            last_response: LastResponse::Unknown,
            last_call_ended_at: Instant::now(),
            networks: Vec::new(),
        }
    }
}

impl ReceiverLoad {
    /// Returns true if the last call was answered in time.
    pub(super) fn is_proven(&self) -> bool {
        self.last_response == LastResponse::Prompt
    }

    /// Returns true if the receiver may get another call. `max_calls` limits a slow receiver while
    /// other webhooks wait (`contended`), and an unresponsive one always: the next webhook would
    /// find no capacity.
    pub(super) fn allows_call(&self, max_calls: usize, contended: bool) -> bool {
        let is_limited = match self.last_response {
            LastResponse::Unresponsive => true,
            LastResponse::Slow => contended,
            LastResponse::Prompt | LastResponse::Unknown => false,
        };
        !is_limited || self.active_calls < max_calls
    }

    /// Returns true if the entry holds nothing worth keeping.
    ///
    /// The networks of a host are kept after a call for which one of them had no free slot. Without
    /// them the webhook would be claimed again before that network has one.
    pub(super) fn is_idle(&self) -> bool {
        self.active_calls == 0
            && self.last_response == LastResponse::Unknown
            && self.networks.is_empty()
    }
}

/// Returns the networks of these addresses, without duplicates, at most `MAX_ADDRESSES`.
pub(super) fn receiver_networks(addresses: &[SocketAddr]) -> Vec<HostOrNetwork> {
    let networks: BTreeSet<_> =
        addresses.iter().map(|address| network_prefix(address.ip())).collect();
    networks.into_iter().take(MAX_ADDRESSES).map(HostOrNetwork::Network).collect()
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
